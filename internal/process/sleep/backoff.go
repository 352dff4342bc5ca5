package sleep

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff waits between the attempts at a step, until its limit is over.
type Backoff struct {
	Limit time.Duration // of the whole, from the first trouble on
	Away  func(error)   // is told of the first trouble; may be nil

	since time.Time // of the first trouble; zero = there was none
	wait  time.Duration
}

// Wait waits after a trouble, longer each time. Its error is ctx's, or says that the limit is
// reached.
func (b *Backoff) Wait(ctx context.Context, trouble error) error {
	if b.since.IsZero() {
		b.since, b.wait = time.Now(), 100*time.Millisecond
		if b.Away != nil {
			b.Away(trouble)
		}
	}
	if time.Since(b.since)+b.wait > b.Limit {
		return fmt.Errorf("gave up after %s: %w", b.Limit, trouble)
	}
	if err := For(ctx, b.wait/2+rand.N(b.wait/2)); err != nil {
		return err
	}
	b.wait = min(2*b.wait, 2*time.Second)
	return nil
}

// Reset begins anew: the next trouble counts as the first.
func (b *Backoff) Reset() { b.since = time.Time{} }
