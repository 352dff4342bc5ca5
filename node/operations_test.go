package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/node/internal/runner"
)

// forbidNacks takes the right to a shard's key "journal" away, and so to nack, bury and claim.
// allowAll gives it back.
func forbidNacks(t *testing.T, addr string) {
	t.Helper()
	raw(t, addr, "ACL", "SETUSER", "default", "resetkeys", "~lk:{default}:*", "~lk:{default/*}:[a-ik-z]*", "~lk:{default/*}:jobs")
}

func allowAll(t *testing.T, addr string) {
	t.Helper()
	raw(t, addr, "ACL", "SETUSER", "default", "allkeys")
}

// warnings are what a node's status warns of.
func (r *running) warnings() []string {
	r.t.Helper()
	status, err := r.Cluster().Status(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return status.Warnings
}

func (r *running) warnsOf(op string) func() bool {
	return func() bool {
		return slices.ContainsFunc(r.warnings(), func(w string) bool { return strings.Contains(w, "n1") && strings.Contains(w, op) })
	}
}

// TestNackRefused checks that the job of a nack that Redis refuses stays in flight, without another handler call. The status of
// every node shows it. Once the reason is mended, the work goes on.
func TestNackRefused(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var calls atomic.Int64
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, RetryFunc: func(int) time.Duration { return 0 }},
		func(_ context.Context, b *lowkiq.Batch) error {
			if calls.Add(1) == 1 {
				return errBoom
			}
			if job := b.Jobs[0]; job.RetryCount != 0 {
				t.Errorf("retry count is %d, want 0", job.RetryCount)
			}
			return nil
		}).serving()
	forbidNacks(t, srv.Addr())
	p.push(numbered("a", 0, 1)...)
	await(t, "a warning", run.warnsOf("nack"))
	if got := p.stats().Jobs; got.InFlight != 1 || calls.Load() != 1 {
		t.Errorf("%+v after %d calls, want one job in flight and one call", got, calls.Load())
	}
	if why, err := run.Cluster().Why(t.Context(), p.Queue, "a"); err != nil || !strings.Contains(why.Reason, "NOPERM") {
		t.Errorf("why is it not running: got %q, %v; want what Redis says", why.Reason, err)
	}
	allowAll(t, srv.Addr())
	p.drained()
	await(t, "no warning any more", func() bool { return len(run.warnings()) == 0 })
	if got := p.stats(); got.Failed != 1 || got.Processed != 1 {
		t.Errorf("%d failed, %d processed; want 1, 1", got.Failed, got.Processed)
	}
}

// TestStopWhileRefused checks that a node that must stop does not wait for a refused operation. The release makes the job wait
// again.
func TestStopWhileRefused(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	run := start(t, Config{Redis: srv.URL(), ShutdownTimeout: time.Hour}, QueueConfig{Shards: 1},
		func(context.Context, *lowkiq.Batch) error { return errBoom }).serving()
	forbidNacks(t, srv.Addr())
	p.push(numbered("a", 0, 1)...)
	await(t, "a warning", run.warnsOf("nack"))
	run.stop()
	if got := p.stats(); got.Jobs.Ready != 1 || got.Failed != 0 {
		t.Errorf("%+v, %d failed; want one ready, none failed", got.Jobs, got.Failed)
	}
}

// TestPopRefused checks that a shard that cannot be popped is claimed anew, because Redis may have forgotten its operations.
func TestPopRefused(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, nothing).serving()
	in, shard := run.instance(), lowkiq.Shard{Queue: "orders"}
	after := func(fence int64) (now *runner.Runner) {
		await(t, "the shard is claimed anew", func() bool {
			r := in.claims.Get(shard)
			if r == nil || r.Runner.Fence <= fence {
				return false
			}
			now = r.Runner
			return true
		})
		return now
	}
	first := after(0)
	raw(t, srv.Addr(), "SET", "lk:{default/orders/1/0/Oko}:ready", "no_list")
	first.Wake()
	await(t, "a warning", run.warnsOf("pop"))
	after(first.Fence)
	raw(t, srv.Addr(), "DEL", "lk:{default/orders/1/0/Oko}:ready")
	p.push(numbered("a", 0, 1)...)
	p.drained()
	await(t, "no warning any more", func() bool { return len(run.warnings()) == 0 })
}

// TestRefusals checks the texts of many refusals in a lease.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := &stuckOps{}
	shard := func(i int) lowkiq.Shard { return lowkiq.Shard{Queue: "orders", Index: i} }
	if f.endRefusal(shard(0), "nack") || len(f.refusalTexts()) != 0 || f.some.Load() {
		t.Errorf("nothing was refused: got %q", f.refusalTexts())
	}
	for i := range 5 {
		if !f.addRefusal(shard(i), "nack", fmt.Errorf("%d: %s", i, strings.Repeat("x", 2*maxRefusalBytes)), 0) {
			t.Errorf("refusal %d is no news", i)
		}
	}
	if f.addRefusal(shard(0), "nack", errors.New("0: again"), 0) {
		t.Error("the same refusal is news again")
	}
	f.addRefusal(shard(0), "ack", errBoom, 0)
	got := f.refusalTexts()
	if len(got) != maxRefusals+1 || got[0] != "0: again" || len(got[1]) != maxRefusalBytes || got[maxRefusals] != "3 more" {
		t.Errorf("got %q", got)
	}
	if !f.endRefusal(shard(0), "nack") {
		t.Error("the end of a refusal is no news")
	}
	if got := f.refusalTexts()[0]; got[:2] != "1:" {
		t.Errorf("got %q, want it without the one that ended", got)
	}
	for i := range 5 {
		f.forgetShard(shard(i))
	}
	if len(f.refusalTexts()) != 0 || f.some.Load() {
		t.Errorf("got %q, want nothing", f.refusalTexts())
	}
}
