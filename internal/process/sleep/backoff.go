package sleep

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff waits between attempts that fail. It gives up after Limit.
type Backoff struct {
	Limit time.Duration // from the first failure on
	Away  func(error)   // called with the first failure; may be nil

	since time.Time // of the first failure; zero if there is none
	wait  time.Duration
}

// Wait waits after a failed attempt, longer each time up to 2 s. It returns the cause of ctx if ctx ends, and an error that
// wraps err if Limit is over.
func (b *Backoff) Wait(ctx context.Context, err error) error {
	if b.since.IsZero() {
		b.since, b.wait = time.Now(), 100*time.Millisecond
		if b.Away != nil {
			b.Away(err)
		}
	}
	if time.Since(b.since)+b.wait > b.Limit {
		return fmt.Errorf("gave up after %s: %w", b.Limit, err)
	}
	if ended := For(ctx, b.wait/2+rand.N(b.wait/2)); ended != nil {
		return ended
	}
	b.wait = min(2*b.wait, 2*time.Second)
	return nil
}

// Reset records that an attempt has succeeded.
func (b *Backoff) Reset() { b.since = time.Time{} }
