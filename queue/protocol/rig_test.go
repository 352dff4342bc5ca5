package protocol_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"

	"github.com/redis/go-redis/v9"
)

// rig is a queue of one shard with its owner, and the steps of most tests. At the end of the test the
// shard's keys must agree with each other.
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

// rigOn returns a rig without an owner.
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
	r.noErr(err)
	r.claim, err = r.s.Claim(r.ctx, fmt.Sprint("n/", r.instances), cause, seen)
	r.noErr(err)
	return r.claim
}

func (r *rig) noErr(err error) {
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

// job makes a push of an id and a payload.
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
	r.noErr(err)
	return results
}

func (r *rig) pop(n int) Popped {
	r.t.Helper()
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: n, Bytes: 1 << 30, MaxCrashes: 3})
	r.noErr(err)
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
	r.noErr(err)
	return n
}

func (r *rig) nack(flight int64, id string, kind NackKind, retry int, delay time.Duration) {
	r.t.Helper()
	n, err := r.claim.Nack(r.ctx, Nack{Flight: flight, ID: id, Kind: kind, RetryCount: retry, Delay: delay, Error: "boom"})
	r.noErr(err)
	eq(r.t, "nacked", n, 1)
}

func (r *rig) bury(flight int64, id string, policy Policy) {
	r.t.Helper()
	n, err := r.claim.Bury(r.ctx, Burial{Flight: flight, ID: id, Policy: policy, RetryCount: 25, Error: "exhausted"})
	r.noErr(err)
	if n != 1 {
		db, k := r.c.DB().ForTests(), r.s.Keys()
		r.t.Errorf("buried: got %d, want 1 of flight %d; the claim is %v, in flight are %q, blocked %q, records %q", n, flight,
			db.HGetAll(r.ctx, k.Claim).Val(), db.LRange(r.ctx, k.Flight, 0, -1).Val(), db.ZRange(r.ctx, k.Blocked, 0, -1).Val(), db.HGetAll(r.ctx, k.Jobs).Val())
	}
}

// receive returns the next message of a subscription, or an error if there is none within the patience.
func (r *rig) receive(sub *redis.PubSub) (*redis.Message, error) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	return sub.ReceiveMessage(ctx)
}

// find returns a job that must be in this state.
func (r *rig) find(id string, state browse.State) browse.Listed {
	r.t.Helper()
	found, ok, err := browse.Of(r.q).Job(r.ctx, id)
	r.noErr(err)
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

// show returns ids with their payloads in order.
func show(jobs ...lowkiq.Job) string {
	var b strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&b, "%s%s ", j.ID, dataOf(j.Payloads))
	}
	return strings.TrimSpace(b.String())
}

// drain pops and acks all due jobs, and returns them.
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

// near fails the test unless a time is about now plus d.
func near(t *testing.T, what string, got time.Time, d time.Duration) {
	t.Helper()
	if off := time.Until(got) - d; off > time.Minute || off < -time.Minute {
		t.Errorf("%s: got %s, want %s from now", what, got, d)
	}
}

// anyOf returns ids as arguments of a script.
func anyOf(ids []string) (args []any) {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}
