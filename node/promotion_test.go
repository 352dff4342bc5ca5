package node

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestNodePromotion removes the master of a Redis Cluster that has the leases for good. Soon after the promotion of its replica
// a node serves all shards, which lie on all masters.
func TestNodePromotion(t *testing.T) {
	tier.All(t)
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
			var mu sync.Mutex
			handled := map[string]bool{}
			n := start(t, Config{Redis: cluster.URL(), TTL: 6 * time.Second}, QueueConfig{Shards: 12}, func(_ context.Context, b *lowkiq.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				for _, job := range b.Jobs {
					handled[job.ID] = true
				}
				return nil
			}).serving()
			owner := cluster.OwnerOf(cluster.SlotOf(n.client.DB().Keys.Leases()))
			c.gone(cluster.Masters[owner])
			cluster.AwaitPromotion(owner)
			at := time.Now()
			q, err := n.client.Queue(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			const ids = 200
			var pushes []lowkiq.Push
			for i := range ids {
				pushes = append(pushes, lowkiq.Push{ID: fmt.Sprint(i), Payload: []byte("1")})
			}
			await(t, "all is stored", func() bool {
				_, err := q.Push(t.Context(), pushes...)
				if err != nil && !protocol.Transient(err) {
					t.Fatal(err)
				}
				return err == nil
			})
			await(t, "all is handled", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(handled) == ids
			})
			took := time.Since(at)
			t.Logf("all shards are served %s after the promotion", took)
			if took > 30*time.Second { // go-redis by itself takes up to a minute
				t.Errorf("all shards are served %s after the promotion, want 3 s on an idle machine", took)
			}
		})
	}
}
