package rebalance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Raft answers a leader when what it asked for is committed, or its leadership is over. While heartbeats pass and entries
// do not, that is never, and nobody would plan. So a turn, which has a deadline, waits for Raft until then and no longer,
// asks for nothing else before there is an answer, and a leader that has waited for stuckTTLs gives the group up.

// stuckTTLs is for how many lease ttls a leader may get nothing committed.
const stuckTTLs = 2

var errOpen = errors.New("raft has not committed it within the turn")

// asked are the requests of a leader to Raft.
type asked struct {
	open  chan error // of the request that has no answer yet; nil = none
	began time.Time  // when that was asked for
	stuck time.Time  // since when nothing has been committed that was asked for; zero = all was
}

// await waits for a request, but no longer than the turn lasts. Then the request stays open: it may be committed
// later.
func (q *asked) await(ctx context.Context, request raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- request.Error() }() // ends with the leadership at the latest, if the server lives so long
	q.open, q.began = answer, time.Now()
	return q.answered(ctx)
}

// answered waits for the request that is open, if there is one, until the turn's time is up. That this process is to
// end does not cut it short: a server that is shut down at the very moment in which it commits never answers.
func (q *asked) answered(ctx context.Context) error {
	if q.open == nil {
		return nil
	}
	deadline, _ := ctx.Deadline()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case err := <-q.open:
		q.open = nil
		if err == nil {
			q.stuck = time.Time{}
		} else {
			q.fail()
		}
		return err
	case <-timer.C:
		q.fail()
		return errOpen
	}
}

func (q *asked) fail() {
	if q.stuck.IsZero() {
		q.stuck = q.began
	}
}

// longStuck reports whether nothing was committed for the patience.
func (q *asked) longStuck(now time.Time, patience time.Duration) bool {
	return !q.stuck.IsZero() && now.Sub(q.stuck) >= patience
}

// entryTimeout is how long Raft may take to let a request into its log: what is left of the turn.
func entryTimeout(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return min(applyTimeout, max(time.Until(deadline), time.Millisecond)) // none at all would be for ever
}

// barrier waits until the state machine has applied what was committed before.
func (a *Agent) barrier(ctx context.Context) error {
	if err := a.asked.answered(ctx); err != nil {
		return fmt.Errorf("raft's answer: %w", err)
	}
	if err := a.asked.await(ctx, a.server.raft.Barrier(entryTimeout(ctx))); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	return nil
}

// change makes one step of the Raft configuration.
func (a *Agent) change(ctx context.Context, c change) error {
	r, id, timeout := a.server.raft, raft.ServerID(c.server), entryTimeout(ctx)
	var request raft.Future
	switch c.kind {
	case addServer:
		request = r.AddNonvoter(id, Address(c.server, c.peer.Address), 0, timeout)
	case promote:
		request = r.AddVoter(id, Address(c.server, c.peer.Address), 0, timeout)
	case demote:
		request = r.DemoteVoter(id, 0, timeout)
	default:
		request = r.RemoveServer(id, 0, timeout)
	}
	return a.asked.await(ctx, request)
}
