//go:build !linux

package bench

import "time"

// ticker wakes a goroutine at fixed times, up to about 1 ms late.
type ticker struct{ *time.Ticker }

func newTicker(every time.Duration) (*ticker, error) { return &ticker{time.NewTicker(every)}, nil }

func (t *ticker) wait() error {
	<-t.C
	return nil
}

func (t *ticker) stop() { t.Stop() }
