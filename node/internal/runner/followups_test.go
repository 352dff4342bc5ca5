package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
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

// TestFollowUpsHang checks that a middleware that never returns fails the job of its follow-up, and that the lane goes on.
func TestFollowUpsHang(t *testing.T) {
	t.Parallel()
	calmly(t, 1, func(t *testing.T, p *process) {
		release := make(chan struct{})
		defer close(release)
		p.loses = func(id string) bool { return id == "hangs" }
		p.EncodeFollowUps = func(_ context.Context, _ string, _ int, all []lowkiq.FollowUp) ([]protocol.FollowUp, error) {
			if all[0].Push.ID == "hangs" {
				<-release
			}
			return nil, nil
		}
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
		p.EncodeFollowUps = func(context.Context, string, int, []lowkiq.FollowUp) ([]protocol.FollowUp, error) {
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
