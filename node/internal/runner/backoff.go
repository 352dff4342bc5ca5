package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/lease"
)

// Backoff waits between attempts: 20 ms doubling to 500 ms, with jitter.
type Backoff struct{ next time.Duration }

func NewBackoff() *Backoff { return &Backoff{20 * time.Millisecond} }

func (b *Backoff) Sleep(ctx context.Context) error {
	wait := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, 500*time.Millisecond)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// persist repeats an operation while Redis is out of reach and ctx lasts.
func (r *Runner) persist(ctx context.Context, op string, do func() error) error {
	for wait := NewBackoff(); ; {
		err := do()
		if err == nil || !queue.Transient(err) {
			return err
		}
		r.process.OpFailed(op, r.Shard, err)
		if wait.Sleep(ctx) != nil {
			return err
		}
	}
}

// Refused reports whether Redis will answer the same until a person mends something.
func Refused(err error) bool {
	return err != nil && !queue.Transient(err) && !errors.Is(err, lowkiq.ErrFenced) && !errors.Is(err, lease.ErrGone) && !errors.Is(err, context.Canceled)
}

func second[T any](_ T, err error) error { return err }

// send repeats an operation until Redis has done it. It gives up when the claim is lost, or
// refused and the shard is to be released anyhow; the jobs are recovered with the shard then.
func (r *Runner) send(op string, n int, do func(context.Context) error) bool {
	if n == 0 {
		return true
	}
	for wait := NewBackoff(); ; {
		err := do(r.process.IO)
		if err == nil {
			r.process.OpDone(op, r.Shard)
			return true
		}
		if errors.Is(err, lowkiq.ErrFenced) {
			r.lose(op, err)
			return false
		}
		if r.process.OpFailed(op, r.Shard, err) && r.ends() || wait.Sleep(r.work) != nil {
			return false
		}
	}
}
