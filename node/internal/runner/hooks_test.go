package runner

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHooksHoldNothing checks that a lane holds no slot, no process and no grants of groups while it calls a hook. The rest of
// its batch runs afterwards.
func TestHooksHoldNothing(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"expired": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, 1, func(t *testing.T, p *process) {
				g := newGroupsOfOne(t, func() bool { return false })
				reserve, hooks := processes(1), 0
				hook := func(ctx context.Context, _ *lowkiq.Event) error {
					hooks++
					time.Sleep(time.Second)
					if busy := p.slots.Use().Busy; busy != 0 {
						t.Errorf("%d slots are taken while a hook is called", busy)
					}
					g.mu.Lock()
					if len(g.held) > 0 {
						t.Errorf("groups hold %v while a hook is called", g.held)
					}
					g.mu.Unlock()
					_, leave, err := reserve(ctx)
					if err != nil {
						t.Errorf("no process is free for a hook: %v", err)
						return nil
					}
					leave()
					return nil
				}
				var ran []string
				s := p.add(Queue{
					Rules:  Rules{Rules: rules.Rules{BatchSize: 3, Exhausted: protocol.Bury, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 3}}}, OnBuried: hook},
					Limits: p.limits(nil, g.ask), Reserve: reserve, ProcessWait: testMetrics.Wait,
				}, func(_ context.Context, b *lowkiq.Batch) error {
					answer := lowkiq.Failed{}
					for _, job := range b.Jobs {
						if ran = append(ran, job.ID); job.ID == "g:b" {
							answer[job.ID] = lowkiq.Bury{Reason: "boom"}
						}
					}
					return answer
				})
				s.header = func(id string, _ int) lowkiq.Header {
					if fails || id != "g:b" {
						return ""
					}
					return `{"expires":"1999-01-01T00:00:00Z"}`
				}
				p.give(s, "g:a", "g:b", "g:c")
				time.Sleep(3 * time.Second)
				soon()
				want := []string{"g:a", "g:c"}
				if fails {
					want = []string{"g:a", "g:b", "g:c"}
				}
				if hooks != 1 || !slices.Equal(ran, want) {
					t.Errorf("%d hooks were called, and ran %q; want one, and %q", hooks, ran, want)
				}
				s.has(t, 0, "in the end")
			})
		})
	}
}

// TestRecoveredWaitsForAProcess checks that a hook that needs a process gets one after a takeover, even if all processes are
// busy for longer than a hook may take.
func TestRecoveredWaitsForAProcess(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		reserve, called := processes(1), false
		s := p.add(Queue{Reserve: reserve, ProcessWait: testMetrics.Wait, Rules: Rules{OnRecovered: func(ctx context.Context, e *lowkiq.Event) error {
			if called = true; ctx.Err() != nil || e.Recovered != 3 {
				t.Errorf("it was told of %d jobs, %v; want 3, in time", e.Recovered, ctx.Err())
			}
			return nil
		}}}, func(context.Context, *lowkiq.Batch) error { return nil })
		_, leave, err := reserve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.Lanes.Go(func() {
			p.runners[s.Shard].CallRecoveredHook(&lowkiq.Event{Kind: lowkiq.Recovered, Shard: s.Shard, Recovered: 3})
		})
		time.Sleep(6 * hookTimeout)
		if called {
			t.Error("it was called while no process was free")
		}
		if n := p.runners[s.Shard].Calls(); n != 0 {
			t.Errorf("%d calls keep the shard meanwhile, want none", n)
		}
		leave()
		soon()
		if !called {
			t.Error("it was not called when a process was free")
		}
		_, leave, err = reserve(t.Context())
		if err != nil {
			t.Fatalf("its process was not given back: %v", err)
		}
		leave()
	})
}

// TestHookThatEndsItsGoroutine checks that a lane goes on after a hook that calls runtime.Goexit.
func TestHookThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		good := false
		s := p.add(Queue{Rules: Rules{OnBuried: func(context.Context, *lowkiq.Event) error { runtime.Goexit(); return nil }}}, func(_ context.Context, b *lowkiq.Batch) error {
			if b.Jobs[0].ID == "bad" {
				return lowkiq.Bury{Reason: "boom"}
			}
			good = true
			return nil
		})
		p.give(s, "bad", "good")
		soon()
		if !good {
			t.Error("the shard does not go on")
		}
	})
}

// TestBurialsThatAreLogged checks that a line of the log names the first of the jobs that it counts.
func TestBurialsThatAreLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	p := &Process{Log: slog.New(slog.NewTextHandler(&text, nil)), MayLog: func(string, string) (int, bool) { return 0, true }}
	p.logFailure(&lowkiq.Batch{}, nil, verdict.Outcome{Burials: []protocol.Burial{
		{ID: "late", Policy: protocol.Bury, Expired: 1}, {ID: "person", Policy: protocol.Bury, Cancelled: true}, {ID: "waits", Policy: protocol.Block}, {ID: "dead", Policy: protocol.Skip},
	}})
	got := text.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, `msg="jobs buried" shard=/0 flight=0 jobs=1 of=0 id=dead`) ||
		!strings.Contains(got, `msg="jobs blocked" shard=/0 flight=0 jobs=1 of=0 id=waits`) {
		t.Errorf("got %s, want that dead is buried and waits is blocked", got)
	}
}
