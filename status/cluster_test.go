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

// leaving is an instance that notices a drain after a time, and gives a shard away each time after that.
type leaving struct {
	noticing, each time.Duration
	ends           bool
	err            error
	began          time.Time
}

func (l *leaving) DrainProgress(context.Context, string) (DrainProgress, error) {
	since := time.Since(l.began)
	if since < l.noticing {
		return DrainProgress{Shards: 3}, l.err
	}
	return DrainProgress{Ended: l.ends, Drains: true, Shards: max(0, 3-int((since-l.noticing)/l.each))}, l.err
}

func TestAwaitDrain(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, c := range []struct {
		name    string
		in      leaving
		on      bool
		shards  int
		noticed bool
		atMost  time.Duration
	}{
		{"gives them away", leaving{time.Second, time.Second, false, nil, time.Time{}}, true, 0, true, 5 * time.Second},
		{"a batch takes long", leaving{time.Second, 20 * time.Second, false, nil, time.Time{}}, true, 2, true, drainPatience},
		{"it does not hear", leaving{time.Hour, 1, false, nil, time.Time{}}, true, 3, false, drainPatience},
		{"its lease ends", leaving{time.Second, time.Hour, true, nil, time.Time{}}, true, 3, true, 2 * time.Second},
		{"undone", leaving{time.Hour, time.Hour, false, nil, time.Time{}}, false, 3, true, 0},
		{"Redis is away", leaving{0, 1, false, away, time.Time{}}, true, 0, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.in.began = time.Now()
				got, noticed, err := AwaitDrain(t.Context(), &c.in, "n1/a.1", c.on)
				if got.Shards != c.shards || noticed != c.noticed || !errors.Is(err, c.in.err) || time.Since(c.in.began) > c.atMost {
					t.Errorf("got %+v, %t, %v after %s; want %+v", got, noticed, err, time.Since(c.in.began), c)
				}
			})
		})
	}
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
