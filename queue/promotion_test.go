package queue_test

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// TestPromotion: a master of a Redis Cluster is gone for good. What is pushed is stored soon after its replica is
// promoted: by a producer that pushes all the time, and by one that was quiet meanwhile and has connections to the dead
// master. Half a minute passes if clients wait until go-redis looks for masters by itself.
func TestPromotion(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	for _, c := range []struct {
		name string
		gone func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill},
		{"frozen", (*redistest.Server).Pause},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartClusterReplicated(t, 3)
			busy, quiet := openIn(t, cluster.URL()), openIn(t, cluster.URL())
			for _, q := range []*Queue{busy, quiet} {
				if _, err := q.Push(t.Context(), job("a", "0")); err != nil {
					t.Fatal(err)
				}
			}
			owner := cluster.OwnerOf(cluster.SlotOf(busy.Shard(0).Keys().Jobs))
			c.gone(cluster.Masters[owner])
			var promoted atomic.Bool
			stored := make(chan error, 1)
			go func() { stored <- pushUntil(t, busy, &promoted) }()
			cluster.AwaitPromotion(owner)
			promoted.Store(true)
			at := time.Now()
			err := errors.Join(pushUntil(t, quiet, &promoted), <-stored)
			if took := time.Since(at); err != nil || took > 12*time.Second {
				t.Errorf("pushes are stored %s after the promotion, err %v; want 3 s on an idle machine", took, err)
			} else {
				t.Logf("pushes are stored %s after the promotion", took)
			}
		})
	}
}

// openIn is the queue of one shard that all clients of a Redis share.
func openIn(t *testing.T, url string) *Queue {
	t.Helper()
	c, err := Open(Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newQueue(t, c, 1)
}

// pushUntil pushes until a push is stored after the moment. All that fail have a transient error.
func pushUntil(t *testing.T, q *Queue, moment *atomic.Bool) error {
	for n := 1; ; n++ {
		_, err := q.Push(t.Context(), job("a", strconv.Itoa(n)))
		switch {
		case err != nil && !Transient(err):
			return err
		case err == nil && moment.Load():
			return nil
		}
	}
}
