package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"

	"github.com/lowkiq/lowkiq"
)

// rig is a queue of one shard with its owner, and what most tests do to it. At the
// end of the test the shard's keys must agree with each other.
type rig struct {
	t         *testing.T
	ctx       context.Context
	c         *Client
	q         *Queue
	s         *Shard
	claim     *Claim
	instances int
}

func newRig(t *testing.T, b *backend, change ...func(*Config)) *rig {
	t.Helper()
	c := b.open(t, change...)
	r := rigOn(t, c)
	r.own(Fresh)
	return r
}

// rigOn is a rig without an owner.
func rigOn(t *testing.T, c *Client) *rig {
	q := newQueue(t, c, 1)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)}
	t.Cleanup(func() {
		if _, err := readState(r.s, context.WithoutCancel(r.ctx)); err != nil && !t.Failed() {
			t.Errorf("at the end: %v", err)
		}
	})
	return r
}

// own makes a new instance the owner.
func (r *rig) own(cause Cause) *Claim {
	r.t.Helper()
	r.instances++
	seen, err := r.s.Owner(r.ctx)
	r.no(err)
	r.claim, err = r.s.Claim(r.ctx, fmt.Sprint("n/", r.instances), cause, seen)
	r.no(err)
	return r.claim
}

func (r *rig) no(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func eq[V any](t *testing.T, what string, got, want V) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

// job makes "id payload" a push; words after that are options.
func job(id, payload string, options ...func(*lowkiq.Push)) lowkiq.Push {
	p := lowkiq.Push{ID: id, Payload: []byte(payload)}
	for _, f := range options {
		f(&p)
	}
	return p
}

func score(s float64) func(*lowkiq.Push) { return func(p *lowkiq.Push) { p.Score = &s } }

// in sets the due time relative to now.
func in(d time.Duration) func(*lowkiq.Push) {
	return func(p *lowkiq.Push) { p.PerformAt = time.Now().Add(d) }
}

func (r *rig) push(jobs ...lowkiq.Push) []Result {
	r.t.Helper()
	results, err := r.q.Push(r.ctx, jobs...)
	r.no(err)
	return results
}

func (r *rig) pop(n int) Popped {
	r.t.Helper()
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: n, Bytes: 1 << 30, MaxCrashes: 3})
	r.no(err)
	return p
}

// popOne pops one job, which must have this id.
func (r *rig) popOne(id string) (lowkiq.Job, int64) {
	r.t.Helper()
	p := r.pop(1)
	if len(p.Jobs) != 1 || p.Jobs[0].ID != id {
		r.t.Fatalf("pop: got %s, want %s", show(p.Jobs...), id)
	}
	return p.Jobs[0], p.Flight
}

func (r *rig) ack(flight int64, ids ...string) int {
	r.t.Helper()
	n, err := r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: ids})
	r.no(err)
	return n
}

func (r *rig) nack(flight int64, id string, kind NackKind, retry int, delay time.Duration) {
	r.t.Helper()
	n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: kind, RetryCount: retry, Delay: delay, Error: "boom"})
	r.no(err)
	eq(r.t, "nacked", n, 1)
}

func (r *rig) bury(flight int64, id string, policy Policy) {
	r.t.Helper()
	n, err := r.claim.Bury(r.ctx, Burial{Flight: flight, ID: id, Policy: policy, RetryCount: 25, Error: "exhausted"})
	r.no(err)
	eq(r.t, "buried", n, 1)
}

// find returns a job that must be in this state.
func (r *rig) find(id string, state browse.State) browse.Listed {
	r.t.Helper()
	found, ok, err := browse.Of(r.q).Job(r.ctx, id)
	r.no(err)
	if !ok || found.State != state {
		r.t.Fatalf("job %s: got %v, %s, want %s", id, ok, found.State, state)
	}
	return found
}

func (r *rig) gone(id string) {
	r.t.Helper()
	if found, ok, err := browse.Of(r.q).Job(r.ctx, id); err != nil || ok {
		r.t.Fatalf("job %s: got %+v, %v, want none", id, found, err)
	}
}

// show is ids with their payloads in order.
func show(jobs ...lowkiq.Job) string {
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&b, "%s%s ", j.ID, dataOf(j.Payloads))
	}
	return strings.TrimSpace(b.String())
}

// drain pops and acks everything that is due, and returns it.
func (r *rig) drain() (jobs []lowkiq.Job) {
	r.t.Helper()
	for {
		p := r.pop(100)
		if len(p.Jobs) == 0 {
			return jobs
		}
		for _, j := range p.Jobs {
			jobs = append(jobs, j)
			r.ack(p.Flight, j.ID)
		}
	}
}

// near says that a time is about now plus d.
func near(t *testing.T, what string, got time.Time, d time.Duration) {
	t.Helper()
	if off := time.Until(got) - d; off > time.Minute || off < -time.Minute {
		t.Errorf("%s: got %s, want %s from now", what, got, d)
	}
}

// anyOf are ids as arguments of a script.
func anyOf(ids []string) (args []any) {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}
