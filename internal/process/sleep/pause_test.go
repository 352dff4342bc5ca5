package sleep

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	for _, c := range []struct {
		name      string
		wait, end time.Duration // of the pause, of the context
		want      error
		took      time.Duration
	}{
		{"to the end", time.Minute, time.Hour, nil, time.Minute},
		{"cut short", time.Hour, time.Minute, enough, time.Minute},
		{"none", 0, time.Hour, nil, 0},
		{"in the past", -time.Minute, time.Hour, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), c.end, enough)
				defer cancel()
				began := time.Now()
				err := For(ctx, c.wait)
				if took := time.Since(began); !errors.Is(err, c.want) || took != c.took {
					t.Errorf("got %v after %s, want %v after %s", err, took, c.want, c.took)
				}
			})
		})
	}
}
