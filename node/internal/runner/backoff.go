package runner

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff waits between attempts: 20 ms doubling to 500 ms, with jitter.
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
