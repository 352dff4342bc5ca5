package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestLaterRecord checks that a record in the format of a later release is not damaged, and nobody needs to mend it. Its id
// stays in flight, its neighbours are handled, and the status of the node shows it.
func TestLaterRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := open(t, server.URL(), 1)
	later := map[string]string{"later1": "Q1 of a later release", "later2": "Z"}
	db := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	defer db.Close()
	const shard = "lk:{default/orders/1/0/Oko}:"
	for _, id := range []string{"good0", "later1", "good1", "later2"} {
		p.push(lowkiq.Push{ID: id, Payload: []byte("1")})
		if record := later[id]; record != "" {
			if err := db.HSet(t.Context(), shard+"jobs", id, record).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var mu sync.Mutex
	var got []string
	n := start(t, Config{Redis: server.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{BatchSize: 3}}, func(_ context.Context, batch *lowkiq.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		for _, job := range batch.Jobs {
			got = append(got, job.ID)
		}
		return nil
	})
	for i := 2; i < 5; i++ {
		p.push(lowkiq.Push{ID: fmt.Sprint("good", i), Payload: []byte("1")})
		await(t, "the jobs beside it are handled", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(got, []string{"good0", "good1", "good2", "good3", "good4"}[:i+1])
		})
	}
	kept := func(when string) {
		t.Helper()
		for id, want := range later {
			if record, err := db.HGet(t.Context(), shard+"jobs", id).Result(); record != want {
				t.Errorf("%s: record of %s: got %q %v, want %q", when, id, record, err, want)
			}
		}
		if aside, err := db.HLen(t.Context(), shard+"aside").Result(); aside != 0 || err != nil {
			t.Errorf("%s: %d records set aside (%v), want none", when, aside, err)
		}
	}
	kept("while a node runs")
	await(t, "its lease says so", func() bool {
		return strings.Contains(strings.Join(p.refusals(), ""), "form of a later release")
	})
	n.stop()
	report, err := audit.Run(t.Context(), p.client, audit.Config{})
	if err != nil || len(report.Faults) != 2 || report.Faults[0].Kind != audit.LaterRecord || report.Faults[1].Kind != audit.LaterRecord {
		t.Errorf("audit: got %+v %v, want two records of a later release", report.Faults, err)
	}
	for _, fault := range report.Faults {
		if done, err := audit.Repair(t.Context(), p.client, fault); done || err != nil {
			t.Errorf("%s: repaired %v (%v), want it left alone", fault, done, err)
		}
	}
	kept("after a repair")
	if ready, err := db.LRange(t.Context(), shard+"ready", 0, -1).Result(); err != nil || !slices.Equal(ready, []string{"later1", "later2"}) {
		t.Errorf("ready for the next owner: got %v %v, want both in order", ready, err)
	}
}
