package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestPushToManyIsBounded checks that one script does only a part of an expensive push. The cost of a push depends on
// the waiting payloads. 1,000 small payloads may move 32,000 others to the spill, or read 16 MiB.
func TestPushToManyIsBounded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for name, c := range map[string]struct {
		payloads, size int
		failed         bool
	}{
		"just below the spill": {payloads: 32, size: 100}, "long records": {payloads: 1, size: 16 << 10},
		"failed": {payloads: 32, size: 10, failed: true}, "failed and longest": {payloads: 1, size: 4000, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, b, func(cfg *Config) { cfg.Cluster = strings.ReplaceAll(name, " ", "-") })
			ids := idsOf("id", 1000)
			r.crowds(c.payloads, c.size, ids...)
			for c.failed {
				p := r.pop(1000)
				var nacks []Nack
				for _, j := range p.Jobs {
					nacks = append(nacks, Nack{Flight: p.Flight, ID: j.ID, Kind: Retry, Delay: time.Hour, Error: strings.Repeat("e", MaxError)})
				}
				_, err := r.claim.Nack(r.ctx, nacks...)
				r.noErr(err)
				c.failed = len(nacks) > 0
			}
			counted(r.c)
			for form, more := range map[string]func(*lowkiq.Push){
				"plain": func(*lowkiq.Push) {}, "scored": score(1), "scheduled": func(p *lowkiq.Push) { p.PerformAt = time.Now().Add(time.Hour) },
			} {
				jobs := make([]lowkiq.Push, len(ids))
				for i := range jobs {
					jobs[i] = job(ids[i], form, more)
				}
				r.push(jobs...)
			}
			t.Log(r.costs())
			for _, id := range []string{ids[0], ids[500], ids[999]} {
				found, _, err := browse.Of(r.q).Job(r.ctx, id)
				r.noErr(err)
				eq(t, "payloads of "+id, len(found.Payloads), c.payloads+3)
			}
		})
	}
}

// TestPushOfAFewThatCoalesceIsBounded checks that a script does only a part of such a push. A few pushes that replace
// many payloads are as much work as many pushes.
func TestPushOfAFewThatCoalesceIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	ids := idsOf("id", 8)
	r.crowds(30, 30_000, ids...)
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}})
	counted(r.c)
	jobs := make([]lowkiq.Push, len(ids))
	for i := range jobs {
		jobs[i] = job(ids[i], "last")
	}
	r.push(jobs...)
	t.Log(r.costs())
	for _, id := range ids {
		eq(t, "payloads of "+id, dataOf(r.find(id, browse.StateReady).Payloads), []string{"last"})
	}
}

// TestPushInPartsKeepsOrder loses a script after another script did a part of a chunk. Then no later payload of the
// chunk is stored before the lost payloads (I3).
func TestPushInPartsKeepsOrder(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	r := newRig(t, &backend{url: proxy.URL()})
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 36}}))
	ids := idsOf("id", 400)
	r.crowds(32, 100, ids...)
	var jobs []lowkiq.Push
	for k := range 4 {
		for _, id := range ids {
			jobs = append(jobs, job(id, fmt.Sprint("new", k)))
		}
	}
	r.noErr(r.c.DB().Load(r.ctx))
	// The cut counts scripts of pushes only, because the client also writes its counts of pushes now and then.
	var scripts atomic.Int64
	proxy.CutRequestOf(func(words []string) bool {
		known := r.c.DB().Scripts
		pushes := len(words) > 1 && (words[1] == known.Push.SHA() || words[1] == known.PushEach.SHA())
		return pushes && scripts.Add(1) == 3
	})
	results, err := r.q.Push(r.ctx, jobs...)
	if !Transient(err) || results[0].Err != nil {
		t.Fatalf("got %v, and %v for the first job, want a lost request after the first part", err, results[0].Err)
	}
	failed := 0
	for i, result := range results {
		switch {
		case result.Err == nil && failed > 0:
			t.Fatalf("job %d was stored after one that was lost", i)
		case result.Err != nil:
			failed++
		}
	}
	eq(t, "the last job was not sent", errors.Is(results[len(results)-1].Err, ErrUnsent), true)
	if n := scripts.Load(); n != 3 {
		t.Errorf("got %d scripts, want none after the one that was lost", n)
	}
	r.push(jobs...)
	results, _ = r.q.Push(r.ctx, job(ids[0], "one too many"))
	eq(t, "full", errors.Is(results[0].Err, ErrTooManyPayloads), true)
	for range ids {
		p := r.pop(1)
		eq(t, p.Jobs[0].ID, dataOf(p.Jobs[0].Payloads[32:]), []string{"new0", "new1", "new2", "new3"})
		r.ack(p.Flight, p.Jobs[0].ID)
	}
}

// TestPushInPartsWithholdsFullIDs checks that an id that is full in one part counts as full in the next part, although
// a worker may have made room meanwhile.
func TestPushInPartsWithholdsFullIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 33}}))
	ids := idsOf("id", 300)
	r.crowds(32, 100, ids...)
	r.push(job(ids[0], "fills it"))
	jobs := []lowkiq.Push{job(ids[0], "refused")}
	for _, id := range ids[1:] {
		jobs = append(jobs, job(id, "new"))
	}
	jobs = append(jobs, job(ids[0], "after it"))
	results, err := r.q.Push(r.ctx, jobs...)
	for i, result := range results {
		switch last := i == len(results)-1; {
		case i == 0 && (!errors.Is(result.Err, ErrTooManyPayloads) || errors.Is(result.Err, ErrUnsent)),
			last && !errors.Is(result.Err, ErrUnsent), i > 0 && !last && result.Err != nil:
			t.Errorf("job %d: got %v", i, result.Err)
		}
	}
	eq(t, "error", errors.Is(err, ErrTooManyPayloads), true)
}
