package status

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// noticing is a cluster whose instances notice a pause one after the other.
type noticing struct {
	late  []string
	each  time.Duration
	err   error
	began time.Time
}

func (n *noticing) MayBegin(context.Context, string) ([]string, error) {
	return n.late[min(len(n.late), int(time.Since(n.began)/n.each)):], n.err
}

func TestAwaitPause(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, c := range []struct {
		name   string
		each   time.Duration // until one more has noticed
		err    error
		want   []string
		atMost time.Duration
	}{
		{"all notice", time.Second, nil, nil, 4 * time.Second},
		{"one does not", 20 * time.Second, nil, []string{"n2/b.1"}, pausePatience},
		{"Redis is away", time.Second, away, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, err := AwaitPause(t.Context(), &noticing{[]string{"n1/a.1", "n2/b.1"}, c.each, c.err, began}, "orders")
				if !slices.Equal(got, c.want) || !errors.Is(err, c.err) || time.Since(began) > c.atMost {
					t.Errorf("got %v, %v after %s; want %v, %v within %s", got, err, time.Since(began), c.want, c.err, c.atMost)
				}
			})
		})
	}
}
