//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestFollowUpsSurvive pushes payloads that each cause a follow-up to another queue. Nodes are killed at random
// instants, Redis is started again with its data, and both queues are resharded. Each follow-up arrives once, and the
// follow-ups of an id in order (I3).
func TestFollowUpsSurvive(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	const ids = 100
	each, kills := tier.Of(10, 10, 100), tier.Of(3, 3, 20) // payloads of an id
	random := randomly(t)
	r := newRig(t, 4, redistest.Durable...)
	to, err := r.client.Register(t.Context(), lowkiq.Queue{Name: ledger, Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{rig: r, nodes: map[string]*process{}, http: &http.Client{Timeout: patience / 2}, queues: []*protocol.Queue{r.queue, to},
		settings: settings{TTL: ttl, Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0", Queues: []string{queueName, ledger}, Handler: "ledger", MaxCrashes: -1, Work: time.Millisecond}}
	f.upAll(names(3)...)
	pushed := 0
	pushUpTo := func(n int) {
		t.Helper()
		for ; pushed < n; pushed++ {
			jobs := make([]lowkiq.Push, ids)
			for id := range jobs {
				jobs[id] = lowkiq.Push{ID: fmt.Sprint(id), Payload: fmt.Append(nil, pushed)}
			}
			f.await("a push", patience, func() bool { _, err := r.client.Push(t.Context(), queueName, jobs...); return err == nil })
		}
	}
	for i := range kills {
		pushUpTo(each * i / (kills + 2))
		f.disturb(random, i%5 == 2)
	}
	for k, queue := range []string{queueName, ledger} {
		f.reshards(queue, 6, func(protocol.RegistryEntry) {
			pushUpTo(each * (kills + k + 1) / (kills + 2))
			f.crash("n2")
			f.up("n2")
		})
	}
	pushUpTo(each)
	var want strings.Builder
	for i := range each {
		fmt.Fprint(&want, i, " ")
	}
	f.await("all follow-ups are in the ledger", 4*patience, func() bool {
		for _, name := range []string{queueName, ledger} {
			q, err := r.client.Queue(t.Context(), name)
			if err != nil {
				return false
			}
			if stats, err := q.Stats(t.Context()); err != nil || stats.Outgoing > 0 || stats.Jobs.Total() > 0 {
				return false
			}
		}
		return true
	})
	for id := range ids {
		state, _, err := r.client.ReadID(t.Context(), ledger, fmt.Sprint(id))
		if err != nil || string(state) != want.String() {
			t.Errorf("id %d: got %q, %v, want %q", id, state, err, want.String())
		}
	}
	for _, queue := range []string{queueName, ledger} {
		if entry, _ := f.entry(queue); entry.Shards != 6 {
			t.Errorf("queue %s has %d shards, want 6", queue, entry.Shards)
		}
	}
	t.Logf("%d follow-ups of %d ids, %d kills: each arrived once, in order", ids*each, ids, kills+2)
	for _, name := range f.list() {
		f.kill(f.nodes[name])
	}
}
