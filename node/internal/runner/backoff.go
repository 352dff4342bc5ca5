package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Backoff waits between attempts. Its pauses double from 20 ms to 500 ms. A random part of up to a half is cut off.
type Backoff struct{ next time.Duration }

// NewBackoff returns a Backoff before its first pause.
func NewBackoff() *Backoff { return &Backoff{20 * time.Millisecond} }

// Sleep waits for the next pause. It returns the cause of ctx if ctx ends first.
func (b *Backoff) Sleep(ctx context.Context) error {
	wait := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, 500*time.Millisecond)
	return sleep.For(ctx, wait)
}

// retryTransient repeats an operation while it fails with transient errors and ctx lasts. It returns the last error.
func (r *Runner) retryTransient(ctx context.Context, op string, do func() error) error {
	for wait := NewBackoff(); ; {
		err := do()
		if err == nil || !protocol.Transient(err) {
			return err
		}
		r.process.OpFailed(op, r.Shard, err)
		if wait.Sleep(ctx) != nil {
			return err
		}
	}
}

// IsRefusal reports whether err is an answer of Redis that stays the same until a person mends something. Lost claims,
// lost leases and cancelled contexts are not such answers.
func IsRefusal(err error) bool {
	return err != nil && !protocol.Transient(err) && !errors.Is(err, lowkiq.ErrFenced) && !errors.Is(err, lease.ErrGone) && !errors.Is(err, context.Canceled)
}

func errorOf[T any](_ T, err error) error { return err }

// sendNacks repeats nacks until Redis has done them; see sendUntilDone.
func (r *Runner) sendNacks(nacks []protocol.Nack) bool {
	return r.sendUntilDone("nack", len(nacks), func(ctx context.Context) error { return errorOf(r.claim.Nack(ctx, nacks...)) })
}

// sendUntilDone repeats an operation on n jobs until Redis has done it. It returns false if it gives up, because the
// claim is lost, or because Redis refuses the operation and the shard is about to be released. The next claim of
// the shard recovers the jobs then.
func (r *Runner) sendUntilDone(op string, n int, do func(context.Context) error) bool {
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
			r.loseClaim(op, err)
			return false
		}
		if r.process.OpFailed(op, r.Shard, err) && r.isStopping() || wait.Sleep(r.work) != nil {
			return false
		}
	}
}
