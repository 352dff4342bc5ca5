package runner

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Rules are those of a queue's jobs.
type Rules struct {
	BatchSize        int           // ids per handler call
	ShardConcurrency int           // batches of different ids of a shard at once
	Prefetch         int           // most ids popped at once
	HandlerTimeout   time.Duration // 0 or less: none
	MaxRetryCount    int           // 0 or less: none
	MaxCrashes       int           // 0 or less: a job is never buried for its crashes
	Exhausted        queue.Policy
	States           bool          // handlers may keep a state per id
	StateFor         time.Duration // after its last write; 0: for ever
	Limit            rules.Limit   // of the whole cluster
	Groups           rules.Groups  // the same by group
	Expire           rules.Expire  // payloads that no handler has in time; its zero value: none do
	StuckAfter       time.Duration // after its last note a call is ended; 0: never
	Journal          journal.Rule  // of which runs lines are kept
	// Encode gives results and states the form in which they are stored; nil: as they are.
	Encode      func([]byte) ([]byte, error)
	RetryIn     func(count int) time.Duration
	HeadStart   time.Duration // so much earlier its jobs count as due, among those of other queues that wait for a slot
	InTurn      bool          // of shards that wait for a slot, the longest waiting is next, not the one with the oldest job
	Held        *rules.Held   // ids that people hold: no handler gets them
	OnExhausted lowkiq.Hook   // these three may be nil
	OnBuried    lowkiq.Hook
	OnRecovered lowkiq.Hook
	FormatError func(error) string
}

// Queue is what the runners of a queue share.
type Queue struct {
	Rules       Rules // at first, see Change
	Handler     lowkiq.Handler
	Reserve     Reserve // nil: a call needs nothing that is short
	Concurrency int     // calls of the queue at once on this node; 0: only the node's slots bound them
	Paused      *atomic.Bool
	Metrics     *metrics.Queue
	ProcessWait *metrics.Histogram // how long batches wait for Reserve; nil without it

	Rate      Rate      // of the cluster, if the rules have one
	AskGroups AskGroups // the same of groups

	live  *live // what changes; nil in tests of parts: nothing does
	share share // of the node's slots
	all   share // of calls
}

// live is what changes of a queue while its runners work.
type live struct {
	rules atomic.Pointer[Rules]
	calls atomic.Pointer[Slots] // as many as there may be at once; nil: unbounded

	mu          sync.Mutex // guards what follows
	bound       *Slots     // the same, or those of the last bound
	concurrency int        // of the rules; 0: unbounded
	permits     int        // of those of the cluster; see Permits

	pacer  pacer // of the queue's rate
	groups groups
}

// NewQueue completes what the runners of a queue share.
func NewQueue(q Queue) *Queue {
	q.live = &live{bound: NewSlots(0)}
	q.live.bound.wanting, q.live.bound.ended = make(chan struct{}, 1), make(chan struct{}, 1)
	q.Change(q.Rules, q.Concurrency)
	return &q
}

// Change puts other rules in force, and another bound of calls at once, 0 for none. Each step that a lane takes goes by
// the rules of its beginning; calls that run are not ended, nor are those counted that began without a bound. Whoever
// calls it tells the runners then (Runner.Changed).
func (q *Queue) Change(rules Rules, concurrency int) {
	q.live.mu.Lock()
	defer q.live.mu.Unlock()
	was := q.live.rules.Swap(&rules)
	q.live.concurrency = concurrency
	if was != nil && was.Limit.Concurrency != rules.Limit.Concurrency {
		q.live.permits = 0 // by the new limit none is granted yet
		q.live.bound.want()
	}
	q.live.apply()
	if was != nil && was.Limit != rules.Limit {
		q.live.pacer.restart()
	}
	if was != nil && was.Groups != rules.Groups {
		q.live.groups.changed()
	}
}

// apply has as many calls at once as there may be now. mu is held.
func (l *live) apply() {
	bound, limited := math.MaxInt32, l.rules.Load().Limit.Concurrency > 0
	if l.concurrency > 0 {
		bound = l.concurrency
	}
	if limited {
		bound = min(bound, l.permits)
	}
	l.bound.resize(bound) // if nothing bounds them, whoever waits goes on
	if limited || l.concurrency > 0 {
		l.calls.Store(l.bound)
	} else {
		l.calls.Store(nil)
	}
}

// rules are those in force now.
func (q *Queue) rules() *Rules {
	if q.live == nil {
		return &q.Rules
	}
	return q.live.rules.Load()
}

// calls bound those of the queue at once; nil: nothing does.
func (q *Queue) calls() *Slots {
	if q.live == nil {
		return nil
	}
	return q.live.calls.Load()
}

// urgency is when the oldest job of a batch was due, zero if its queue is served in turn.
func (q *Queue) urgency(batch *lowkiq.Batch) time.Time {
	if q.rules().InTurn {
		return time.Time{}
	}
	oldest := batch.Jobs[0].PerformAt
	for _, job := range batch.Jobs[1:] {
		if job.PerformAt.Before(oldest) {
			oldest = job.PerformAt
		}
	}
	return oldest.Add(-q.rules().HeadStart)
}
