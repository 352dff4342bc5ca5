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
)

// Config says how a process takes part. The zero value of a field means its
// default, where one is named.
type Config struct {
	Boot   string        // the run of this process, unique for ever; required
	TTL    time.Duration // lease ttl; 0 = 6 s
	Settle time.Duration // how long joins are collected; 0 = 1 s
	Record Record        // required
	Mark   Mark          // required
	Source Source        // required
	// Transport opens the process's end of a Raft group for one server id; required.
	// A [Listener] gives one for TCP.
	Transport func(server string) (raft.Transport, error)
	Log       *slog.Logger // nil = discard
	// Logged may log an error of Record, Mark or Source itself: where it reports true, the agent does not. May be nil.
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
	case c.TTL < 0 || c.Settle < 0:
		return fmt.Errorf("rebalance: TTL %s and Settle %s must not be negative", c.TTL, c.Settle)
	}
	return nil
}

// Agent is a process's seat in the Raft group that agrees on assignments. Its
// methods may be called from any goroutine, at any time.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	wake    chan struct{}
	changed chan struct{}
	latest  atomic.Pointer[Assignment] // the newest assignment applied, of any record
	seat    atomic.Pointer[Seat]
	status  atomic.Pointer[Status]

	// What follows belongs to Run's goroutine.
	server     *server
	k          int    // Raft servers started or offered by this process
	minted     string // the server id last offered to bootstrap
	raw        []byte // the record as last loaded
	rec        *record
	seen       uint64    // the highest record id ever seen
	recordGone time.Time // since when there has been no record, zero while there is one
	markGone   time.Time // since when there has been no mark, zero while there is one
	patience   time.Duration
	outside    time.Time // joins no group before: it could not read what the last one wrote
	unread     error     // and that is why; nil while it can
	shy        time.Time // founds no group before, unless it is alone
	hold       time.Time // nothing moves before, unless every owner is there
	steady     steady    // watched all the time, so that a new leader knows the set already
	lives      lives     // likewise
	marks      marks     // likewise
	failed     time.Time // when the cluster could last not be read
	planned    time.Time // when this leader last had a whole turn, or began to lead; zero while it does not
	ready      bool      // it could plan; see able
	asked      asked     // of Raft, by this leader
	term       *term     // not nil while this process leads and works
}

// Status is the process's part in the group, for people.
type Status struct {
	Record  uint64   // the cluster record's id, 0 if none is known
	Server  string   // this process's Raft server
	Leader  string   // the leader's server id, "" if none is known
	Leading bool     // this process leads
	Voters  []string // server ids, from the record
	Unread  string   // what it could not read of what the group wrote, "" while it can
}

// New checks the configuration and builds an agent.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.TTL == 0 {
		cfg.TTL = 6 * time.Second
	}
	if cfg.Settle == 0 {
		cfg.Settle = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &Agent{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	a.latest.Store(&Assignment{})
	a.seat.Store(&Seat{})
	a.status.Store(&Status{})
	a.patience = a.startPatience()
	a.steady.hold = cfg.TTL / 3 // two renewals
	a.lives.ttl, a.marks.ttl = cfg.TTL, cfg.TTL
	return a, nil
}

// Assignment returns the newest assignment this process has applied.
func (a *Agent) Assignment() *Assignment { return a.latest.Load() }

// Seat returns what the process should publish of itself.
func (a *Agent) Seat() Seat {
	seat := *a.seat.Load()
	seat.Applied = a.latest.Load().Generation
	return seat
}

// Status returns the process's part in the group.
func (a *Agent) Status() Status { return *a.status.Load() }

// Changed returns a channel that holds a value after the assignment, the seat or the
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
func (a *Agent) publish(next *Assignment) {
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
// leaveTimeout to be let go, and returns nil.
func (a *Agent) Run(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.TTL / 6)
	defer tick.Stop()
	for {
		again := a.step(ctx)
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

// step looks at the record and the cluster once and does what is to be done. It
// returns after how long it wants to be called again at the latest.
func (a *Agent) step(whole context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(whole, a.viewPatience())
	defer cancel()
	a.leaveUnread(time.Now())
	view, err := a.cfg.Source.View(ctx)
	if err != nil {
		a.blind(whole, "cluster view unknown", err)
		if !a.leads() {
			return a.cfg.TTL
		}
		return a.yield(whole)
	}
	a.steady.observe(time.Now(), view.names())
	a.lives.observe(time.Now(), view.Peers)
	a.marks.observe(time.Now(), view.Peers)
	a.ready = a.able(time.Now(), view)
	return a.turn(whole, view)
}

// turn does what a view asks for.
func (a *Agent) turn(whole context.Context, view View) time.Duration {
	ctx, cancel := context.WithTimeout(whole, a.cfg.TTL/2)
	defer cancel()
	if err := a.adopt(ctx, view); err != nil {
		a.blind(whole, "cluster record unknown", err)
	}
	if !a.leads() {
		return a.cfg.TTL
	}
	again, err := a.lead(ctx, view)
	if err != nil {
		a.blind(whole, "leader's turn", err)
	}
	if now := time.Now(); a.leads() && a.asked.longStuck(now, stuckTTLs*a.cfg.TTL) {
		if err := a.abdicate(now, "raft commits nothing under this leader: it gives up; look at the raft connections of its voters"); err != nil {
			a.blind(whole, "leader gives up", err)
		}
	}
	if a.leads() && a.untilYield() < again && a.asked.stuck.IsZero() { // who is to follow would have to hear it
		again = min(again, a.yield(whole))
	}
	return again
}

// blind notes that what this process plans from could not be read, or not be written.
func (a *Agent) blind(ctx context.Context, msg string, err error) {
	a.steady.fail()
	a.failed, a.ready = time.Now(), false
	a.warn(ctx, msg, err)
}

// warn logs an error, unless it comes of Run's end.
func (a *Agent) warn(ctx context.Context, msg string, err error) {
	if ctx.Err() == nil && (a.cfg.Logged == nil || !a.cfg.Logged(msg, err)) {
		a.log.Warn(msg, "err", err)
	}
}

// report publishes seat and status if they changed.
func (a *Agent) report() {
	var seat Seat
	var status Status
	if a.rec != nil {
		status.Record, status.Voters = a.rec.ID, a.rec.Voters
	}
	if a.server != nil {
		if a.server.machine.state.Load().record != 0 && a.server.machine.unread() == nil {
			a.unread = nil
		}
		_, leader := a.server.raft.LeaderWithID()
		seat = Seat{Server: a.server.id, Leader: string(leader), Able: a.ready}
		status.Server, status.Leader, status.Leading = seat.Server, seat.Leader, seat.Server == seat.Leader
	}
	if a.unread != nil {
		status.Unread = a.unread.Error()
	}
	was := a.status.Swap(&status)
	if old := a.seat.Swap(&seat); *old != seat || was.Record != status.Record {
		notify(a.changed)
	}
}

func (a *Agent) startPatience() time.Duration {
	return 2*a.cfg.TTL + rand.N(a.cfg.TTL)
}
