package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
)

var protocolTests = []testCase{
	{"Protocol_PopNumbers", testPopNumbers},
	{"Protocol_RepeatedPopAfterAcks", testPopAfterAcks},
	{"Protocol_LateAcksTouchNothing", testLateAcks},
	{"Protocol_AckNamesAnIDTwice", testAckTwice},
	{"Protocol_Fenced", testFenced},
	{"Protocol_StaleClaimAndHeld", testStaleClaim},
	{"Protocol_LostAnswerToAClaim", testAdoptClaim},
	{"Protocol_ExpiredLease", testExpiredLease},
	{"Protocol_NoScript", testNoScript},
	{"Protocol_PopBounds", testPopBounds},
}

// popAs sends a pop with a number of the test's choice.
func (r *rig) popAs(number int64, req PopRequest) (Popped, error) {
	c := r.s.Adopt(r.claim.Instance, r.claim.Fence)
	c.WithLastPop(number - 1)
	return c.Pop(r.ctx, req)
}

func testPopNumbers(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"), job("c", "1"), job("d", "1"))
	req := PopRequest{IDs: 2, Bytes: 1 << 20}
	for _, c := range []struct {
		number int64
		ack    string
		want   string
		open   string
	}{
		{1, "", "a[1] b[1]", "[1]"},
		{1, "", "a[1] b[1]", "[1]"},
		{1, "a", "b[1]", "[1]"},
		{2, "", "c[1] d[1]", "[1 2]"},
		{1, "", "", "[1 2]"}, // lower: a request that comes late
		{2, "", "c[1] d[1]", "[1 2]"},
		{3, "", "", "[1 2]"}, // empty, and stored all the same
		{4, "", "", "[1 2]"},
		{3, "", "", "[1 2]"},
	} {
		if c.ack != "" {
			r.ack(c.number, c.ack)
		}
		p, err := r.popAs(c.number, req)
		r.noErr(err)
		slices.Sort(p.Open)
		slices.SortFunc(p.Jobs, func(x, y lowkiq.Job) int { return int(x.ID[0]) - int(y.ID[0]) })
		eq(t, fmt.Sprint("pop ", c.number, " after ack of ", c.ack), show(p.Jobs...)+fmt.Sprint(p.Open), c.want+c.open)
	}
	if _, err := r.popAs(6, req); err == nil {
		t.Error("pop 6 after 4: got nil, want an error")
	}
	r.push(job("e", "1"))
	p, err := r.popAs(5, req)
	r.noErr(err)
	eq(t, "pop 5", show(p.Jobs...), "e[1]")
}

// testPopAfterAcks checks that the acks of a repeated pop do nothing, also for an id that the same pop took again.
func testPopAfterAcks(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.push(job("a", "2"))
	req := PopRequest{IDs: 2, Bytes: 1 << 20, Acks: []Acks{{Flight: flight, IDs: []string{"a"}}}}
	for range 3 {
		p, err := r.popAs(flight+1, req)
		r.noErr(err)
		eq(t, "popped", show(p.Jobs...), "a[2]")
	}
	stats, err := r.q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "processed", stats.Processed, 1)
}

func testLateAcks(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	_, old := r.popOne("a")
	r.nack(old, "a", Return, 0, 0)
	_, flight := r.popOne("a")
	eq(t, "ack of the old flight", r.ack(old, "a"), 0)
	n, err := r.claim.Nack(r.ctx, Nack{Flight: old, ID: "a", Kind: Retry})
	r.noErr(err)
	eq(t, "nack of the old flight", n, 0)
	n, err = r.claim.Bury(r.ctx, Burial{Flight: old, ID: "a", Policy: Bury})
	r.noErr(err)
	eq(t, "bury of the old flight", n, 0)
	eq(t, "ack of a stranger", r.ack(flight, "b"), 0)
	eq(t, "still in flight", r.find("a", browse.StateInFlight).Flight, flight)
	eq(t, "ack", r.ack(flight, "a"), 1)
	eq(t, "ack again", r.ack(flight, "a"), 0)
	r.gone("a")
}

func testAckTwice(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	p := r.pop(2)
	r.push(job("a", "2"))
	eq(t, "acked", r.ack(p.Flight, "a", "a"), 1)
	eq(t, "b stays in flight", r.find("b", browse.StateInFlight).Flight, p.Flight)
	eq(t, "a comes back once", show(r.drain()...), "a[2]")
}

// testFenced checks that an instance that lost its claim may not work on the shard, and an instance that claimed it
// anew may not by its earlier claim. Late requests of both may still be on their way.
func testFenced(t *testing.T, b *backend) {
	for name, again := range map[string]bool{"another instance": false, "the same instance": true} {
		t.Run(name, func(t *testing.T) { fencedBy(t, b, again) })
	}
}

func fencedBy(t *testing.T, b *backend, again bool) {
	r := newRig(t, b)
	r.push(job("a", "1"), job("b", "1"))
	_, flight := r.popOne("a")
	old := r.claim
	if again {
		_, err := old.Release(r.ctx)
		r.noErr(err)
		r.instances-- // it is the same one
		r.own(Fresh)
	} else {
		r.own(Seize)
	}
	holder := r.claim.Instance
	before := r.dump()
	operations := map[string]func() error{
		"pop": func() error { _, err := old.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1}); return err },
		"pop with ack": func() error {
			_, err := old.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, Acks: []Acks{{Flight: flight, IDs: []string{"a"}}}})
			return err
		},
		"ack":      func() error { _, err := old.Ack(r.ctx, Acks{Flight: flight, IDs: []string{"a"}}); return err },
		"ack rest": func() error { _, err := old.Ack(r.ctx, Acks{Flight: flight, Rest: true}); return err },
		"nack":     func() error { _, err := old.Nack(r.ctx, Nack{Flight: flight, ID: "a", Kind: Return}); return err },
		"bury":     func() error { _, err := old.Bury(r.ctx, Burial{Flight: flight, ID: "a", Policy: Skip}); return err },
		"release":  func() error { _, err := old.Release(r.ctx); return err },
	}
	for name, op := range operations {
		err := op()
		var f *FencedError
		if !errors.Is(err, lowkiq.ErrFenced) || !errors.As(err, &f) || f.Owner != (Owner{holder, r.claim.Fence}) {
			t.Errorf("%s: got %v, want %v by %s", name, err, lowkiq.ErrFenced, holder)
		}
		if Transient(err) || Unreachable(err) {
			t.Errorf("%s: %v is transient, want final", name, err)
		}
	}
	eq(t, "redis after refused operations", r.dump(), before)
	_, err := r.claim.Release(r.ctx)
	r.noErr(err)
	_, err = r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: []string{"a"}})
	if !errors.Is(err, lowkiq.ErrFenced) {
		t.Errorf("ack without an owner: got %v, want %v", err, lowkiq.ErrFenced)
	}
}

// dump returns everything that Redis stores of the shard and the cluster.
func (r *rig) dump() string {
	r.t.Helper()
	raw, err := readRaw(r.s, r.ctx)
	r.noErr(err)
	registry, err := r.c.DB().ForTests().HGetAll(r.ctx, r.c.DB().Keys.Queues()).Result()
	r.noErr(err)
	return fmt.Sprintf("%q %q %q %q %q %q %q %q %q %q %q %v %v %v %v %q %q %v %q %q", raw.jobs.Val(), raw.parked.Val(), raw.morgue.Val(), raw.crashes.Val(),
		raw.count.Val(), raw.claim.Val(), raw.spillx.Val(), raw.ready.Val(), raw.suspects.Val(), raw.spill.Val(), raw.flight.Val(),
		raw.due.Val(), raw.retry.Val(), raw.blocked.Val(), raw.dead.Val(), registry, raw.states.Val(), raw.statesx.Val(), raw.progress.Val(), raw.from.Val())
}

func testStaleClaim(t *testing.T, b *backend) {
	r := newRig(t, b)
	seen, err := r.s.Owner(r.ctx)
	r.noErr(err)
	eq(t, "owner", seen, Owner{"n/1", r.claim.Fence})
	for name, try := range map[string]struct {
		cause Cause
		seen  Owner
	}{
		"fresh, held":         {Fresh, seen},
		"an older fence":      {Seize, Owner{"n/1", seen.Fence - 1}},
		"another holder":      {Seize, Owner{"n/0", seen.Fence}},
		"never owned":         {Fresh, Owner{}},
		"released since read": {Fresh, Owner{"", seen.Fence}},
	} {
		if _, err := r.s.Claim(r.ctx, "x/1", try.cause, try.seen); !errors.Is(err, ErrHeld) {
			t.Errorf("%s: got %v, want %v", name, err, ErrHeld)
		}
	}
	_, err = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1})
	r.noErr(err)
	// Fences grow even if Redis lost the counter.
	r.noErr(r.c.DB().ForTests().Del(r.ctx, r.s.Keys().Claim).Err())
	old := r.claim.Fence
	until(t, "the next millisecond", func() bool { now, err := r.c.Time(r.ctx); return err == nil && now.UnixMilli() > old })
	r.own(Fresh)
	if r.claim.Fence <= old {
		t.Errorf("fence: got %d after %d, want more", r.claim.Fence, old)
	}
}

// testAdoptClaim loses the answer to a claim. Its sender reads the owner again and finds itself.
func testAdoptClaim(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	owner, err := r.s.Owner(r.ctx)
	r.noErr(err)
	r.claim = r.s.Adopt(owner.Instance, owner.Fence)
	_, flight := r.popOne("a")
	eq(t, "acked", r.ack(flight, "a"), 1)
}

func testExpiredLease(t *testing.T, b *backend) {
	c := b.open(t)
	ctx := t.Context()
	held, err := c.Leases().Take(ctx, "n/1", []byte("id"), []byte("v1"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leases().Take(ctx, "n/1", []byte("id"), []byte("v1"), time.Hour); err != nil {
		t.Errorf("a lease taken again because the answer was lost: got %v, want none", err)
	}
	for _, other := range [][2]string{{"id", "v2"}, {"di", "v1"}} {
		if _, err := c.Leases().Take(ctx, "n/1", []byte(other[0]), []byte(other[1]), time.Hour); err == nil {
			t.Errorf("a second lease of one instance, %s: got nil, want an error", other)
		}
	}
	if err := held.Renew(ctx, []byte("v2"), 30*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	until(t, "the lease expired", func() bool {
		in, err := c.Leases().Instance(ctx, "n/1")
		return in.Lease == nil && err == nil
	})
	for range 2 {
		if err := held.Renew(ctx, []byte("v3"), time.Hour); !errors.Is(err, lease.ErrGone) || Transient(err) {
			t.Errorf("renewal of an expired lease: got %v, want %v", err, lease.ErrGone)
		}
	}
	in, err := c.Leases().Instance(ctx, "n/1")
	eq(t, "instance", fmt.Sprintf("%s %s %v", in.Identity, in.Lease, err), "id  <nil>")
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// testNoScript makes Redis forget the scripts. Single calls and pipelines load them again.
func testNoScript(t *testing.T, b *backend) {
	r := newRig(t, b)
	forget := func() {
		t.Helper()
		r.noErr(r.c.DB().EachMaster(r.ctx, func(ctx context.Context, master *redisdb.DB) error { return master.ForTests().ScriptFlush(ctx).Err() }))
	}
	q, err := r.c.Register(r.ctx, lowkiq.Queue{Name: "wide", Shards: 3})
	r.noErr(err)
	many := 10_000
	if b.mini {
		many = 5000 // it answers a pipeline as a whole, which must be within the client's patience
	}
	var jobs []lowkiq.Push
	for i := range many {
		jobs = append(jobs, job(fmt.Sprint("id", i%50), fmt.Sprint(i)))
	}
	forget()
	_, err = q.Push(r.ctx, jobs...) // a pipeline, several scripts of each shard
	r.noErr(err)
	forget()
	stats, err := q.Stats(r.ctx)
	r.noErr(err)
	eq(t, "ids", stats.Jobs.Ready, 50)
	for id := range 50 {
		found, _, err := browse.Of(q).Job(r.ctx, fmt.Sprint("id", id))
		r.noErr(err)
		for i, p := range found.Payloads {
			if got, want := string(p.Data), fmt.Sprint(id+50*i); got != want {
				t.Fatalf("payload %d of id%d: got %s, want %s (push order)", i, id, got, want)
			}
		}
	}
	forget()
	r.push(job("a", "1"))
	forget()
	_, flight := r.popOne("a")
	forget()
	eq(t, "acked", r.ack(flight, "a"), 1)
	forget()
	r.own(Self)
}

func testPopBounds(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(job("a", "1"))
	for _, n := range []int{-1, 0, 1001} {
		if _, err := r.claim.Pop(r.ctx, PopRequest{IDs: n, Bytes: 1}); err == nil {
			t.Errorf("pop %d jobs: got nil, want an error", n)
		}
	}
	p := r.pop(1000)
	eq(t, "popped", show(p.Jobs...), "a[1]")
	// The size of a pop is bounded, but one job always fits.
	r.push(job("b", "12345"), job("c", "12345"), job("d", "12345"))
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1})
	r.noErr(err)
	eq(t, "popped", show(p.Jobs...), "b[12345]")
	eq(t, "left", p.Ready, 2)
	eq(t, "in order", show(r.drain()...), "c[12345] d[12345]")
}
