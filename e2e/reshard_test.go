//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// askReshard asks a node to reshard a queue. It reports whether the node has taken the request.
func (f *fleet) askReshard(name, queue string, shards int, more map[string]any) bool {
	f.t.Helper()
	want := map[string]any{"shards": shards, "patience": "20s", "max_pause": "1h"}
	for key, value := range more {
		want[key] = value
	}
	body, err := json.Marshal(want)
	if err != nil {
		f.t.Fatal(err)
	}
	reply, err := f.http.Post(f.lease(name).HTTP+"/api/v1/queues/"+queue+"/reshard", "application/json", bytes.NewReader(body))
	if err != nil {
		f.t.Logf("reshard to %d: %v", shards, err) // the node was killed, or Redis is away
		return false
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	if reply.StatusCode >= 300 {
		f.t.Logf("reshard to %d: %s %s", shards, reply.Status, text)
	}
	return reply.StatusCode < 300
}

// entry returns a queue's entry in the registry.
func (f *fleet) entry(queue string) (entry protocol.RegistryEntry, ok bool) {
	entries, err := f.client.Registry().Entries(f.t.Context())
	return entries[queue], err == nil && entries[queue].Shards > 0
}

// resharded waits until no reshard is under way.
func (f *fleet) resharded() {
	f.t.Helper()
	f.await("no reshard is under way", 2*patience, func() bool {
		for _, q := range f.queues {
			if entry, ok := f.entry(q.Name); !ok || entry.Reshard != nil || entry.Copying() {
				return false
			}
		}
		return true
	})
}

// reshards gives a queue another number of shards while meanwhile runs. It begins again if an attempt was cancelled because
// its patience was over.
func (f *fleet) reshards(queue string, shards int, meanwhile func(begun protocol.RegistryEntry)) {
	f.t.Helper()
	began, attempts, disturbed := time.Now(), 0, false
	f.await(fmt.Sprintf("%s has %d shards", queue, shards), 2*patience, func() bool {
		entry, ok := f.entry(queue)
		switch {
		case !ok:
			return false
		case entry.Shards == shards && !entry.Copying() && entry.Reshard == nil:
			return true
		case entry.Reshard == nil && entry.Shards != shards && len(f.nodes) > 0:
			if f.askReshard(f.list()[0], queue, shards, nil) {
				attempts++
			}
		case !disturbed && (entry.Reshard != nil || entry.Copying()):
			disturbed = true
			meanwhile(entry)
		}
		return false
	})
	f.t.Logf("%s has %d shards after %s and %d attempts", queue, shards, time.Since(began).Round(time.Millisecond), attempts)
}

// disturb kills a random node of n1, n2 and n3 at a random instant and starts it again. If redis is true, Redis restarts before
// that.
func (f *fleet) disturb(random *rand.Rand, redis bool) {
	f.t.Helper()
	<-time.After(upTo(random, 300*time.Millisecond)) // the random instant
	if redis {
		for _, name := range f.list() {
			f.ready(name) // a node that does not find its Redis when it starts ends
		}
		f.redis.Stop()
		f.redis.Restart()
	}
	name := fmt.Sprint("n", 1+random.IntN(3))
	f.crash(name)
	f.up(name)
}

// produce pushes events of its own ids with a client of its own, as another program does, until ctx ends.
func (f *fleet) produce(ctx context.Context, number int) {
	client, err := protocol.Open(protocol.Config{Redis: f.url, Cluster: f.cluster, Timeout: patience / 2})
	if err != nil {
		f.t.Error(err)
		return
	}
	defer client.Close()
	q, err := client.Queue(ctx, queueName)
	if err != nil {
		f.t.Error(err)
		return
	}
	events := allEvents()
	for n := 0; sleep.For(ctx, 20*time.Millisecond) == nil; n += 10 {
		bit := make([]lowkiq.Push, 10)
		for i := range bit {
			bit[i] = events[(n+i)%len(events)]
			bit[i].ID = fmt.Sprintf("%s of %d in round %d", bit[i].ID, number, (n+i)/len(events))
		}
		if err := f.tryPushTo(q, bit...); err != nil {
			f.flow.failed.Add(1)
		}
	}
}

// TestReshard reshards a queue from 16 to 64 shards, then to 20 and back to 16. Four producers push to three nodes
// meanwhile. The leader, which drives the reshard, and other nodes are killed, and Redis is started again with its data.
// Handlers get the payloads of each id in order (I2, I3), and no id runs twice at once (I1).
func TestReshard(t *testing.T) {
	t.Parallel()
	f := fleetOf(newRig(t, 16, redistest.Durable...), settings{MaxCrashes: -1})
	f.upAll(names(3)...)
	f.balanced(patience)
	var producers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer producers.Wait()
	defer stop()
	for i := range 4 {
		producers.Go(func() { f.produce(ctx, i) })
	}
	f.goesOn()
	f.reshards(queueName, 64, func(protocol.RegistryEntry) {
		leader, _, _ := f.parts()
		f.crash(leader)
		f.up(leader)
	})
	f.balanced(patience)
	f.goesOn()
	f.reshards(queueName, 20, func(protocol.RegistryEntry) {
		f.redis.Stop()
		f.redis.Restart()
		f.crash("n2")
		f.up("n2")
	})
	f.balanced(patience)
	f.goesOn()
	f.reshards(queueName, 16, func(protocol.RegistryEntry) {
		f.crash(f.list()...)
		f.upAll(names(3)...)
	})
	f.balanced(patience)
	f.goesOn()
	stop()
	producers.Wait()
	f.flow.failed.Store(0) // Redis was away
	f.finish(judge.Config{MaxDuplicates: -1, MaxUncaused: -1})
}

// TestReshardDisturbsNoOtherQueue checks that a reshard moves no shard of another queue and repeats none of its calls.
func TestReshardDisturbsNoOtherQueue(t *testing.T) {
	t.Parallel()
	f := fleetOf(newRig(t, 16), settings{MaxCrashes: -1, TTL: calmTTL})
	f.upAll(names(3)...)
	f.balanced(patience)
	f.goesOn()
	before := judge.Now()
	f.reshards(queueName, 24, func(protocol.RegistryEntry) {})
	f.balanced(patience)
	for _, m := range f.watch.since(before) {
		if m.shard.Queue != queueName {
			t.Errorf("a shard of another queue has moved: %+v", m)
		}
	}
	f.goesOn()
	f.finish(judge.Config{})
}

// TestReshardWaitsForCalls checks that a reshard ends without a change if a call runs for longer than its patience. A
// reshard that cancels calls goes on. The cancelled job runs again, and no retry is spent.
func TestReshardWaitsForCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	f := &fleet{rig: r, nodes: map[string]*process{}, http: &http.Client{Timeout: patience / 2}, queues: []*protocol.Queue{r.queue},
		settings: settings{TTL: calmTTL, Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0", Queues: []string{queueName}, Work: 2 * time.Hour}}
	f.up("n1")
	f.push(plainJob("slow"))
	f.await("the call runs", patience, func() bool { return f.stats().Jobs.InFlight == 1 })
	f.await("a reshard begins", patience, func() bool { return f.askReshard("n1", queueName, 6, map[string]any{"patience": "1s"}) })
	f.await("it is given up", patience, func() bool {
		entry, ok := f.entry(queueName)
		return ok && entry.Reshard == nil && entry.Tried > 0
	})
	if entry, _ := f.entry(queueName); entry.Shards != 4 || entry.Layout != 1 || f.stats().Jobs.InFlight != 1 {
		t.Errorf("got %+v, want the queue as it was", entry)
	}
	f.await("a reshard begins that cancels calls", patience, func() bool {
		return f.askReshard("n1", queueName, 6, map[string]any{"patience": "20s", "cancel_calls": true})
	})
	f.await("it is done", patience, func() bool {
		entry, ok := f.entry(queueName)
		return ok && entry.Shards == 6 && !entry.Copying()
	})
	f.await("the job runs again", patience, func() bool { s, err := f.statsOf(f.queue); return err == nil && s.Jobs.InFlight == 1 })
	f.noneFailed()
	f.kill(f.nodes["n1"])
}
