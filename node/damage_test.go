package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestDamagedRecord: a record that cannot be read stops neither its shard nor its neighbours,
// and it is kept.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := open(t, server.URL(), 1)
	p.push(lowkiq.Push{ID: "bad", Payload: []byte("1")})
	db := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	defer db.Close()
	const shard = "lk:{default/orders/1/0}:"
	if err := db.HSet(t.Context(), shard+"jobs", "bad", "not a record").Err(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	start(t, Config{Redis: server.URL()}, QueueConfig{Shards: 1}, func(_ context.Context, batch *lowkiq.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		for _, job := range batch.Jobs {
			got = append(got, job.ID)
		}
		return nil
	})
	for i := range 3 {
		p.push(lowkiq.Push{ID: fmt.Sprint("good", i), Payload: []byte("1")})
		await(t, "the job beside it is handled", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(got, []string{"good0", "good1", "good2"}[:i+1])
		})
	}
	if kept, err := db.HGet(t.Context(), shard+"aside", "jobs:bad").Result(); kept != "not a record" {
		t.Errorf("got %q, %v set aside, want the record", kept, err)
	}
}
