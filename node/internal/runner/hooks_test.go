package runner

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHooksHoldNothing: while a hook is called, its lane has neither a slot, nor a process, nor what a group lets begin; and what is left of
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
					if busy := p.Slots.Use().Busy; busy != 0 {
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
					Rules:     Rules{BatchSize: 3, Exhausted: queue.Bury, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 3}}, OnBuried: hook},
					AskGroups: g.ask, Reserve: reserve, ProcessWait: testMetrics.Wait,
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

// TestRecoveredWaitsForAProcess: whoever takes a shard over is busy, and a hook that needs a process waits for one for longer than it may take.
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
			p.runners[s.Shard].Recovered(&lowkiq.Event{Kind: lowkiq.Recovered, Shard: s.Shard, Recovered: 3})
		})
		time.Sleep(6 * hookPatience)
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
