package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestLostReplies runs a scenario many times, and each time loses one of its replies or requests. The
// sender repeats it by the rules of section 5 of the design. No job is lost or stranded, and a done job
// stays done.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	calls := 0
	scenario(t, b, nil, &calls)
	if calls < 15 {
		t.Fatalf("script calls of the scenario: got %d, want more", calls)
	}
	// SET renews a lease. All other commands that count are scripts.
	counts := func(words []string) bool {
		word := strings.ToLower(words[0])
		return strings.HasPrefix(word, "eval") || word == "set"
	}
	eachLost(t, server, calls, counts, func(t *testing.T, proxy *redistest.Proxy, _ string, lose func()) {
		lose()
		scenario(t, &backend{url: proxy.URL()}, proxy, new(int))
	})
}

// eachLost runs a subtest for each of the first n requests that count, and for each of their replies. Once
// lose is called, the proxy loses that request or reply. Each subtest has a name of its own for the queue.
func eachLost(t *testing.T, server *redistest.Server, n int, counts func(words []string) bool, run func(t *testing.T, proxy *redistest.Proxy, name string, lose func())) {
	t.Helper()
	for i := 1; i <= n; i++ {
		for _, what := range []string{"reply", "request"} {
			name := fmt.Sprintf("%s-%d", what, i)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := redistest.NewProxy(t, server.Addr())
				cut := proxy.CutReplyOf
				if what == "request" {
					cut = proxy.CutRequestOf
				}
				run(t, proxy, name, func() {
					seen := 0
					cut(func(words []string) bool {
						if counts(words) {
							seen++
						}
						return seen == i
					})
				})
			})
		}
	}
}

// persist repeats an operation while its answer is lost, as a runner does.
func persist(r *rig, calls *int, op func() error) {
	r.t.Helper()
	for range 3 {
		*calls++
		err := op()
		if err == nil {
			return
		}
		if !Transient(err) || !strings.Contains(err.Error(), r.c.Redis()) {
			r.t.Fatalf("got %v, want a transient error with the address %s", err, r.c.Redis())
		}
	}
	r.t.Fatal("three failures, one was asked for")
}

// scenario goes through every operation of a worker, and checks the exact results.
func scenario(t *testing.T, b *backend, proxy *redistest.Proxy, calls *int) {
	c := b.open(t, func(cfg *Config) { cfg.Cluster = strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()) })
	if err := c.DB().Load(t.Context()); err != nil { // or a lost EVALSHA is an EVAL the next time
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: t.Context(), c: c}
	do := func(op func() error) { t.Helper(); persist(r, calls, op) }
	push := func(id, payload string) {
		t.Helper()
		do(func() error { _, err := r.q.Push(r.ctx, job(id, payload)); return err })
	}
	pop := func(want string) (p Popped) {
		t.Helper()
		do(func() (err error) { p, err = r.claim.Pop(r.ctx, PopRequest{IDs: 2, Bytes: 1 << 20}); return err })
		slices.SortFunc(p.Jobs, func(x, y lowkiq.Job) int { return strings.Compare(x.ID, y.ID) })
		eq(t, "popped", show(p.Jobs...), want)
		return p
	}
	do(func() (err error) { r.q, err = c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1}); return err })
	r.s = r.q.Shard(0)
	claim := func(cause Cause) {
		t.Helper()
		r.instances++
		do(func() (err error) { r.claim, err = r.claimOrAdopt(fmt.Sprint("n/", r.instances), cause); return err })
		r.claim.SetJournal(journal.Rule{Runs: journal.All, Keep: 100})
	}
	ended := func(flight int64, text string) Acks { // of a, with a line of its run
		acks := r.answered(flight, "a", text)
		acks.Answers[0].HasNotes = true
		acks.Runs.Add(&journal.Run{ID: "a", Verdict: journal.Done, RetryCount: -1, Result: []byte(text)})
		return acks
	}
	var held *lease.Lease
	do(func() (err error) {
		held, err = c.Leases().Take(r.ctx, "n/1", []byte("id"), []byte("v"), time.Hour)
		return err
	})
	do(func() error { return held.Renew(r.ctx, []byte("v2"), time.Hour) })
	claim(Fresh)
	for _, id := range []string{"a", "b", "c", "d"} {
		push(id, "1")
	}
	do(func() error { _, err := r.q.Push(r.ctx, job("a", "2", replyTo(r.c, "first"))); return err })
	p := pop("a[1 2] b[1]")
	push("a", "3")
	do(func() error {
		return r.claim.Note(r.ctx, Note{Flight: p.Flight, ID: "a", Note: lowkiq.Note{Progress: 0.5, Log: "noted"}})
	})
	do(func() error { _, err := r.claim.Ack(r.ctx, ended(p.Flight, "first")); return err })
	do(func() error {
		_, err := r.claim.Nack(r.ctx, Nack{Flight: p.Flight, ID: "b", Kind: Retry, RetryCount: 0, Delay: time.Hour})
		return err
	})
	p = pop("c[1] d[1]")
	do(func() error {
		_, err := r.claim.Bury(r.ctx, Burial{Flight: p.Flight, ID: "c", Policy: Bury})
		return err
	})
	do(func() error { _, err := r.claim.Ack(r.ctx, Acks{Flight: p.Flight, Rest: true}); return err })
	pop("a[3]")
	claim(Self)
	third := pop("a[3]").Flight
	do(func() error { _, err := r.q.Push(r.ctx, job("a", "4", replyTo(r.c, "second"))); return err })
	do(func() (err error) {
		p, err = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, States: true, Acks: []Acks{{Flight: third, IDs: []string{"a"}}}})
		return err
	})
	eq(t, "popped", show(p.Jobs...), "a[4]")
	eq(t, "its state", stateText(p.Jobs[0].State), "is first")
	do(func() error {
		_, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, Acks: []Acks{ended(p.Flight, "second")}})
		return err
	})
	do(func() error {
		_, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, job("delivered", "1", in(time.Hour)))
		if errors.Is(err, ErrDelivered) {
			return nil // by the request whose answer was lost
		}
		return err
	})
	r.noErr(c.SetRules("q", PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}}))
	for _, payload := range []string{"1", "2"} {
		push("f", payload)
	}
	p = pop("f[2]")
	do(func() error { _, err := r.claim.Nack(r.ctx, Nack{Flight: p.Flight, ID: "f", Kind: Hold}); return err })
	push("f", "3") // joins what is held, and takes its place
	r.noErr(c.SetRules("q", PushRules{}))
	push("f", "4")
	do(func() error { _, err := r.claim.ReleaseHeld(r.ctx, func(string) bool { return false }); return err })
	p = pop("f[3 4]")
	do(func() error {
		_, err := r.claim.Bury(r.ctx, Burial{Flight: p.Flight, ID: "f", Policy: Drop, RetryCount: -1, Expired: 1, Places: []int{0}})
		return err
	})
	p = pop("f[4]")
	do(func() error { _, err := r.claim.Ack(r.ctx, Acks{Flight: p.Flight, IDs: []string{"f"}}); return err })
	do(func() error { _, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "c"); return err })
	pop("c[1]")
	do(func() error {
		_, err := r.claim.Release(r.ctx)
		if f := (*FencedError)(nil); errors.As(err, &f) && f.Owner.Instance == "nobody" {
			return nil // released by the request whose answer was lost
		}
		return err
	})
	if proxy != nil && proxy.Cuts() != 1 {
		t.Errorf("cuts: got %d, want 1", proxy.Cuts())
	}
	r.sum()
}

// claimOrAdopt claims the shard from the owner that it reads. If that owner is the instance itself, it
// adopts the claim.
func (r *rig) claimOrAdopt(instance string, cause Cause) (*Claim, error) {
	seen, err := r.s.Owner(r.ctx)
	if err != nil {
		return nil, err
	}
	if seen.Instance == instance {
		return r.s.Adopt(instance, seen.Fence), nil
	}
	return r.s.Claim(r.ctx, instance, cause, seen)
}

// sum checks the state after the scenario.
func (r *rig) sum() {
	r.t.Helper()
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(r.t, "ready", st.ready, []string{"c"})
	eq(r.t, "jobs", len(st.jobs), 3)
	eq(r.t, "delivered", len(st.jobs["delivered"].Payloads), 1)
	eq(r.t, "runs of a", sketch(r.runs("a")), `a done -1 "" result "second"; a done -1 "" log "noted" result "first"`)
	eq(r.t, "runs of b", sketch(r.runs("b")), `b failed 0 ""`)
	eq(r.t, "runs of c", sketch(r.runs("c")), `c exhausted 0 ""`)
	eq(r.t, "retries", len(st.retry), 1)
	eq(r.t, "retry count", st.jobs["b"].Retry, 0)
	eq(r.t, "morgue", len(st.morgue), 0)
	eq(r.t, "runs of f", sketch(r.runs("f")), `f expired -1 ""`)
	eq(r.t, "processed", st.count["processed"], "5")
	eq(r.t, "states", st.states, map[string]string{"a": "second"})
	for _, token := range []string{"first", "second"} {
		eq(r.t, "reply", r.reply(token), "done\n"+token)
	}
	eq(r.t, "failed", st.count["failed"], "2")
	eq(r.t, "owner", st.claim["instance"], "")
}
