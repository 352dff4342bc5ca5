package rebalance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// Config configures an Agent. The zero value of a field means its default, where a default is named.
type Config struct {
	Boot   string        // id of this run of the process, never used again; required
	TTL    time.Duration // lease ttl; 0 = 6 s
	Record Record        // required
	Mark   Mark          // required
	Source Source        // required
	// Transport opens the Raft transport of a server id; required. [Listener.Transport] does so for TCP.
	Transport func(server string) (raft.Transport, error)
	Log       *slog.Logger // nil = discard
	// Logged reports whether the caller has logged an error of Record, Mark or Source itself. The agent does not log
	// such an error again. May be nil.
	Logged func(msg string, err error) bool

	refuse func(entry []byte) error // for tests: an older release, which cannot read some entries
}

// Validate returns an error that names a missing field or a value out of range.
func (c Config) Validate() error {
	switch {
	case c.Boot == "":
		return errors.New("rebalance: Boot is empty; it must be an id made at start")
	case c.Record == nil || c.Mark == nil || c.Source == nil || c.Transport == nil:
		return errors.New("rebalance: Record, Mark, Source and Transport are required")
	case c.TTL < 0:
		return fmt.Errorf("rebalance: TTL %s must not be negative", c.TTL)
	}
	return nil
}

// Agent takes part, for a process, in the Raft group that agrees on assignments. Its
// methods may be called from any goroutine at any time.
//
// Run takes turns. A turn reads the view, the record and the mark, and acts by the process's state:
//
//	state            what holds                            what a turn does
//	---------------  ------------------------------------  -----------------------------------------
//	no record        rec is nil                            creates a record and bootstraps, unless a
//	                                                       leader is known, which writes its record
//	                                                       back
//	to join          server is nil, or of another record   drops it, starts a server of the record
//	follower         server is of the record, another      nothing; refounds the group if the mark is
//	                 leads                                 gone and most voters are dead, or if the
//	                                                       mark stays gone (decide)
//	candidate        server is of the record, no leader    as a follower; Raft elects
//	new leader       server leads, term is nil             prepareTerm: applies the committed entries,
//	                                                       writes the first entry of a new record
//	leader           server leads, term is set             renews the mark, changes the voters by
//	                                                       a step, plans, commits
//	leader that      lastTurn is 3/4 ttl ago: its lease,   transfers leadership to a voter that
//	cannot plan      Redis or a stable set of nodes is     reports it can plan; stays if there is
//	                 missing                               none
//	leader that is   most live processes do not follow it  drops its server, joins anew, and stands
//	not followed     for 4 ttl, or Raft commits nothing    back for 8 ttl
//	                 for 2 ttl
//	standing back    standBack is in the future            as a follower, and founds no group unless
//	                                                       it is alone
//	outside          outside is in the future              nothing; it has dropped a server with a log
//	                                                       it cannot read, and keeps its assignment
//	alone            no other process has a lease          as a leader, because one voter is a quorum
//
// All of this state may be lost with the process (I8).
type Agent struct {
	cfg     Config
	log     *slog.Logger
	wake    chan struct{}
	changed chan struct{}
	turns   atomic.Uint64                   // number of turns that have ended
	latest  atomic.Pointer[plan.Assignment] // the newest assignment applied, of any record
	info    atomic.Pointer[RaftInfo]
	status  atomic.Pointer[Status]

	// The fields below belong to Run's goroutine.
	server        *server
	servers       int       // Raft servers started or offered by this process
	offered       string    // the server id last offered to bootstrap, "" once it is used
	raw           []byte    // the record as last loaded
	rec           *record   // likewise; nil if there is none or it cannot be read
	highest       uint64    // the highest record id ever seen
	recordMissing time.Time // since when there has been no record, zero while there is a record
	markMissing   time.Time // since when there has been no mark, zero while there is a mark
	patience      time.Duration
	outside       time.Time // until then it joins no group, because it could not read the log of the last group
	unread        error     // why it is outside; nil otherwise
	standBack     time.Time // until then it founds no group, unless it is alone
	holdUntil     time.Time // until then nothing moves, unless every owner is there
	stable        stableSet
	crashes       crashWatch
	readiness     readiness
	failed        time.Time // when the cluster could last not be read
	canPlan       bool      // see couldPlan
	lastTurn      time.Time // when this leader could last plan, or began to lead; zero while it does not
	pending       pending   // this leader's open request to Raft
	pulse         pulse     // whether Raft answers
	hung          string    // what hung; "" once the process follows a leader again
	term          *term     // not nil while this process leads and works
}

// Status describes the process's part in the group for people.
type Status struct {
	Record  uint64   // the cluster record's id, 0 if none is known
	Server  string   // this process's Raft server
	Leader  string   // the leader's server id, "" if none is known
	Leading bool     // this process leads
	Voters  []string // server ids, from the record
	Unread  string   // why it cannot read the group's log, "" if it can
	Hung    string   // which Raft server has hung, "" once the process follows a leader again
}

// New returns an agent, or the error of Validate.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.TTL == 0 {
		cfg.TTL = 6 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	a.latest.Store(&plan.Assignment{})
	a.info.Store(&RaftInfo{})
	a.status.Store(&Status{})
	a.patience = a.startPatience()
	a.stable.hold = cfg.TTL / 3 // two renewals
	a.crashes.ttl, a.readiness.ttl = cfg.TTL, cfg.TTL
	return a, nil
}

func (a *Agent) startPatience() time.Duration { return 2*a.cfg.TTL + rand.N(a.cfg.TTL) }

// Assignment returns the newest assignment this process has applied.
func (a *Agent) Assignment() *plan.Assignment { return a.latest.Load() }

// RaftInfo returns the part of the process's state that it should publish to the others.
func (a *Agent) RaftInfo() RaftInfo {
	info := *a.info.Load()
	info.Applied = a.latest.Load().Generation
	return info
}

// Status returns the process's part in the group.
func (a *Agent) Status() Status { return *a.status.Load() }

// Turns returns the number of turns that have ended. While Run runs it grows several times per lease ttl.
func (a *Agent) Turns() uint64 { return a.turns.Load() }

// Changed returns a channel that holds a value after the assignment, the RaftInfo or the
// status changed. It has one slot and is for one receiver, which receives first and then reads the state.
func (a *Agent) Changed() <-chan struct{} { return a.changed }

// Wake tells the agent that the view or the record may have changed. It never blocks.
func (a *Agent) Wake() { notify(a.wake) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publishAssignment stores an assignment of the state machine. It ignores an older assignment, because
// a new server replays the log from its beginning.
func (a *Agent) publishAssignment(next *plan.Assignment) {
	for {
		was := a.latest.Load()
		if next.Generation.Compare(was.Generation) <= 0 {
			return
		}
		if a.latest.CompareAndSwap(was, next) {
			notify(a.changed)
			return
		}
	}
}

// Run takes part until ctx is done. Then it transfers leadership, waits up to leaveTimeout until it
// has no vote, and returns nil.
func (a *Agent) Run(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.TTL / 6)
	defer tick.Stop()
	for {
		again := a.takeTurn(ctx)
		a.turns.Add(1)
		a.publishStatus()
		var leaderCh <-chan bool
		if a.server != nil {
			leaderCh = a.server.raft.LeaderCh()
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-a.wake:
		case <-leaderCh:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			a.leaveGroup(context.WithoutCancel(ctx))
			return nil
		}
	}
}

// takeTurn reads the record and the cluster once and acts by the process's state. It
// returns the time until the next turn must begin.
func (a *Agent) takeTurn(whole context.Context) time.Duration {
	a.leaveUnread(time.Now())
	a.checkPulse(time.Now())
	view, err := a.readView(whole)
	if err != nil {
		a.recordFailure(whole, "cluster view unknown", err)
		if !a.isLeading() {
			return a.cfg.TTL
		}
		return a.yieldLeadership(whole)
	}
	ctx, cancel := context.WithTimeout(whole, a.cfg.TTL/2)
	defer cancel()
	if err := a.followRecord(ctx, view); err != nil {
		a.recordFailure(whole, "cluster record unknown", err)
	}
	if !a.isLeading() {
		return a.cfg.TTL
	}
	a.publishStatus() // before a plan is published, so that its readers know the leader
	again, err := a.takeLeaderTurn(ctx, view)
	if err != nil {
		a.recordFailure(whole, "leader's turn", err)
	}
	if now := time.Now(); a.isLeading() && a.pending.isStuckFor(now, stuckTTLs*a.cfg.TTL) {
		if err := a.giveUpGroup(now, "raft commits nothing under this leader, so it gives up leadership; check the raft connections of its voters"); err != nil {
			a.recordFailure(whole, "give up leadership", err)
		}
	}
	// A stuck Raft would not commit the transfer either.
	if a.isLeading() && a.untilYield() < again && a.pending.stuckSince.IsZero() {
		again = min(again, a.yieldLeadership(whole))
	}
	return again
}

// readView reads the view and passes it to all watches. A leader waits for Redis no longer than until it
// has to transfer leadership.
func (a *Agent) readView(whole context.Context) (View, error) {
	patience := a.cfg.TTL / 2
	if left := a.untilYield(); a.isLeading() && left > 0 {
		patience = min(patience, max(left, a.cfg.TTL/12))
	}
	ctx, cancel := context.WithTimeout(whole, patience)
	defer cancel()
	view, err := a.cfg.Source.View(ctx)
	if err != nil {
		return View{}, err
	}
	now := time.Now()
	a.stable.observe(now, view.ownerNames())
	a.crashes.observe(now, view.Peers)
	a.readiness.observe(now, view.Peers)
	a.canPlan = a.couldPlan(now, view)
	return view, nil
}

// couldPlan reports whether this process could plan. It can if it has a lease and has read the cluster's
// state for half a ttl without a failure.
func (a *Agent) couldPlan(now time.Time, view View) bool {
	return view.Leased && a.stable.stable && now.Sub(a.failed) >= a.cfg.TTL/2
}

// recordFailure logs a failed read or write of the state that this process plans from, and makes it unable to plan for a while.
func (a *Agent) recordFailure(ctx context.Context, msg string, err error) {
	a.stable.noteFailure()
	a.failed, a.canPlan = time.Now(), false
	ends := ctx.Err() != nil // then Run's end is the cause
	if !ends && (a.cfg.Logged == nil || !a.cfg.Logged(msg, err)) {
		a.log.Warn(msg, "err", err)
	}
}

// publishStatus publishes the RaftInfo and the status if they changed.
func (a *Agent) publishStatus() {
	var info RaftInfo
	var status Status
	if a.rec != nil {
		status.Record, status.Voters = a.rec.ID, a.rec.Voters
	}
	if a.server != nil {
		if a.server.machine.state.Load().record != 0 && a.server.machine.readError() == nil {
			a.unread = nil
		}
		info = RaftInfo{Server: a.server.id, Leader: a.server.leaderID(), CanPlan: a.canPlan}
		status.Server, status.Leader, status.Leading = info.Server, info.Leader, info.Server == info.Leader
	}
	if a.unread != nil {
		status.Unread = a.unread.Error()
	}
	if status.Leader != "" {
		a.hung = ""
	}
	status.Hung = a.hung
	was := a.status.Swap(&status)
	if old := a.info.Swap(&info); *old != info || was.Record != status.Record || was.Hung != status.Hung {
		notify(a.changed)
	}
}
