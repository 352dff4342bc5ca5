// Package sleep answers one question: how does a goroutine wait for a while, and no longer than its
// context lives?
package sleep

import (
	"context"
	"time"
)

// For waits for d. If ctx ends first, it returns the cause of that.
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
