package protocol_test

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestPromotion takes a master of a Redis Cluster away for good. Soon after the promotion of its replica, pushes of two
// producers are stored. One pushes all the time. The other was quiet and has connections to the dead master. It would
// take half a minute if clients waited until go-redis looks for masters by itself.
func TestPromotion(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		gone  func(*redistest.Server)
		known bool // the master that goes is the only address that clients were given
	}{
		{"killed", (*redistest.Server).Kill, false},
		{"frozen", (*redistest.Server).Pause, false},
		{"frozen, the only known", (*redistest.Server).Pause, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartClusterReplicated(t, 3)
			url := cluster.URL()
			if c.known {
				owner := cluster.OwnerOf(cluster.SlotOf(openIn(t, url).Shard(0).Keys().Jobs))
				url = "redis+cluster://" + cluster.Masters[owner].Addr()
			}
			busy, quiet := openIn(t, url), openIn(t, url)
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
			if took := time.Since(at); err != nil || took > 30*time.Second { // go-redis by itself takes up to a minute
				t.Errorf("pushes are stored %s after the promotion, err %v; want 3 s on an idle machine", took, err)
			} else {
				t.Logf("pushes are stored %s after the promotion", took)
			}
		})
	}
}

// openIn returns the queue of one shard that all clients of a Redis share.
func openIn(t *testing.T, url string) *Queue {
	t.Helper()
	c, err := Open(Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newQueue(t, c, 1)
}

// pushUntil pushes until a push is stored after the moment. All pushes that fail have a transient error.
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
