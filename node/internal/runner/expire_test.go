package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestExpire checks that expired payloads end before the call. The other ids of the batch run in the call, and the other
// payloads of the job come back as they were.
func TestExpire(t *testing.T) {
	t.Parallel()
	for _, to := range []rules.ExpireTo{"", rules.ExpireDrop} {
		calmly(t, 10, func(t *testing.T, p *process) {
			var ran []string
			s := p.add(Queue{Rules: Rules{Rules: rules.Rules{BatchSize: 4, Expire: rules.Expire{To: to}}}}, func(_ context.Context, b *lowkiq.Batch) error {
				for _, job := range b.Jobs {
					for _, payload := range job.Payloads {
						ran = append(ran, job.ID+string(payload.Data))
					}
				}
				return nil
			})
			s.header = func(_ string, n int) lowkiq.Header {
				if n != 1 {
					return ""
				}
				return `{"expires":"1999-01-01T00:00:00Z"}`
			}
			for _, push := range []struct {
				id string
				n  int
			}{{"a", 0}, {"b", 1}, {"c", 0}, {"c", 1}, {"c", 2}, {"d", 0}} {
				s.push(push.id, push.n)
			}
			p.wake(s)
			soon()
			s.has(t, 0, "at the end")
			if got := strings.Join(ran, " "); got != "a0 d0 c0 c2" {
				t.Errorf("ran %s, want a0 d0 c0 c2", got)
			}
			policy := protocol.Bury
			if to == rules.ExpireDrop {
				policy = protocol.Drop
			}
			if got, want := fmt.Sprint(s.expired), fmt.Sprintf("[b[]%s c[1]%s]", policy, policy); got != want {
				t.Errorf("expired %s, want %s", got, want)
			}
		})
	}
}

// TestStuck checks that a call without a note for too long is cancelled and has failed. Each note starts the time again.
func TestStuck(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var cause error
		var took time.Duration
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{StuckAfter: time.Second, HandlerTimeout: time.Hour}}}, func(ctx context.Context, b *lowkiq.Batch) error {
			began := time.Now()
			for range 3 {
				time.Sleep(900 * time.Millisecond)
				if err := b.Note(ctx, "a", lowkiq.Note{Progress: 0.5}); err != nil {
					t.Error(err)
				}
			}
			<-ctx.Done()
			took, cause = time.Since(began), context.Cause(ctx)
			return nil
		})
		p.give(s, "a")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !errors.Is(cause, lowkiq.ErrStuck) || took < 3700*time.Millisecond || took > 3800*time.Millisecond {
			t.Errorf("ended after %s by %v, want 3.7s and ErrStuck", took, cause)
		}
		if got := p.text(s, "a"); got != "stuck: no note for 1s" {
			t.Errorf("failed with %q", got)
		}
	})
}

// TestStuckAsksRedis checks that notes of an endpoint to another node count, and that a Redis that does not answer ends no
// call.
func TestStuckAsksRedis(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var cause error
		var took time.Duration
		s := p.add(Queue{Rules: Rules{Rules: rules.Rules{StuckAfter: time.Second}}}, func(ctx context.Context, b *lowkiq.Batch) error {
			began, claim := time.Now(), p.runners[b.Shard].claim.(*noting)
			for range 3 {
				time.Sleep(900 * time.Millisecond)
				claim.last.Store(&lastNote{at: p.RedisTime(p.Now())})
			}
			claim.last.Store(&lastNote{err: context.DeadlineExceeded})
			time.Sleep(5 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("ended by %v while Redis did not answer", context.Cause(ctx))
			}
			claim.last.Store(&lastNote{at: p.RedisTime(p.Now())})
			<-ctx.Done()
			took, cause = time.Since(began), context.Cause(ctx)
			return cause
		})
		p.give(s, "a")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if !errors.Is(cause, lowkiq.ErrStuck) || took < 8700*time.Millisecond || took > 8800*time.Millisecond {
			t.Errorf("ended after %s by %v, want 8.7s and ErrStuck", took, cause)
		}
	})
}
