package runner

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// thenMail is a handler whose jobs have a follow-up.
func thenMail(_ context.Context, b *lowkiq.Batch) error {
	for _, job := range b.Jobs {
		b.Answer(job.ID).Then("mail", lowkiq.Push{ID: job.ID})
	}
	return nil
}

// told returns the text of the failure that Redis got of an id, "" if it got none.
func (p *process) told(s *shard, id string) string {
	text, _ := p.runners[s.Shard].claim.(*noting).texts.Load(id)
	return strings.TrimPrefix(fmt.Sprint(text), "<nil>")
}

type encodeFunc = func(context.Context) ([]protocol.FollowUp, error)

// encoder returns a Process.FollowUpEncoder with this code of users. The code gets the id of the first follow-up.
func encoder(code func(ctx context.Context, id string)) func(context.Context, string, int, []lowkiq.FollowUp) (encodeFunc, error) {
	return func(_ context.Context, _ string, _ int, all []lowkiq.FollowUp) (encodeFunc, error) {
		return func(ctx context.Context) ([]protocol.FollowUp, error) {
			code(ctx, all[0].Push.ID)
			return nil, ctx.Err()
		}, nil
	}
}

// TestFollowUpsHang checks that a middleware that never returns fails the job of its follow-up, and that the lane goes on.
func TestFollowUpsHang(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		release := make(chan struct{})
		defer close(release)
		p.loses = func(id string) bool { return id == "hangs" }
		p.FollowUpEncoder = encoder(func(_ context.Context, id string) {
			if id == "hangs" {
				<-release
			}
		})
		s := p.add(Queue{}, thenMail)
		p.give(s, "hangs", "b")
		time.Sleep(verdict.EncodePatience + time.Second)
		soon()
		s.has(t, 1, "after the patience")
		if got := p.told(s, "hangs"); got != verdict.ErrSlow.Error() {
			t.Errorf("the job failed with %q, want %q", got, verdict.ErrSlow)
		}
	})
}

// TestFollowUpsAtShutdown checks that a job does not count as failed if the process ends while Redis is away.
func TestFollowUpsAtShutdown(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		p.OpFailed = func(string, lowkiq.Shard, error) bool { return false }
		p.loses = func(string) bool { return true }
		p.FollowUpEncoder = func(context.Context, string, int, []lowkiq.FollowUp) (encodeFunc, error) {
			return nil, context.DeadlineExceeded
		}
		s := p.add(Queue{}, thenMail)
		p.give(s, "a")
		time.Sleep(time.Second)
		p.cancel(lowkiq.ErrShutdown)
		soon()
		s.has(t, 1, "in the end")
		if got := p.told(s, "a"); got != "" {
			t.Errorf("the job failed with %q, want that it goes back", got)
		}
	})
}

// TestFollowUpsOutage checks that an outage of Redis fails no job, even if a read takes longer than code of users may.
func TestFollowUpsOutage(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		p.OpFailed = func(string, lowkiq.Shard, error) bool { return false }
		reads := 0
		p.FollowUpEncoder = func(context.Context, string, int, []lowkiq.FollowUp) (encodeFunc, error) {
			if reads++; reads <= 3 {
				time.Sleep(2 * verdict.EncodePatience)
				return nil, context.DeadlineExceeded
			}
			return func(context.Context) ([]protocol.FollowUp, error) { return nil, nil }, nil
		}
		s := p.add(Queue{}, thenMail)
		p.give(s, "a")
		time.Sleep(7 * verdict.EncodePatience)
		soon()
		s.has(t, 0, "after the outage")
		if got := p.told(s, "a"); got != "" {
			t.Errorf("the job failed with %q, want that it is done", got)
		}
	})
}

// TestFollowUpsHangOnce checks that a batch waits once for a middleware that hangs, whether that heeds its context or not.
func TestFollowUpsHangOnce(t *testing.T) {
	t.Parallel()
	for _, heeds := range []bool{false, true} {
		calmly(t, 1, func(t *testing.T, p *process) {
			release := make(chan struct{})
			defer close(release)
			p.loses = func(string) bool { return true }
			p.FollowUpEncoder = encoder(func(ctx context.Context, _ string) {
				if heeds {
					<-ctx.Done()
				} else {
					<-release
				}
			})
			ids := []string{"a", "b", "c", "d", "e"}
			q := Queue{}
			q.Rules.BatchSize = len(ids)
			s := p.add(q, thenMail)
			p.give(s, ids...)
			time.Sleep(verdict.EncodePatience + time.Second)
			soon()
			for _, id := range ids {
				if got := p.told(s, id); got != verdict.ErrSlow.Error() {
					t.Errorf("heeds its context %v: job %s failed with %q, want %q", heeds, id, got, verdict.ErrSlow)
				}
			}
		})
	}
}

// TestFollowUpsHangAtShutdown checks that a middleware that hangs holds a lane only shortly after the end of work, and that
// the jobs of its follow-ups do not count as failed. Jobs whose follow-ups are encoded before that are done.
func TestFollowUpsHangAtShutdown(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} { // whether the handler returns after the end of work
		calmly(t, 1, func(t *testing.T, p *process) {
			release := make(chan struct{})
			defer close(release)
			var hung atomic.Int64
			p.FollowUpEncoder = encoder(func(_ context.Context, id string) {
				if id == "a" {
					time.Sleep(lateEncoding / 2)
					return
				}
				hung.Add(1)
				<-release
			})
			q := Queue{}
			q.Rules.BatchSize = 3
			s := p.add(q, func(ctx context.Context, b *lowkiq.Batch) error {
				thenMail(ctx, b) //nolint:errcheck // it has none
				if late {
					<-ctx.Done()
				}
				return nil
			})
			p.loses = func(id string) bool { return id != "a" }
			p.give(s, "a", "b", "c")
			time.Sleep(time.Second)
			p.cancel(lowkiq.ErrShutdown)
			began := time.Now()
			p.lanes.Wait()
			if took := time.Since(began); took > lateEncoding+time.Millisecond {
				t.Errorf("late %v: the lane ended %s after the end of work, want %s", late, took, lateEncoding)
			}
			synctest.Wait()
			if got := hung.Load(); got != 1 {
				t.Errorf("late %v: %d calls hang, want 1", late, got)
			}
			p.handBack()
			s.has(t, 2, "in the end")
			if got := p.told(s, "b") + p.told(s, "c"); got != "" {
				t.Errorf("late %v: a job failed with %q, want that it goes back", late, got)
			}
		})
	}
}
