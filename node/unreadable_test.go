package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// startOrdersBeside starts a node that handles orders, of two shards, and others, whose ids it
// tells.
func startOrdersBeside(t *testing.T, url string, order func()) (*running, <-chan string) {
	t.Helper()
	others := make(chan string, 1)
	run := startQueues(t, Config{Redis: url}, func(n *Node) error {
		return errors.Join(
			n.Handle(QueueConfig{Name: "orders", Shards: 2}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error {
				order()
				return nil
			})),
			n.Handle(QueueConfig{Name: "others", Shards: 1}, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
				others <- b.Jobs[0].ID
				return nil
			})))
	})
	return run.serving(), others
}

// register writes a queue's entry into the registry, whatever it says.
func register(t *testing.T, addr, name, entry string) {
	t.Helper()
	raw(t, addr, "HSET", "lk:{default}:queues", name, `"`+strings.ReplaceAll(entry, `"`, `\"`)+`"`)
}

// TestQueueThatANodeCannotRead makes the jobs of a queue unreadable for a running node. The node pops none of them and says so
// until it can read them again. Its other queues go on.
func TestQueueThatANodeCannotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ entry, says string }{
		"a later release": {`{"shards":2,"layout":1,"needs":["fmt2"]}`, "needs fmt2"},
		"another codec":   {`{"shards":2,"layout":1,"codec":"aes-gcm"}`, `codec "aes-gcm"`},
		"damaged":         {`{"shards":2,"layout":1`, "the queue's entry in the registry is damaged"},
		"too many shards": {`{"shards":2000000,"layout":1}`, "2000000 shards; the number must be between 1 and 10000"},
		// What no new instance of the node could find, either: it must not end the node.
		"another number of shards":       {`{"shards":3,"layout":1}`, "3 shards"},
		"anew, another number of shards": {`{"shards":3,"layout":2}`, "3 shards"},
		"anew, a later release":          {`{"shards":2,"layout":2,"needs":["fmt2"]}`, "needs fmt2"},
		"anew, another codec":            {`{"shards":2,"layout":2,"codec":"aes-gcm"}`, `codec "aes-gcm"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 2)
			var unreadable atomic.Bool
			run, others := startOrdersBeside(t, srv.URL(), func() {
				if unreadable.Load() {
					t.Error("a job was handled that the node cannot read")
				}
			})
			write := func(entry string) {
				register(t, srv.Addr(), "orders", entry)
				run.renew()
			}
			told := func() string { return strings.Join(p.refusals(), "\n") }
			const plain = `{"shards":2,"layout":1}`
			await(t, "the node stops popping", func() bool { write(c.entry); return run.queues.handled["orders"].paused.Load() })
			unreadable.Store(true)
			await(t, "the lease says why", func() bool { return strings.Contains(told(), c.says) })
			p.push(numbered("a", 0, 3)...)
			if _, err := p.client.Register(t.Context(), lowkiq.Queue{Name: "others", Shards: 1}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.client.Push(t.Context(), "others", lowkiq.Push{ID: "goes on"}); err != nil {
				t.Fatal(err)
			}
			receive(t, "a job of the other queue", others)
			run.renew()
			if got := p.stats().Jobs.Ready; got != 1 {
				t.Errorf("%d ids are ready, want the one that waits", got)
			}
			unreadable.Store(false)
			write(plain)
			p.drained()
			await(t, "the lease says nothing", func() bool { return told() == "" })
		})
	}
}

// TestNodeStartsBesideADamagedEntry damages a queue's entry before a node starts. The node serves its other queues, reports the
// damage, and serves this queue with its settings once a person has mended the entry. Nobody overwrites it.
func TestNodeStartsBesideADamagedEntry(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{0, 2} { // as registered, and configured
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 2)
			p.ids("a", 20)
			p.set(rules.Change{}, "batch_size", "3")
			const bad, right = `{"shards":x,"layout":1}`, `{"shards":2,"layout":1}`
			db := redis.NewClient(&redis.Options{Addr: srv.Addr(), Protocol: 2, DisableIdentity: true})
			defer db.Close()
			write := func(entry string) {
				if err := db.HSet(t.Context(), "lk:{default}:queues", "orders", entry).Err(); err != nil {
					t.Fatal(err)
				}
			}
			write(bad)
			handled := make(chan string, 30)
			var largest atomic.Int64
			into := lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
				largest.Store(max(largest.Load(), int64(len(b.Jobs))))
				for _, j := range b.Jobs {
					handled <- b.Shard.Queue + " " + j.ID
				}
				return nil
			})
			run := startQueues(t, Config{Redis: srv.URL()}, func(n *Node) error {
				return errors.Join(n.Handle(QueueConfig{Name: "orders", Shards: shards}, into), n.Handle(QueueConfig{Name: "others", Shards: 1}, into))
			}).serving()
			if _, err := p.client.Push(t.Context(), "others", lowkiq.Push{ID: "goes on"}); err != nil {
				t.Fatal(err)
			}
			if got := receive(t, "a job of the other queue", handled); got != "others goes on" {
				t.Errorf("got %q handled, want that of the other queue", got)
			}
			await(t, "the status says what is wrong, where, and what would be right", func() bool {
				status, err := run.Cluster().Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				text := strings.Join(status.Warnings, "\n")
				return strings.Contains(text, "jobs of node") && strings.Contains(text, `queue "orders": the queue's entry in the registry is damaged`) &&
					strings.Contains(text, "lk:{default}:queues") && strings.Contains(text, `write {"shards":N,"layout":L} there`)
			})
			if got := db.HGet(t.Context(), "lk:{default}:queues", "orders").Val(); got != bad {
				t.Errorf("the entry is %s, want %s as it was", got, bad)
			}
			write(right)
			run.instance().keeper.RenewNow()
			receive(t, "a job of the queue whose entry was mended", handled)
			p.drained()
			if now := run.queues.handled["orders"].rulesNow().BatchSize; largest.Load() != 3 || now != 3 {
				t.Errorf("batches of %d ids at most, and the node goes by %d, want 3, by the rule that was set at run time", largest.Load(), now)
			}
		})
	}
}

// TestNodeWithoutTheCodec checks that a node without the codec of a queue does not start, because its handler would get encoded
// payloads.
func TestNodeWithoutTheCodec(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	client, err := protocol.Open(protocol.Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	same := func(p []byte) ([]byte, error) { return p, nil }
	if err := client.SetRules("orders", protocol.PushRules{Codec: protocol.Codec{Name: "same", Encode: same}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 2}); err != nil {
		t.Fatal(err)
	}
	for _, shards := range []int{0, 2} {
		n, err := New(Config{Name: "n1", Redis: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Handle(QueueConfig{Name: "orders", Shards: shards}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })); err != nil {
			t.Fatal(err)
		}
		if err := n.Run(t.Context()); !errors.Is(err, protocol.ErrCodec) || !strings.Contains(err.Error(), "QueueConfig.Codec") {
			t.Errorf("got %v, want %v that says where the codec belongs", err, protocol.ErrCodec)
		}
	}
}

// TestQueueChangesWhileItIsSought registers a queue anew with another number of shards, or deletes it, while the node looks
// for its shards. That ends neither the node nor its other queues.
func TestQueueChangesWhileItIsSought(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]string{
		"another number of shards": `{"shards":3,"layout":2}`,
		"a deletion that goes on":  `{"shards":2,"layout":2,"removing":"token"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 2)
			run, others := startOrdersBeside(t, srv.URL(), func() {})
			first := run.instance()
			register(t, srv.Addr(), "orders", entry)
			run.renew() // the client forgets the queue
			if found, err := run.queues.findQueue(t.Context(), run.queues.handled["orders"]); err == nil {
				t.Errorf("got %v, want an error", found)
			}
			if _, err := p.client.Push(t.Context(), "others", lowkiq.Push{ID: "goes on"}); err != nil {
				t.Fatal(err)
			}
			receive(t, "a job of the other queue", others)
			register(t, srv.Addr(), "orders", `{"shards":2,"layout":1}`)
			run.renew()
			if _, err := p.client.Push(t.Context(), "orders", numbered("a", 0, 3)...); err != nil {
				t.Fatal(err)
			}
			p.drained()
			if run.instance() != first {
				t.Error("the instance has ended, and with it the calls of all queues")
			}
		})
	}
}

// TestLaterQueueStopsNoPlan checks that a queue of a later release does not stop plans and the status of other queues. The
// first plan of a group starts from the claims of readable queues, and the status and the list of shards show these, with a
// warning.
func TestLaterQueueStopsNoPlan(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	register(t, srv.Addr(), "later", `{"shards":2,"layout":1,"needs":["fmt2"]}`)
	run := start(t, Config{Redis: srv.URL(), Bind: "127.0.0.1:0", TTL: 3 * time.Second}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error { return nil })
	await(t, "a plan", func() bool {
		a := run.cluster.Load().AgreedPlan()
		return a != nil && len(a.Owned("n1")) == 2
	})
	list, err := run.Cluster().Shards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Queue != "orders" {
		t.Errorf("got shards %v, want the two of orders", list)
	}
	status, err := run.Cluster().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(status.Warnings, "\n"), "needs fmt2") {
		t.Errorf("got warnings %q, want one of the other queue", status.Warnings)
	}
	if entries, err := run.client.Registry().Entries(t.Context()); err != nil || len(entries) != 1 || entries["orders"].Shards != 2 {
		t.Errorf("got %v, %v, want the queue that the API shows figures of: orders", entries, err)
	}
}

// TestQueueRegisteredAnew deletes a queue and registers it anew while a node that knows its first shards starts. The node goes
// on with the new shards.
func TestQueueRegisteredAnew(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := open(t, server.URL(), 2)
	run := start(t, Config{Redis: server.URL()}, QueueConfig{Shards: 2}, func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	first := run.instance()
	db := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	defer db.Close()
	if err := db.HSet(t.Context(), "lk:{default}:queues", "orders", `{"shards":2,"layout":1,"removed":true}`).Err(); err != nil {
		t.Fatal(err)
	}
	run.renew() // it registers the queue anew
	await(t, "the queue is registered anew", func() bool {
		entries, err := p.client.Registry().Entries(t.Context())
		return err == nil && entries["orders"].Layout == 2
	})
	run.renew()
	anew, err := p.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anew.Push(t.Context(), lowkiq.Push{ID: "a"}, lowkiq.Push{ID: "b"}, lowkiq.Push{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	await(t, "its jobs are handled", func() bool {
		stats, err := anew.Stats(t.Context())
		return err == nil && stats.Processed == 3
	})
	if run.instance() != first {
		t.Error("the instance has ended, and with it the calls of all queues")
	}
}

// TestOtherShards gives a queue other shards while a handler has a job of a former shard and another queue's handler works. The
// first call is cancelled. No present shard is claimed before it returns, because an id may be in both (I1). The other queue
// does not notice anything.
func TestOtherShards(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 2)
	type call struct {
		context.Context
		end chan struct{}
	}
	calls := map[string]chan call{"orders": make(chan call), "others": make(chan call)}
	handler := lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
		of := call{ctx, make(chan struct{})}
		calls[b.Shard.Queue] <- of
		<-of.end
		return context.Cause(ctx)
	})
	run := startQueues(t, Config{Redis: srv.URL()}, func(n *Node) error {
		return errors.Join(n.Handle(QueueConfig{Name: "orders"}, handler), n.Handle(QueueConfig{Name: "others", Shards: 3}, handler))
	}).serving()
	first := run.instance()
	for name := range calls {
		if _, err := p.client.Push(t.Context(), name, lowkiq.Push{ID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	former, other := receive(t, "a call", calls["orders"]), receive(t, "a call of the other queue", calls["others"])
	register(t, srv.Addr(), "orders", `{"shards":5,"layout":2}`)
	run.renew()
	receive(t, "the end of the call's context", former.Done())
	if why := context.Cause(former); !errors.Is(why, lowkiq.ErrLeaseLost) {
		t.Errorf("got %v, want %v", why, lowkiq.ErrLeaseLost)
	}
	run.renew()
	owned := func(name string) int { return first.ownership.countShards()[name] }
	await(t, "the shard with the call is left", func() bool { return owned("orders") == 1 })
	if on := run.queues.handled["orders"]; on.queue.Load().Shards != 2 || run.queues.present(on) != nil {
		t.Error("the node works on the present shards while a handler has a job of a former shard")
	}
	close(former.end)
	await(t, "the present shards are claimed", func() bool { return owned("orders") == 5 })
	if _, err := run.Client().Push(t.Context(), "orders", lowkiq.Push{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	close(receive(t, "a call for a present shard", calls["orders"]).end)
	if n, series := scrape(t, run, "lowkiq_queue_shards", "orders"); n != 5 || series != 1 {
		t.Errorf("lowkiq_queue_shards: got %v, want 5", n)
	}
	if other.Err() != nil || owned("others") != 3 || run.instance() != first {
		t.Errorf("other queue: %v, %d shards; want that it goes on, in the same instance", context.Cause(other), owned("others"))
	}
	close(other.end)
}

// TestRegistryIsReadInOrder checks that an old answer about the registry does not replace a later answer, although several
// goroutines read it. Otherwise a queue would lose its present shards for a moment, and their calls.
func TestRegistryIsReadInOrder(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	n := prepared(t, srv.URL())
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if _, err := n.queues.readRegistry(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	last := 0
	for layout := range 300 {
		register(t, srv.Addr(), "orders", fmt.Sprintf(`{"shards":1,"layout":%d}`, layout+1))
		await(t, "the entry is read", func() bool {
			r := n.queues.registry.Load()
			if r == nil {
				return false
			}
			now := r.entries["orders"].Layout
			if now < last {
				t.Fatalf("layout %d after layout %d", now, last)
			}
			last = now
			return now == layout+1
		})
	}
}

// TestAwaitedQueue checks that a queue which other processes register is handled from its registration on.
func TestAwaitedQueue(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	handled := make(chan string, 1)
	run := startQueues(t, Config{Redis: srv.URL()}, func(n *Node) error {
		into := lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error { handled <- b.Jobs[0].ID; return nil })
		err := errors.Join(n.Handle(QueueConfig{Name: "orders"}, into), n.Handle(QueueConfig{Name: "others", Shards: 1}, lowkiq.HandlerFunc(nothing)))
		n.queues.handled["orders"].builtIn = true
		return err
	}).serving()
	first := run.instance()
	run.renew()
	if entries, err := run.client.Registry().Entries(t.Context()); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v, want that the node registers the other queue only", entries, err)
	}
	p := open(t, srv.URL(), 3)
	run.renew()
	p.push(lowkiq.Push{ID: "a"})
	if id := receive(t, "the job", handled); id != "a" || run.instance() != first {
		t.Errorf("got job %s in %s, want a in %s", id, run.instance().name, first.name)
	}
}
