package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestExpiredPlaces: which payloads of a job have expired.
func TestExpiredPlaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	header := func(d time.Duration) lowkiq.Header {
		return lowkiq.Header(`{"expires":"` + now.Add(d).Format(time.RFC3339) + `"}`)
	}
	ago := func(d time.Duration) float64 { return float64(now.Add(-d).Unix()) }
	for _, c := range []struct {
		name     string
		after    time.Duration
		due      time.Duration // before now
		payloads []lowkiq.Payload
		want     []int
	}{
		{"no rule, no header", 0, 1000 * time.Hour, []lowkiq.Payload{{}, {Header: `{"tag":"expires"}`}}, nil},
		{"header", 0, 0, []lowkiq.Payload{{Header: header(-time.Second)}, {Header: header(time.Second)}, {Header: header(0)}}, []int{0, 2}},
		{"header in seconds", 0, 0, []lowkiq.Payload{{Header: `{"expires":"1699999999.5"}`}, {Header: `{"expires":"1700000001"}`}}, []int{0}},
		{"a header that says nothing", time.Hour, time.Minute, []lowkiq.Payload{{Header: `{"expires":"soon"}`}, {Header: `{"expires`}}, nil},
		{"the rule", time.Hour, time.Hour, []lowkiq.Payload{{}, {}}, []int{0, 1}},
		{"not yet", time.Hour, time.Hour - 1, []lowkiq.Payload{{}}, nil},
		{"the header wins", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Header: header(time.Minute)}, {}}, []int{1}},
		{"pushed later than the job was due", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Score: ago(2 * time.Hour)}, {Score: ago(time.Minute)}}, []int{0}},
		{"pushed before it was due", time.Hour, time.Minute, []lowkiq.Payload{{Score: ago(2 * time.Hour)}}, nil},
		{"scores that are no times", time.Hour, 2 * time.Hour, []lowkiq.Payload{{Score: 7}, {Score: -1}, {Score: 1.7e12}, {Score: 1e300}}, []int{0, 1, 2, 3}},
	} {
		r, job := Rules{Expire: rules.Expire{After: c.after}}, lowkiq.Job{PerformAt: now.Add(time.Hour), WaitingSince: now.Add(-c.due), Payloads: c.payloads}
		if got := r.expired(&job, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestExpire: what has expired is taken out before the call, the others of its batch run in it, and the rest of its job comes
// back as it was.
func TestExpire(t *testing.T) {
	t.Parallel()
	for _, to := range []rules.ExpireTo{"", rules.ExpireDrop} {
		calmly(t, 10, func(t *testing.T, p *process) {
			var ran []string
			s := p.add(Queue{Rules: Rules{BatchSize: 4, Expire: rules.Expire{To: to}}}, func(_ context.Context, b *lowkiq.Batch) error {
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
			policy := queue.Bury
			if to == rules.ExpireDrop {
				policy = queue.Drop
			}
			if got, want := fmt.Sprint(s.expired), fmt.Sprintf("[b[]%s c[1]%s]", policy, policy); got != want {
				t.Errorf("expired %s, want %s", got, want)
			}
		})
	}
}

// TestStuck: a call about which nothing is noted for too long is ended, and has failed; each note gives it as much time again.
func TestStuck(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var cause error
		var took time.Duration
		s := p.add(Queue{Rules: Rules{StuckAfter: time.Second, HandlerTimeout: time.Hour}}, func(ctx context.Context, b *lowkiq.Batch) error {
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
		if got := p.text(s, "a"); got != "stuck: it has noted nothing for 1s" {
			t.Errorf("failed with %q", got)
		}
	})
}

// TestStuckAsksRedis: what an endpoint has noted at another node counts, and a Redis that does not answer ends no call.
func TestStuckAsksRedis(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		var cause error
		var took time.Duration
		s := p.add(Queue{Rules: Rules{StuckAfter: time.Second}}, func(ctx context.Context, b *lowkiq.Batch) error {
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
