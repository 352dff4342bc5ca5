package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/handling"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/metrics"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Rules are the rules of a queue in force, with the functions that only a program can set.
type Rules struct {
	rules.Rules
	ShardJournal journal.Rule // a shard's part of the rule journal, with the tracked ids
	// Encode encodes results and states before they are stored. nil stores them as they are.
	Encode      func([]byte) ([]byte, error)
	Decode      func([]byte) ([]byte, error)  // decodes payloads that the rule then passes on; may be nil
	RetryFunc   func(count int) time.Duration // takes the place of the rule retry_in; may be nil
	Held        *rules.Held                   // ids that people hold; no handler gets them
	OnExhausted lowkiq.Hook                   // the three hooks may be nil
	OnBuried    lowkiq.Hook
	OnRecovered lowkiq.Hook
	FormatError func(error) string
}

// verdictRules returns the part of the rules that decides about answers of handlers.
func (r *Rules) verdictRules() *verdict.Rules {
	return &verdict.Rules{Rules: r.Rules, RetryFunc: r.RetryFunc, FormatError: r.FormatError, Encode: r.Encode, Decode: r.Decode}
}

// Queue is the state that the runners of a queue share.
type Queue struct {
	Rules       Rules // until Change
	Handler     lowkiq.Handler
	Home        handling.Home
	Reserve     Reserve // nil if a call needs no scarce resource
	Concurrency int     // maximum number of calls of the queue on this node, until Change; 0 sets no maximum
	Paused      *atomic.Bool
	Metrics     *metrics.Queue
	ProcessWait *metrics.Histogram // time that batches wait in Reserve; nil without Reserve

	Slots  Slots  // the node's slots, for calls of this queue
	Calls  Slots  // slots of the queue, which calls need while Limits.IsBounded
	Limits Limits // nil in tests of queues without limits

	live *atomic.Pointer[Rules] // rules in force; nil in some tests, and then Rules are in force
}

// Slots bound calls. A call needs a slot. Lanes get slots in an order that lets no queue wait for the backlog of another
// queue.
type Slots interface {
	// Acquire waits for a slot until ctx ends. due is the due time of the oldest job. A zero due waits in turn.
	Acquire(ctx context.Context, due time.Time) error
	Release()
	Contended() bool // reports whether other lanes wait for slots
}

// Limits are the limits of a queue in the cluster and on this node. Package node/internal/limits implements them.
type Limits interface {
	Change(limit rules.Limit, by rules.Groups, concurrency int)
	IsBounded() bool // reports whether a call needs one of the queue's Calls

	// These ask whether ids of a lane's batch may begin.
	AwaitRate(ctx context.Context, refused bool) error
	MayBegin(ids []string) ([]verdict.GroupAnswer, error)
	TakeRate(ctx context.Context, ids int) (may bool, again time.Duration)
	// These ask when ids may begin that no lane has.
	RefusesID(id string) bool
	MayBeginLater(ids []string) ([]verdict.GroupAnswer, error)
	// LeaveRate reports that a call begins, or will not begin.
	LeaveRate()
	// EndCalls reports that calls have ended, or will not begin.
	EndCalls(groups []string, took time.Duration)
	StopGroup(group string, d time.Duration)
}

// NewQueue returns a Queue with the rules of q in force.
func NewQueue(q Queue) *Queue {
	q.live = &atomic.Pointer[Rules]{}
	q.Change(q.Rules, q.Concurrency)
	return &q
}

// Change puts other rules in force, and another maximum number of calls on this node. 0 sets no maximum. Running calls go
// on. Each step of a lane uses the rules that were in force when the step began. The caller then calls
// [Runner.ApplyRules] of all runners.
func (q *Queue) Change(rules Rules, concurrency int) {
	if q.Limits != nil {
		q.Limits.Change(rules.Limit, rules.Groups, concurrency)
	}
	q.live.Store(&rules)
}

// rules returns the rules in force.
func (q *Queue) rules() *Rules {
	if q.live == nil {
		return &q.Rules
	}
	return q.live.Load()
}

// callSlots returns the slots for calls of the queue, nil if calls are not bounded.
func (q *Queue) callSlots() Slots {
	if q.Limits == nil || !q.Limits.IsBounded() {
		return nil
	}
	return q.Calls
}

// dueTime returns the time when the oldest job of a batch was due, less a head start for the queue's priority. It returns
// zero if the queue is served in turn.
func (q *Queue) dueTime(batch *lowkiq.Batch) time.Time {
	by := q.rules()
	if by.Scheduler == rules.Seq {
		return time.Time{}
	}
	oldest := batch.Jobs[0].PerformAt
	for _, job := range batch.Jobs[1:] {
		if job.PerformAt.Before(oldest) {
			oldest = job.PerformAt
		}
	}
	return oldest.Add(-time.Duration(by.Priority) * rules.HeadStart)
}
