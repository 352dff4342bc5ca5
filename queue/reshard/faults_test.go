package reshard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// newWorldAt returns a world on a Redis that runs.
func newWorldAt(t *testing.T, url string) *world {
	r := &world{T: t, url: url}
	r.client = r.open()
	return r
}

// producers push numbered payloads, and repeat a push whose error is transient.
type producers struct {
	mu     sync.Mutex
	stored map[string]int // number of payloads of each id that are stored for sure, from 1 on
	stop   func()
}

// produce starts producers, each with ids of its own.
func (r *world) produce(q *protocol.Queue) *producers {
	ctx, cancel := context.WithCancel(r.Context())
	p := &producers{stored: map[string]int{}}
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			for k := 1; ctx.Err() == nil; k++ {
				for i := range 10 {
					id := fmt.Sprintf("live-%d-%d", n, i)
					for ctx.Err() == nil {
						_, err := q.Push(ctx, lowkiq.Push{ID: id, Payload: []byte(strconv.Itoa(k))})
						if err == nil {
							p.mu.Lock()
							p.stored[id] = k
							p.mu.Unlock()
							break
						}
						if ctx.Err() == nil && !protocol.Transient(err) {
							r.Errorf("push: %v", err)
							return
						}
						_ = sleep.For(ctx, 20*time.Millisecond)
					}
				}
				_ = sleep.For(ctx, 5*time.Millisecond)
			}
		})
	}
	p.stop = func() { cancel(); group.Wait() }
	return p
}

// check compares the payloads that handlers get with those that were stored. Of each id they rise, and none is missing.
func (p *producers) check(t *testing.T, handled map[string][]string) {
	t.Helper()
	total := 0
	for id, last := range p.stored {
		before := 0
		for _, text := range handled[id] {
			n, _ := strconv.Atoi(text)
			if n != before+1 {
				t.Errorf("%s: payload %d came after %d", id, n, before)
			}
			before = n
		}
		if total += before; before < last {
			t.Errorf("%s: got %d payloads, and %d were stored", id, before, last)
		}
		delete(handled, id)
	}
	for id := range handled {
		if strings.HasPrefix(id, "live-") { // a payload whose push was given up at the end
			delete(handled, id)
		}
	}
	t.Logf("%d payloads were pushed meanwhile", total)
	if total == 0 {
		t.Error("nothing was pushed meanwhile")
	}
}

// TestReshardWhileSlotsMove reshards a queue in a Redis Cluster while the slots of its old and new shards move from master
// to master, key by key, and producers push.
func TestReshardWhileSlotsMove(t *testing.T) {
	tier.All(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	r := newWorldAt(t, cluster.URL())
	q := r.queue("orders", 4)
	pushes, want := pushesOf(3000)
	r.push(q, pushes...)
	p := r.produce(q)
	moves := 0
	for _, shards := range []int{6, 3} {
		_, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: shards})
		r.must(err)
		l, _ := layoutsOf(r.client.Registry(), "orders", r.entry("orders"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.drive(r.driver(r.open()), "orders")
		}()
		all := append(l.from.All(), l.to.All()...)
		for i := 0; ; i++ {
			slot := cluster.SlotOf(all[i%len(all)].Keys().Jobs)
			from := cluster.OwnerOf(slot)
			move := cluster.BeginMove(slot, from, (from+1)%3)
			for move.Step(1) {
			}
			move.Finish()
			moves++
			select {
			case <-done:
			default:
				if i < 200 {
					continue
				}
				<-done
			}
			break
		}
		if e := r.entry("orders"); e.Shards != shards || e.Copying() || e.Reshard != nil {
			t.Fatalf("got the entry %+v", e)
		}
	}
	p.stop()
	t.Logf("%d slots have moved meanwhile", moves)
	handled := r.handle("orders")
	p.check(t, handled)
	r.checkHandled(handled, want)
}

// afterTakes calls a function once, after a number of requests to take jobs.
type afterTakes struct {
	faults
	left atomic.Int64
	do   func()
}

func (a *afterTakes) isTake(take string) func(string) bool {
	return func(sha string) bool {
		if sha == take && a.left.Add(-1) == 0 {
			a.do()
		}
		return false
	}
}

// TestReshardOverFailover kills the master while jobs are copied. Sentinel promotes the replica, and the reshard ends there. Nothing
// that was stored before is missing or in another order.
func TestReshardOverFailover(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, takes := range []int64{1, 4, 9} { // among the floors, and among the copies
		t.Run(fmt.Sprint("after ", takes), func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartSentinel(t)
			r := newWorldAt(t, servers.URL())
			q := r.queue("orders", 5)
			pushes, want := pushesOf(5000)
			r.push(q, pushes...)
			_, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: 7, Patience: time.Minute})
			r.must(err)
			driving := r.open()
			r.must(driving.DB().Load(t.Context()))
			kill := &afterTakes{do: func() { servers.KillMaster() }}
			kill.left.Store(takes)
			kill.is = kill.isTake(driving.DB().Scripts.Take.SHA())
			driving.DB().ForTests().AddHook(kill)
			r.drive(r.driver(driving), "orders")
			if kill.left.Load() > 0 {
				t.Fatal("the master was not killed")
			}
			if e := r.entry("orders"); e.Shards != 7 || e.Copying() || e.Reshard != nil {
				t.Fatalf("got the entry %+v", e)
			}
			now, err := r.open().Queue(t.Context(), "orders")
			r.must(err)
			r.push(now, "id-0:3")
			want["id-0"] = append(want["id-0"], "3")
			r.checkHandled(r.handle("orders"), want)
		})
	}
}

// TestReshardOfAFullRedis fills Redis while jobs are copied. The new shards stay closed and lose nothing, pushes are refused with an
// error, and the reshard ends once Redis has room.
func TestReshardOfAFullRedis(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newWorldAt(t, redistest.Start(t, "--maxmemory-policy", "noeviction").URL())
	ctx := t.Context()
	q := r.queue("orders", 3)
	pushes, want := pushesOf(20_000)
	r.push(q, pushes...)
	p := r.produce(q)
	var full atomic.Int64
	d := r.driver(r.open())
	d.Failed = func(_ string, err error) {
		if strings.Contains(err.Error(), "out of memory") || strings.Contains(err.Error(), "OOM") {
			full.Add(1)
		} else {
			t.Errorf("got %v, want that Redis is full", err)
		}
	}
	_, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 7})
	r.must(err)
	used, err := r.client.Info(ctx)
	r.must(err)
	bytes, _ := strconv.Atoi(used[0].Fields["used_memory"])
	limit := func(n int) { r.must(r.client.DB().ForTests().ConfigSet(ctx, "maxmemory", strconv.Itoa(n)).Err()) }
	limit(bytes + 1536<<10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.drive(d, "orders")
	}()
	for end := time.Now().Add(time.Minute); full.Load() < 3; _ = sleep.For(ctx, 10*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("Redis is never full")
		}
	}
	progress, err := Read(ctx, r.client, "orders")
	r.must(err)
	if !progress.UnderWay() || progress.Open == progress.To {
		t.Errorf("with a full Redis: got %s", progress.String())
	}
	t.Logf("with a full Redis: %s", progress.String())
	limit(0)
	<-done
	p.stop()
	if e := r.entry("orders"); e.Shards != 7 || e.Copying() || e.Reshard != nil {
		t.Fatalf("got the entry %+v", e)
	}
	handled := r.handle("orders")
	p.check(t, handled)
	r.checkHandled(handled, want)
}

// TestDeliveryOverAReshard loses the answer of a delivery, before the flip and after it. The sender repeats it when the jobs have
// moved, and the job is there once.
func TestDeliveryOverAReshard(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	r.queue("orders", 3)
	sender := r.open()
	old, err := sender.Queue(ctx, "orders")
	r.must(err)
	r.must(sender.DB().Load(ctx))
	on := false
	lose := &faults{lose: true, is: func(sha string) bool { return on && sha == sender.DB().Scripts.Deliver.SHA() }}
	sender.DB().ForTests().AddHook(lose)
	deliver := func(number int64) error {
		_, err := old.Deliver(ctx, protocol.Delivery{Source: "s", Number: number}, lowkiq.Push{ID: "a", Payload: fmt.Append(nil, number)})
		return err
	}
	losing := func(number int64) {
		t.Helper()
		on, lose.calls = true, 0
		if err := deliver(number); err == nil || errors.Is(err, protocol.ErrDelivered) {
			t.Fatalf("got %v, want a lost answer", err)
		}
		on = false
	}
	losing(1)
	_, err = Begin(ctx, r.client, Request{Queue: "orders", Shards: 5})
	r.must(err)
	d := r.driver(r.client)
	for r.entry("orders").Reshard != nil {
		_, _, err := d.takeStep(ctx, "orders", nil)
		r.must(err)
	}
	if err := deliver(1); !errors.Is(err, protocol.ErrDelivered) {
		t.Errorf("after the flip: got %v, want ErrDelivered", err)
	}
	_, err = old.Push(ctx, lowkiq.Push{ID: "b", Payload: []byte("1")}) // the sender learns of the flip
	r.must(err)
	losing(2)
	r.drive(d, "orders")
	for number := int64(1); number <= 2; number++ {
		if err := deliver(number); !errors.Is(err, protocol.ErrDelivered) {
			t.Errorf("delivery %d after the reshard: got %v, want ErrDelivered", number, err)
		}
	}
	r.must(deliver(3))
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1", "2", "3"}, "b": {"1"}})
}
