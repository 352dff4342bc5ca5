package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// testCallWithinMemory checks that a program that bounds the memory of its requests gets long replies as far as there
// is room. Of the others it gets the state, and their tokens return them later.
func testCallWithinMemory(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.serve()
	budget := memory.New(2 << 20)
	account := budget.Account()
	ctx, cancel := context.WithTimeout(memory.WithAccount(r.ctx, account), patience)
	defer cancel()
	jobs := make([]lowkiq.Push, 20)
	for i := range jobs {
		jobs[i] = job(string(rune('a'+i)), "long")
	}
	all, err := r.c.Calls(ctx, "q", 0, jobs...)
	if err != nil {
		t.Fatal(err)
	}
	want, held, kept := strings.Repeat("long", 50_000), 0, 0
	for i := range all {
		switch reply := all[i].Reply; {
		case all[i].Err != nil || reply.State != lowkiq.ReplyDone:
			t.Fatalf("call %d: got %q, %v, want done", i, reply.State, all[i].Err)
		case all[i].Kept:
			kept++
			if reply.Result != nil {
				t.Errorf("call %d: got a result of %d bytes that is kept, want none", i, len(reply.Result))
			}
			later, err := r.c.Reply(r.ctx, "q", jobs[i].ID, reply.Token)
			wantReply(t, "later", later, err, lowkiq.ReplyDone, want)
		default:
			held += len(reply.Result)
			wantReply(t, "at once", reply, nil, lowkiq.ReplyDone, want)
		}
	}
	if held == 0 || kept == 0 || held > 2<<20 || budget.Used() > 2<<20 {
		t.Errorf("got %d bytes of results, %d kept, %d bytes reserved, want some of both, and 2 MiB at most", held, kept, budget.Used())
	}
	account.Close()
	if budget.Used() != 0 {
		t.Errorf("got %d bytes reserved after all, want 0", budget.Used())
	}
	if _, err := r.c.Calls(memory.WithAccount(r.ctx, memory.New(1000).Account()), "q", 0, jobs...); !errors.Is(err, memory.ErrTooLarge) {
		t.Errorf("calls without memory: got %v, want %v", err, memory.ErrTooLarge)
	}
}

var memoryTests = []testCase{{"ReadsWithinMemory", testReadsWithinMemory}}

// testReadsWithinMemory checks that memory is reserved before jobs are read, by their size. A read without room is
// refused and holds no memory.
func testReadsWithinMemory(t *testing.T, b *backend) {
	r := newRig(t, b)
	var jobs []lowkiq.Push
	for i := range 40 {
		jobs = append(jobs, job("large", strings.Repeat(string(rune('a'+i%26)), 100_000+i)))
	}
	r.push(jobs...)
	r.push(job("small", "x"))
	of := browse.Of(r.q)
	within := func(most int64, read func(ctx context.Context) error) (used int64, err error) {
		budget := memory.New(most)
		account := budget.Account()
		defer func() { account.Close() }()
		err = read(memory.WithAccount(r.ctx, account))
		return budget.Used(), err
	}
	readJob := func(id string) func(context.Context) error {
		return func(ctx context.Context) error {
			found, ok, err := of.Job(ctx, id)
			if err == nil && (!ok || id == "large" && len(found.Payloads) != 40) {
				t.Errorf("%s: got %v with %d payloads", id, ok, len(found.Payloads))
			}
			return err
		}
	}
	if used, err := within(1<<20, readJob("large")); !errors.Is(err, memory.ErrTooLarge) || used > 1<<20 || !strings.Contains(err.Error(), "large") {
		t.Errorf("4 MB within 1 MiB: got %v, %d bytes held, want %v that names the job", err, used, memory.ErrTooLarge)
	}
	if used, err := within(64<<20, readJob("large")); err != nil || used < 8_000_000 {
		t.Errorf("4 MB within 64 MiB: got %v, %d bytes reserved, want twice what there is at least", err, used)
	}
	if used, err := within(1<<20, readJob("small")); err != nil || used > 20<<10 {
		t.Errorf("a small job: got %v, %d bytes reserved, want few", err, used)
	}
	for name, read := range map[string]func(context.Context) error{
		"beginning": func(ctx context.Context) error { _, _, err := of.Beginning(ctx, "large"); return err },
		"page":      func(ctx context.Context) error { _, err := of.Page(ctx, browse.Query{}); return err },
		"errors":    func(ctx context.Context) error { _, err := of.Errors(ctx, browse.StateFailed); return err },
		"tags":      func(ctx context.Context) error { _, err := of.Tags(ctx, "", ""); return err },
		"runs":      func(ctx context.Context) error { _, err := of.Runs(ctx, browse.RunQuery{}); return err },
		"stats":     func(ctx context.Context) error { _, err := r.q.Stats(ctx); return err },
		"where":     func(ctx context.Context) error { _, _, err := of.Where(ctx, "large"); return err },
		"reply": func(ctx context.Context) error {
			_, err := r.c.Reply(ctx, "q", "small", strings.Repeat("A", 22))
			return err
		},
	} {
		if _, err := within(100, read); !errors.Is(err, memory.ErrTooLarge) {
			t.Errorf("%s within 100 bytes: got %v, want %v", name, err, memory.ErrTooLarge)
		}
		if used, err := within(64<<20, read); err != nil && !errors.Is(err, lowkiq.ErrNoReply) || used > 8<<20 {
			t.Errorf("%s: got %v, %d bytes reserved, want it read within 8 MiB", name, err, used)
		}
	}
	found, ok, err := of.Beginning(r.ctx, "large")
	if err != nil || !ok || found.Count != 40 || found.Bytes < 4_000_000 || !found.Cut || len(found.Payloads) < 10 || len(found.Payloads) > 12 {
		t.Errorf("the beginning: got %v, %v with %d of %d payloads, %d bytes, cut %v, want about a MiB of 4 MB", ok, err, len(found.Payloads), found.Count, found.Bytes, found.Cut)
	}
}
