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

// Config says how a process takes part. The zero value of a field means its
// default, where one is named.
type Config struct {
	Boot   string        // the run of this process, unique for ever; required
	TTL    time.Duration // lease ttl; 0 = 6 s
	Record Record        // required
	Mark   Mark          // required
	Source Source        // required
	// Transport opens the process's end of a Raft group for one server id; required.
	// A [Listener] gives one for TCP.
	Transport func(server string) (raft.Transport, error)
	Log       *slog.Logger // nil = discard
	// Logged may log an error of Record, Mark or Source itself: where it reports true, the agent
	// does not. May be nil.
	Logged func(msg string, err error) bool

	refuse func(entry []byte) error // for tests: an older release, which cannot read some entries
}

// Validate names what is missing or out of range.
func (c Config) Validate() error {
	switch {
	case c.Boot == "":
		return errors.New("rebalance: Boot is empty; want an id made at start")
	case c.Record == nil || c.Mark == nil || c.Source == nil || c.Transport == nil:
		return errors.New("rebalance: Record, Mark, Source and Transport are required")
	case c.TTL < 0:
		return fmt.Errorf("rebalance: TTL %s must not be negative", c.TTL)
	}
	return nil
}

// Agent is a process's part in the Raft group that agrees on assignments. Its
// methods may be called from any goroutine, at any time.
//
// Run takes turns. A turn reads the view, the record and the mark, and does what the
// process's state asks for:
//
//	state            what holds                            what a turn does
//	---------------  ------------------------------------  -----------------------------------------
//	no record        rec is nil                            creates one and bootstraps, unless a
//	                                                       leader is known, which writes its own
//	                                                       back
//	to join          server is nil, or of another record   drops it, starts one under the record
//	follower         server is of the record, another      nothing; refounds the group when the mark
//	                 leads                                 is gone, and with it a majority of the
//	                                                       voters or some time (decide)
//	candidate        server is of the record, none leads   as a follower; the election is Raft's
//	new leader       server leads, term is nil             prepare: applies what was committed
//	                                                       before, writes the first entry of a new
//	                                                       record
//	leader           server leads, term is set             renews the mark, changes the voters by
//	                                                       one step, plans, commits
//	leader that      lastTurn is 3/4 ttl ago: its lease,   yield: hands leadership to a voter that
//	cannot plan      Redis or a stable set of nodes is     says it could plan; stays if there is
//	                 missing                               none
//	leader that is   most live processes do not follow it  resigns: drops its server, joins anew,
//	not followed     for 4 ttl, or Raft commits nothing    and stands back for 8 ttl
//	                 for 2 ttl
//	standing back    standBack is in the future            as a follower, and founds no group unless
//	                                                       it is alone
//	outside          outside is in the future              none: it has dropped a server whose log
//	                                                       it cannot read, and keeps its assignment
//	alone            no other process has a lease          as a leader: one voter is a quorum
//
// Every state but the last turn's writes is lost with the process, and may be (I8).
type Agent struct {
	cfg     Config
	log     *slog.Logger
	wake    chan struct{}
	changed chan struct{}
	turns   atomic.Uint64                   // how many have ended
	latest  atomic.Pointer[plan.Assignment] // the newest assignment applied, of any record
	info    atomic.Pointer[RaftInfo]
	status  atomic.Pointer[Status]

	// What follows belongs to Run's goroutine.
	server        *server
	servers       int       // Raft servers started or offered by this process
	offered       string    // the server id last offered to bootstrap, "" once it is used
	raw           []byte    // the record as last loaded
	rec           *record   // likewise; nil if there is none, or none that can be read
	highest       uint64    // the highest record id ever seen
	recordMissing time.Time // since when there has been no record, zero while there is one
	markMissing   time.Time // since when there has been no mark, zero while there is one
	patience      time.Duration
	outside       time.Time // joins no group before: it could not read what the last one wrote
	unread        error     // and that is why; nil while it can
	standBack     time.Time // founds no group before, unless it is alone
	holdUntil     time.Time // nothing moves before, unless every owner is there
	stable        stableSet
	crashes       crashWatch
	readiness     readiness
	failed        time.Time // when the cluster could last not be read
	canPlan       bool      // it could plan; see couldPlan
	lastTurn      time.Time // when this leader could last plan, or began to lead; zero while it does not
	pending       pending   // what this leader has asked of Raft
	pulse         pulse     // whether Raft answers
	hung          string    // what hung, "" once the process follows a leader again
	term          *term     // not nil while this process leads and works
}

// Status is the process's part in the group, for people.
type Status struct {
	Record  uint64   // the cluster record's id, 0 if none is known
	Server  string   // this process's Raft server
	Leader  string   // the leader's server id, "" if none is known
	Leading bool     // this process leads
	Voters  []string // server ids, from the record
	Unread  string   // what it could not read of what the group wrote, "" while it can
	Hung    string   // what of Raft has hung, "" once the process follows a leader again
}

// New checks the configuration and builds an agent.
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

// RaftInfo returns what the process should publish of itself.
func (a *Agent) RaftInfo() RaftInfo {
	info := *a.info.Load()
	info.Applied = a.latest.Load().Generation
	return info
}

// Status returns the process's part in the group.
func (a *Agent) Status() Status { return *a.status.Load() }

// Turns returns how many turns have ended. While Run runs the number grows several times in a lease ttl.
func (a *Agent) Turns() uint64 { return a.turns.Load() }

// Changed returns a channel that holds a value after the assignment, the RaftInfo or the
// status changed. It has one slot for one receiver: read, then look.
func (a *Agent) Changed() <-chan struct{} { return a.changed }

// Wake tells the agent that the view or the record may have changed. It never blocks.
func (a *Agent) Wake() { notify(a.wake) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publish takes an assignment from the state machine. An older one is ignored: the
// log of a restarted server is replayed from its beginning.
func (a *Agent) publish(next *plan.Assignment) {
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

// Run takes part until ctx is done; then it hands over leadership, waits up to
// leaveTimeout until it has no vote any more, and returns nil.
func (a *Agent) Run(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.TTL / 6)
	defer tick.Stop()
	for {
		again := a.turn(ctx)
		a.turns.Add(1)
		a.report()
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
			a.leave(context.WithoutCancel(ctx))
			return nil
		}
	}
}

// turn looks at the record and the cluster once and does what is to be done. It
// returns after how long the next turn is due at the latest.
func (a *Agent) turn(whole context.Context) time.Duration {
	a.leaveUnread(time.Now())
	a.checkPulse(time.Now())
	view, err := a.look(whole)
	if err != nil {
		a.fail(whole, "cluster view unknown", err)
		if !a.leads() {
			return a.cfg.TTL
		}
		return a.yield(whole)
	}
	ctx, cancel := context.WithTimeout(whole, a.cfg.TTL/2)
	defer cancel()
	if err := a.followRecord(ctx, view); err != nil {
		a.fail(whole, "cluster record unknown", err)
	}
	if !a.leads() {
		return a.cfg.TTL
	}
	a.report() // who looks at an assignment is to know who made it
	again, err := a.lead(ctx, view)
	if err != nil {
		a.fail(whole, "leader's turn", err)
	}
	if now := time.Now(); a.leads() && a.pending.stuckFor(now, stuckTTLs*a.cfg.TTL) {
		if err := a.resign(now, "raft commits nothing under this leader: it gives up; look at the raft connections of its voters"); err != nil {
			a.fail(whole, "leader gives up", err)
		}
	}
	// While Raft is stuck it would not commit to its successor either.
	if a.leads() && a.untilYield() < again && a.pending.stuckSince.IsZero() {
		again = min(again, a.yield(whole))
	}
	return again
}

// look reads the view, and has all watches take it in. A leader that waits for Redis must
// not miss the moment to hand over.
func (a *Agent) look(whole context.Context) (View, error) {
	patience := a.cfg.TTL / 2
	if left := a.untilYield(); a.leads() && left > 0 {
		patience = min(patience, max(left, a.cfg.TTL/12))
	}
	ctx, cancel := context.WithTimeout(whole, patience)
	defer cancel()
	view, err := a.cfg.Source.View(ctx)
	if err != nil {
		return View{}, err
	}
	now := time.Now()
	a.stable.observe(now, view.owners())
	a.crashes.observe(now, view.Peers)
	a.readiness.observe(now, view.Peers)
	a.canPlan = a.couldPlan(now, view)
	return view, nil
}

// couldPlan reports whether this process could plan: it has read the cluster's state for a
// while without a failure, and has a lease.
func (a *Agent) couldPlan(now time.Time, view View) bool {
	return view.Leased && a.stable.stable && now.Sub(a.failed) >= a.cfg.TTL/2
}

// fail notes that what this process plans from could not be read, or not be written.
func (a *Agent) fail(ctx context.Context, msg string, err error) {
	a.stable.fail()
	a.failed, a.canPlan = time.Now(), false
	ends := ctx.Err() != nil // then the error comes of Run's end
	if !ends && (a.cfg.Logged == nil || !a.cfg.Logged(msg, err)) {
		a.log.Warn(msg, "err", err)
	}
}

// report publishes the RaftInfo and the status if they changed.
func (a *Agent) report() {
	var info RaftInfo
	var status Status
	if a.rec != nil {
		status.Record, status.Voters = a.rec.ID, a.rec.Voters
	}
	if a.server != nil {
		if a.server.machine.state.Load().record != 0 && a.server.machine.unread() == nil {
			a.unread = nil
		}
		info = RaftInfo{Server: a.server.id, Leader: a.server.leader(), CanPlan: a.canPlan}
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
