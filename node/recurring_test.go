package node

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
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

// TestRecurringOnOneNode checks that a node in no cluster pushes the entries of its file.
func TestRecurringOnOneNode(t *testing.T) {
	t.Parallel()
	var got ticks
	n := start(t, Config{Redis: redistest.Start(t).URL(), Recurring: everySecond()}, QueueConfig{}, got.handle)
	await(t, "three ticks", func() bool { return got.n() >= 3 })
	live, known := n.recurringFiles(t.Context(), nil)
	if want := []recurring.Process{{Boot: n.boot, Names: []string{"tick"}}}; !known || !reflect.DeepEqual(live, want) {
		t.Errorf("got %v %v, want %v", live, known, want)
	}
	n.stop()
	got.check(t)
}

// TestRecurringSurvivesItsLeader checks that the leader of a cluster pushes, and that its end neither loses nor doubles a tick.
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
		cfg := Config{Name: fmt.Sprint("n", i), Redis: srv.URL(), Bind: "127.0.0.1:0", TTL: 10 * time.Second, Recurring: file} // a lease that is lost has its jobs handled again
		nodes = append(nodes, start(t, cfg, QueueConfig{Shards: 4}, got.handle))
	}
	await(t, "ticks", func() bool { return got.n() >= 2 })
	leader := 0
	await(t, "a leader that knows all files", func() bool {
		leader = slices.IndexFunc(nodes, func(n *running) bool { return n.cluster.Load() != nil && n.cluster.Load().Status().Leading })
		if leader < 0 {
			return false
		}
		live, known := nodes[leader].recurringFiles(t.Context(), nodes[leader].cluster.Load())
		var names []string
		for _, one := range live {
			names = append(names, one.Names...)
		}
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

// TestUnknownQueuesOfRecurring checks that the status warns from the start about a mistyped queue in a file, until the queue is
// known.
func TestUnknownQueuesOfRecurring(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	every := recurring.Spec{Every: recurring.Duration(time.Hour), Queue: "ordres"}
	right := every
	right.Queue = "orders"
	run := start(t, Config{Redis: srv.URL(), Recurring: map[string]recurring.Spec{"report": every, "sync": right}}, QueueConfig{Shards: 1}, nothing).serving()
	if !run.warned(`the recurring entry report pushes to queue "ordres", which is not registered; its ticks are refused until a node handles it; did you mean "orders"?`) || run.warned("recurs as sync") {
		known, err := run.Cluster().Status(t.Context())
		t.Errorf("got %q, %v", known.Warnings, err)
	}
	if _, err := run.Client().Register(t.Context(), lowkiq.Queue{Name: "ordres", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	if run.warned("recurs as report") {
		t.Error("got a warning of a queue that is registered")
	}
}
