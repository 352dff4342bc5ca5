package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// ticks are those that handlers got, in any order.
type ticks struct {
	mu  sync.Mutex // guards all
	all []time.Time
}

func (k *ticks) handle(_ context.Context, batch *lowkiq.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, job := range batch.Jobs {
		for _, p := range job.Payloads {
			var said struct{ At time.Time }
			if err := json.Unmarshal(p.Data, &said); err != nil {
				return err
			}
			k.all = append(k.all, said.At)
		}
	}
	return nil
}

func (k *ticks) n() int { k.mu.Lock(); defer k.mu.Unlock(); return len(k.all) }

// check wants each second between the first and the last one, once.
func (k *ticks) check(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortFunc(k.all, time.Time.Compare)
	for i, tick := range k.all {
		if want := k.all[0].Add(time.Duration(i) * time.Second); !tick.Equal(want) {
			t.Fatalf("tick %d of %d: got %v, want %v", i, len(k.all), tick, want)
		}
	}
}

func everySecond() map[string]recurring.Spec {
	return map[string]recurring.Spec{"tick": {Every: recurring.Duration(time.Second), Queue: "orders", Payload: []byte(`{"at":"{tick}"}`)}}
}

// A node in no cluster pushes what its file has.
func TestRecurringOnOneNode(t *testing.T) {
	t.Parallel()
	var got ticks
	n := start(t, Config{Redis: redistest.Start(t).URL(), Recurring: everySecond()}, QueueConfig{}, got.handle)
	await(t, "three ticks", func() bool { return got.n() >= 3 })
	if names, known := n.recurringFiles(t.Context(), nil); !known || !slices.Equal(names, []string{"tick"}) {
		t.Errorf("got %v %v, want the name of the file", names, known)
	}
	n.stop()
	got.check(t)
}

// Of a cluster the leader pushes; its end loses no tick and doubles none.
func TestRecurringSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var got ticks
	var nodes []*running
	for i := range 3 {
		file := map[string]recurring.Spec{fmt.Sprint("daily-", i): {Cron: "@yearly", Queue: "orders"}}
		if i == 0 {
			file["tick"] = everySecond()["tick"]
		}
		cfg := Config{Name: fmt.Sprint("n", i), Redis: srv.URL(), Bind: "127.0.0.1:0", TTL: shortTTL, Recurring: file}
		nodes = append(nodes, start(t, cfg, QueueConfig{Shards: 4}, got.handle))
	}
	await(t, "ticks", func() bool { return got.n() >= 2 })
	leader := 0
	await(t, "a leader that knows all files", func() bool {
		leader = slices.IndexFunc(nodes, func(n *running) bool { return n.cluster.Load() != nil && n.cluster.Load().Status().Leading })
		if leader < 0 {
			return false
		}
		names, known := nodes[leader].recurringFiles(t.Context(), nodes[leader].cluster.Load())
		slices.Sort(names)
		return known && slices.Equal(names, []string{"daily-0", "daily-1", "daily-2", "tick"})
	})
	nodes[leader].stop()
	before := got.n()
	await(t, "ticks by another leader", func() bool { return got.n() >= before+3 })
	for _, n := range nodes {
		n.stop()
	}
	got.check(t)
}

func TestRecurringIsValidated(t *testing.T) {
	t.Parallel()
	file := map[string]recurring.Spec{"a": {Cron: "0 0 31 2 *", Queue: "q"}, "b": {Queue: "q"}}
	_, err := New(Config{Name: "n", Recurring: file})
	if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "never comes") || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("got %v, want both entries refused", err)
	}
}
