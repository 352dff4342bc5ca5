//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// TestWorkflowSurvives runs a workflow with many members, which comes in parts, on three nodes. Nodes are killed at
// random instants, Redis is started again with its data, and the queues of the members and of workflows are resharded.
// Each member runs to success once, and so does the callback.
func TestWorkflowSurvives(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	members, kills := tier.Of(1000, 1000, 10_000), tier.Of(4, 4, 20)
	random := randomly(t)
	r := newRig(t, 4, redistest.Durable...)
	ends, err := r.client.Register(t.Context(), lowkiq.Queue{Name: "ends", Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{rig: r, nodes: map[string]*process{}, http: &http.Client{Timeout: patience / 2}, queues: []*protocol.Queue{r.queue, ends},
		settings: settings{TTL: ttl, Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0", Queues: []string{queueName, "ends"}, Handler: "count", MaxCrashes: -1, Work: time.Millisecond}}
	f.upAll(names(3)...)
	again := func(what string, do func() error) {
		t.Helper()
		f.await(what, 2*patience, func() bool {
			err := do()
			if err != nil && !protocol.Transient(err) {
				t.Fatalf("%s: %v", what, err)
			}
			return err == nil
		})
	}
	back := func(id string) *lowkiq.FollowUp {
		return &lowkiq.FollowUp{Queue: "ends", Push: lowkiq.Push{ID: id, Payload: []byte(id)}}
	}
	w := workflow.Workflow{ID: "w", Open: true, Done: back("done"), Dead: back("dead")}
	again("start", func() error { _, err := workflow.Start(t.Context(), r.client, w); return err })
	grow := func(from, to int) {
		var jobs []workflow.Job
		for i := from; i < to; i++ {
			jobs = append(jobs, workflow.Job{Queue: queueName, Push: lowkiq.Push{ID: fmt.Sprint(i % 500), Payload: fmt.Append(nil, i)}})
		}
		again("add", func() error { return workflow.Add(t.Context(), r.client, "w", jobs...) })
	}
	for i := range kills {
		grow(members*i/kills, members*(i+1)/kills)
		f.disturb(random, i%5 == 2)
	}
	resharded := []string{protocol.Workflows, queueName}
	for _, queue := range resharded {
		f.reshards(queue, 6, func(protocol.RegistryEntry) {
			f.crash("n2")
			f.up("n2")
		})
	}
	again("close", func() error { _, err := workflow.Close(t.Context(), r.client, "w"); return err })
	var last workflow.Status
	f.await("the end of the workflow", 4*patience, func() bool {
		s, err := workflow.Get(t.Context(), r.client, "w")
		if last = s; err != nil && !protocol.Transient(err) {
			t.Fatal(err)
		}
		return s.State == workflow.StateDone
	})
	if last.Total != members || last.Done != members || last.Dead != 0 {
		t.Errorf("got %+v, want %d members done", last, members)
	}
	f.await("the callback", patience, func() bool {
		state, _, err := r.client.ReadID(t.Context(), "ends", "done")
		return err == nil && string(state) != ""
	})
	f.await("no follow-up is left", patience, func() bool {
		for _, name := range append(resharded, "ends") {
			q, err := r.client.FindQueue(t.Context(), name)
			if err != nil || q == nil {
				return false
			}
			stats, err := q.Stats(t.Context())
			if err != nil || stats.Outgoing > 0 || name != protocol.Workflows && stats.Jobs.Total() > 0 {
				return false
			}
		}
		return true
	})
	handled := 0
	for i := range 500 {
		state, _, err := r.client.ReadID(t.Context(), queueName, fmt.Sprint(i))
		n := 0
		if _, scan := fmt.Sscan(string(state), &n); err != nil || scan != nil {
			t.Fatalf("the count of id %d: %q, %v, %v", i, state, err, scan)
		}
		handled += n
	}
	done, _, err := r.client.ReadID(t.Context(), "ends", "done")
	dead, _, err2 := r.client.ReadID(t.Context(), "ends", "dead")
	if err != nil || err2 != nil || handled != members || string(done) != "1" || dead != nil {
		t.Errorf("got %d members handled, %s callbacks when done, %s when dead, %v, %v; want %d, 1 and none", handled, done, dead, err, err2, members)
	}
	for _, queue := range resharded {
		entry, _ := f.entry(queue)
		t.Logf("queue %s has layout %d with %d shards", queue, entry.Layout, entry.Shards)
		if entry.Layout == 1 {
			t.Errorf("queue %s was not resharded", queue)
		}
	}
	t.Logf("%d members, %d kills: %d handled, %s callback", members, kills, handled, done)
	for _, name := range f.list() {
		f.kill(f.nodes[name])
	}
}
