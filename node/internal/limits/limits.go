// Package limits keeps the handler calls of a queue within the queue's limits. A queue can limit its calls at once and its
// rate in the cluster, the same for each group of ids, and its calls at once on each node.
//
// Nodes share the limits of a cluster through Redis:
//
//   - For the limit of calls at once each node has permits. They are the queue's slots on the node. A lane waits
//     for a slot as it does for the node's own slots, and the next lane gets it without a request to Redis. While
//     calls run, the node asks for more permits or gives some back. It keeps to its number until Redis answers.
//   - A lane asks for the rate right before a call, when it has everything else that the call needs. So a grant is
//     used at once, or never. Only as many lanes prepare calls as the rate will probably let begin. The others
//     wait, and hold nothing meanwhile.
//   - A lane asks for the limits of groups right before a call, too. An id that may not begin goes back to Redis,
//     with a time when it may ask again. These times rise from id to id, so that ids come back one after the
//     other, and other groups have the lanes meanwhile.
//
// A lane asks whether ids may begin ([Queue.AwaitRate], [Queue.MayBegin], [Queue.TakeRate]), and reports that they have
// begun ([Queue.LeaveRate]) and ended ([Queue.EndCalls]). For each queue and kind of limit, one request is under
// way at a time. Questions that come meanwhile share the next request.
package limits

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Config holds the dependencies of a queue's limits. Without rules that need them the functions may be nil.
type Config struct {
	Node      *Slots       // of the node
	Processes int          // of the queue's handler, each for a call at a time; 0 if its calls need none
	AskRate   AskRate      // asks Redis for the rate
	AskGroups AskGroups    // asks Redis for groups
	Go        func(func()) // starts a goroutine
}

// Queue keeps the limits of a queue on this node.
type Queue struct {
	cfg   Config
	rules atomic.Pointer[limited]
	node  *Share // of the node's slots
	calls *Share // of the slots in bound

	bounded     atomic.Bool // bound is in force
	mu          sync.Mutex  // guards concurrency and permits, and changes of bound
	bound       *Slots      // slots for calls at once
	concurrency int         // limit of calls at once on this node; 0 without a limit
	permits     int         // of the cluster's limit

	rate   rate
	groups groups
}

// limited are the limits of the cluster that are in force.
type limited struct {
	limit  rules.Limit
	groups rules.Groups
}

// noLimits are in force before the first Change.
var noLimits = &limited{}

// New returns limits without any rule in force; see Change.
func New(cfg Config) *Queue {
	q := &Queue{cfg: cfg, bound: NewSlots(math.MaxInt32)}
	q.bound.wanting, q.bound.ended = make(chan struct{}, 1), make(chan struct{}, 1)
	q.calls, q.node = q.bound.Share(), cfg.Node.Share()
	q.rules.Store(noLimits)
	return q
}

// Change puts limits in force. concurrency is the bound of calls at once on this node, 0 for none. Running calls
// go on. Calls that began without a bound are not counted.
func (q *Queue) Change(limit rules.Limit, by rules.Groups, concurrency int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.swap(&limited{limit, by})
	q.concurrency = concurrency
	if was.limit.Concurrency != limit.Concurrency && was != noLimits {
		q.permits = 0 // none is granted under the new limit yet
		q.bound.notifyWanting()
	}
	q.applyBound()
	if was.limit != limit {
		q.rate.forgetGrant()
	}
}

// swap puts rules in force, and returns the rules before. If the rules of groups change, the next request reports all groups
// with running calls. Both happen while no call ends, because a call that ended by the old rules would not be reported
// under the new rules.
func (q *Queue) swap(to *limited) (was *limited) {
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	was = q.rules.Swap(to)
	if was.groups != to.groups {
		q.groups.reportBusy()
	}
	return was
}

// applyBound bounds calls by the rules and permits. The caller holds mu.
func (q *Queue) applyBound() {
	bound, limited := math.MaxInt32, q.rules.Load().limit.Concurrency > 0
	if q.concurrency > 0 {
		bound = q.concurrency
	}
	if limited {
		bound = min(bound, q.permits)
	}
	q.bound.resize(bound) // without a bound all lanes that wait go on
	q.bounded.Store(limited || q.concurrency > 0)
}

// IsBounded reports whether a call needs a slot of Calls.
func (q *Queue) IsBounded() bool { return q.bounded.Load() }

// CallSlots returns the slots for calls of the queue.
func (q *Queue) CallSlots() *Share { return q.calls }

// NodeSlots returns the queue's share of the node's slots.
func (q *Queue) NodeSlots() *Share { return q.node }

// Permits are the permits of this node for calls of a queue.
type Permits struct {
	Has           int // number of calls that may run, or of running calls if these are more
	Busy, Waiting int // number of running calls, and of lanes that wait for a permit
	Limit         int // of the cluster; 0 without a limit
}

// Permits returns the node's permits.
func (q *Queue) Permits() (p Permits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.Limit = q.rules.Load().limit.Concurrency; p.Limit > 0 {
		p.Busy, p.Waiting = q.calls.use()
		p.Has = max(q.permits, p.Busy)
	}
	return p
}

// SetPermits sets how many calls may run on this node under a limit, unless the limit has changed.
func (q *Queue) SetPermits(n, limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rules.Load().limit.Concurrency == limit {
		q.permits = n
		q.applyBound()
	}
}

// PermitWanted returns a channel that gets a value when a lane waits for a slot of a call.
func (q *Queue) PermitWanted() <-chan struct{} { return q.bound.wanting }

// CallsEnded returns a channel that gets a value once enough calls have ended, after more calls ran than may run.
func (q *Queue) CallsEnded() <-chan struct{} { return q.bound.ended }

// Waits returns what lanes of the queue wait for now, in the order of stages.
func (q *Queue) Waits() (waits []protocol.Wait) {
	add := func(stage protocol.Stage, bound string) { waits = append(waits, protocol.Wait{For: stage, Of: bound}) }
	of := q.rules.Load()
	q.mu.Lock()
	concurrency, permits := q.concurrency, q.permits
	q.mu.Unlock()
	limit := of.limit.Concurrency
	if _, waiting := q.calls.use(); waiting > 0 {
		switch {
		case limit > 0 && (concurrency == 0 || permits < concurrency):
			add(protocol.ForPermit, strconv.Itoa(limit))
		case q.cfg.Processes > 0 && concurrency >= q.cfg.Processes:
			add(protocol.ForProcess, strconv.Itoa(concurrency))
		default:
			add(protocol.ForCall, strconv.Itoa(concurrency))
		}
	}
	if _, waiting := q.node.use(); waiting > 0 {
		add(protocol.ForSlot, strconv.Itoa(q.cfg.Node.Use().Total))
	}
	if of.limit.Rate.N > 0 && q.rate.anyWaiting() {
		add(protocol.ForRate, of.limit.Rate.String())
	}
	if of.groups.By != "" && q.groups.anyFull() {
		add(protocol.ForGroup, groupBound(of.groups.Limit))
	}
	return waits
}

// groupBound returns the limit of each group of a queue, for people.
func groupBound(limit rules.Limit) string {
	var parts []string
	if n := limit.Concurrency; n > 0 {
		parts = append(parts, fmt.Sprintf("%d calls", n))
	}
	if limit.Rate.N > 0 {
		parts = append(parts, limit.Rate.String())
	}
	if parts == nil {
		return "for which a handler holds it back"
	}
	return strings.Join(parts, " and ")
}

// Leftovers returns what lanes still have of the limits or wait for, "" if nothing. Tests ask it when no lane runs.
func (q *Queue) Leftovers() string {
	q.rate.mu.Lock()
	defer q.rate.mu.Unlock()
	q.groups.mu.Lock()
	defer q.groups.mu.Unlock()
	calls, forCalls := q.calls.use()
	slots, forSlots := q.node.use()
	left := [...]int{calls, forCalls, slots, forSlots, q.rate.ready, len(q.rate.lanes), len(q.rate.asks), len(q.groups.busy), len(q.groups.asks)}
	if left == [len(left)]int{} {
		return ""
	}
	return fmt.Sprintf("calls: %d, lanes waiting; slots of the node, lanes waiting; by the rate ready, waiting, asking; groups busy, asking: %d", calls, left[1:])
}
