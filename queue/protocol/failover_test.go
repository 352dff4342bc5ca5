package protocol_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// flow pushes numbered payloads and handles them until it is stopped. It repeats steps that fail for a
// transient reason.
type flow struct {
	t       *testing.T
	r       *rig
	pushed  int
	handled map[string]int // payload -> times
	calling atomic.Int64   // who calls until quiet
	called  atomic.Int64   // calls that have ended
}

// run moves total payloads through the queue. It calls disturb when half are pushed, and all must be
// handled after disturb has returned.
func (f *flow) run(total int, disturb func()) {
	ctx, cancel := context.WithTimeout(f.r.ctx, 3*patience)
	defer cancel()
	half, quiet := make(chan struct{}), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() { f.push(ctx, total, half, quiet) })
	work.Go(func() { f.handle(ctx, total) })
	for n := range 3 {
		f.calling.Add(1)
		work.Go(func() {
			defer f.calling.Add(-1)
			f.call(ctx, n, quiet)
		})
	}
	<-half
	disturb()
	close(quiet)
	work.Wait()
}

// again repeats op while its error is transient. The first other error ends the test.
func (f *flow) again(ctx context.Context, op func() error) bool {
	for {
		err := op()
		if err == nil {
			return true
		}
		if !Transient(err) || ctx.Err() != nil {
			f.t.Errorf("got %v, want a transient error at most", err)
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// push goes on until the disturbance has ended.
func (f *flow) push(ctx context.Context, total int, half, quiet chan struct{}) {
	var once sync.Once
	defer once.Do(func() { close(half) })
	for f.pushed = 0; f.pushed < total; f.pushed++ {
		if f.pushed == total/2 {
			once.Do(func() { close(half) })
		}
		if f.pushed == total-total/4 {
			select {
			case <-quiet:
			case <-ctx.Done():
			}
		}
		n := f.pushed
		if !f.again(ctx, func() error {
			_, err := f.r.q.Push(ctx, job(fmt.Sprint("id", n%7), strconv.Itoa(n)))
			return err
		}) {
			return
		}
	}
}

func (f *flow) handle(ctx context.Context, total int) {
	var acks []Acks
	for len(f.handled) < total || len(acks) > 0 || f.calling.Load() > 0 {
		var p Popped
		if !f.again(ctx, func() (err error) {
			p, err = f.r.claim.Pop(ctx, PopRequest{IDs: 3, Bytes: 1 << 20, Acks: acks})
			return err
		}) {
			return
		}
		acks = nil
		for _, j := range p.Jobs {
			f.see(j)
		}
		if len(p.Jobs) > 0 {
			acks = []Acks{{Flight: p.Flight, Rest: true}}
			for _, j := range p.Jobs {
				if j.Callers > 0 {
					acks[0].IDs = append(acks[0].IDs, j.ID)
					acks[0].Answers = append(acks[0].Answers, Answer{ID: j.ID, Callers: j.Callers, Result: j.Payloads[0].Data, SetState: true, State: j.Payloads[0].Data})
				}
			}
		}
		if ctx.Err() != nil {
			f.t.Errorf("handled %d of %d payloads in time", len(f.handled), total)
			return
		}
	}
}

// see records payloads. Those of one call must be in push order (I3).
func (f *flow) see(j lowkiq.Job) {
	if !slices.IsSortedFunc(j.Payloads, func(x, y lowkiq.Payload) int { return number(x) - number(y) }) {
		f.t.Errorf("%s: got %v, want push order", j.ID, dataOf(j.Payloads))
	}
	for _, p := range j.Payloads {
		if j.Callers == 0 {
			f.handled[string(p.Data)]++
		}
	}
}

// call makes calls until all is quiet. Each call gets its result, whatever happens meanwhile.
func (f *flow) call(ctx context.Context, caller int, quiet <-chan struct{}) {
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-quiet:
			return
		default:
		}
		text := fmt.Sprintf("%d-%d", caller, n)
		got, err := f.r.c.Call(ctx, "q", job("call "+text, text))
		switch {
		case err == nil && string(got.Result) == text:
			f.called.Add(1)
		case err != nil && got.State == "" && Transient(err): // the push
		default:
			f.t.Errorf("call %s: got %+v, %v", text, got, err)
			return
		}
	}
}

func number(p lowkiq.Payload) int {
	n, _ := strconv.Atoi(string(p.Data))
	return n
}

// TestSlotMove moves a slot to another master while jobs flow through it, as the user of docs/security.md.
func TestSlotMove(t *testing.T) {
	tier.All(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	r := newRig(t, &backend{url: clusterUser(t, cluster, "lowkiq")})
	f := &flow{t: t, r: r, handled: map[string]int{}}
	slot := cluster.SlotOf(r.s.Keys().Jobs)
	f.run(1500, func() {
		for range 2 {
			from := cluster.OwnerOf(slot)
			move := cluster.BeginMove(slot, from, (from+1)%3)
			for move.Step(1) {
			}
			move.Finish()
		}
	})
	eq(t, "payloads handled", len(f.handled), 1500)
	t.Logf("%d calls have ended", f.called.Load())
	if f.called.Load() == 0 {
		t.Error("no call has ended")
	}
	for payload, n := range f.handled {
		if n > 2 {
			t.Errorf("payload %s: handled %d times", payload, n)
		}
	}
}

// TestSentinel pushes, pops and acks through the sentinels, and again after the master was killed, as the
// users of docs/security.md. All that the replica had is there.
func TestSentinel(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := redistest.StartSentinel(t)
	r := newRig(t, &backend{url: sentinelUser(t, s)}, func(c *Config) { c.Timeout = 10 * time.Second })
	r.push(job("a", "1"), job("b", "1"), job("c", "1"))
	_, flight := r.popOne("a")
	eq(t, "acked", r.ack(flight, "a"), 1)
	called := make(chan error, 1)
	go func() {
		got, err := r.c.Call(r.ctx, "q", job("called", "1", in(time.Hour)))
		if err == nil && got.State != lowkiq.ReplyDeleted {
			err = fmt.Errorf("got %+v", got)
		}
		called <- err
	}()
	until(t, "a call waits", func() bool { return r.c.WaitingStored() == 1 })
	p := r.pop(1)
	if n, err := r.c.DB().ForTests().(*redis.Client).Wait(r.ctx, 1, 10*time.Second).Result(); err != nil || n != 1 {
		t.Fatalf("wait for the replica: got %d, %v", n, err)
	}
	s.KillMaster()
	var failures []error
	until(t, "a push after the failover", func() bool {
		_, err := r.q.Push(r.ctx, job("d", "1"))
		if err != nil {
			failures = append(failures, err)
		}
		return err == nil
	})
	for _, err := range failures {
		if !Transient(err) {
			t.Errorf("during the failover: got %v, want a transient error", err)
		}
	}
	eq(t, "ack of the open flight", r.ack(p.Flight, "b"), 1)
	eq(t, "drained", show(r.drain()...), "c[1] d[1]")
	r.noErr2(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "called"))
	r.noErr(<-called)
}
