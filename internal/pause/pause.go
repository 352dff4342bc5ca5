// Package pause answers one question: how does one wait for a while, and no longer
// than the context lives?
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, and then returns its cause.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
