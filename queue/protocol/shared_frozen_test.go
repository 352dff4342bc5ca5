package protocol_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestFrozenMasterHoldsUpNoOther freezes a master of a Redis Cluster. Pops and acks of the other masters' shards go on,
// also in shared requests. Those of the frozen master go on after its thaw.
func TestFrozenMasterHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	m := newMany(t, (&backend{url: cluster.URL()}).open(t, func(cfg *Config) { cfg.PoolSize = 4 }), 48)
	frozen := map[int]bool{}
	for i := range m.claims {
		if cluster.OwnerOf(cluster.SlotOf(m.q.Shard(i).Keys().Claim)) == 0 {
			frozen[i] = true
		}
	}
	if len(frozen) == 0 || len(frozen) == len(m.claims) {
		t.Fatalf("%d of %d shards are on one master, want some", len(frozen), len(m.claims))
	}
	for i := range 480 {
		m.push(job(fmt.Sprint("id", i), "1"))
	}
	for _, claim := range m.claims { // all connections are there
		_, err := claim.Pop(m.ctx, PopRequest{IDs: 1, Bytes: 1 << 20})
		m.noErr(err)
	}
	cluster.Masters[0].Pause()
	var others, all sync.WaitGroup
	errs := make([]error, len(m.claims))
	for i, claim := range m.claims {
		work := func() {
			for flight := int64(1); flight <= 5 && errs[i] == nil; flight++ {
				var p Popped
				p, errs[i] = claim.Pop(m.ctx, PopRequest{IDs: 1, Bytes: 1 << 20, Acks: []Acks{{Flight: flight, Rest: true}}})
				if errs[i] == nil {
					_, errs[i] = claim.Ack(m.ctx, Acks{Flight: p.Flight, Rest: true})
				}
			}
		}
		if frozen[i] {
			all.Go(work)
		} else {
			others.Go(work)
		}
	}
	ended := make(chan struct{})
	go func() { others.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("a frozen master holds up others")
	}
	cluster.Masters[0].Resume()
	others.Wait()
	all.Wait()
	for i, err := range errs {
		if err != nil && !Transient(err) { // the others may have noticed that it is away
			t.Errorf("shard %d: %v", i, err)
		}
	}
}

// TestHungRedisEndsSharedRequests freezes Redis until requests time out, again and again. Each caller gets an error,
// none waits for ever, no goroutine is left, and everything works when Redis does.
func TestHungRedisEndsSharedRequests(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	m := newMany(t, b.open(t), 100)
	for i := range 1000 {
		m.push(job(fmt.Sprint("id", i), "1"))
	}
	m.impatient(b, 300*time.Millisecond)
	server.Pause()
	var all sync.WaitGroup
	for i, claim := range m.claims {
		all.Go(func() {
			_, err := claim.Pop(m.ctx, PopRequest{IDs: 10, Bytes: 1 << 20})
			if err == nil || !Transient(err) {
				t.Errorf("shard %d: got %v, want a transient error", i, err)
			}
		})
	}
	all.Wait()
	server.Resume()
	got := map[string]bool{}
	for i, claim := range m.claims {
		var p Popped
		until(t, "redis answers", func() (ok bool) {
			var err error
			p, err = claim.Pop(m.ctx, PopRequest{IDs: 100, Bytes: 1 << 20})
			return err == nil
		})
		if p.Flight != 1 {
			t.Errorf("shard %d: flight %d, want 1", i, p.Flight)
		}
		for _, j := range p.Jobs {
			if got[j.ID] || lowkiq.ShardOf(j.ID, 100) != i {
				t.Errorf("%s again", j.ID)
			}
			got[j.ID] = true
		}
	}
}

// impatient gives the claims to a client with a short timeout. On a busy machine that timeout would be too
// short to fill the queue.
func (m *many) impatient(b *backend, timeout time.Duration) {
	m.t.Helper()
	c := b.open(m.t, func(cfg *Config) { cfg.Cluster, cfg.Timeout = m.c.Cluster(), timeout })
	c.SetSharePatience(time.Hour)
	var q *Queue
	until(m.t, "the queue is known", func() (ok bool) {
		var err error
		q, err = c.Queue(m.ctx, m.q.Name)
		return err == nil
	})
	for i, claim := range m.claims {
		m.claims[i] = q.Shard(i).Adopt(claim.Instance, claim.Fence)
	}
	m.c, m.q = c, q
}

// TestDeadConnectionsHoldUpNoOther breaks the connections of the shared requests, and no others. A pop that waits for
// the next request is sent alone.
func TestDeadConnectionsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 20)
	m.c.SetSharePatience(time.Millisecond)
	for i := range 100 {
		m.push(job(fmt.Sprint("id", i), "1"))
	}
	dead := &deadConnections{release: make(chan struct{})}
	dead.left.Store(2)
	m.c.DB().ForTests().AddHook(dead)
	pop := func(claim *Claim) {
		if _, err := claim.Pop(m.ctx, PopRequest{IDs: 100, Bytes: 1 << 20}); err != nil {
			t.Error(err)
		}
	}
	var held, others sync.WaitGroup
	for _, claim := range m.claims[:2] {
		held.Go(func() { pop(claim) })
	}
	until(t, "two requests hang", func() bool { return dead.left.Load() <= 0 })
	for _, claim := range m.claims[2:] {
		others.Go(func() { pop(claim) })
	}
	ended := make(chan struct{})
	go func() { others.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("two dead connections hold up all shards")
	}
	close(dead.release)
	held.Wait()
	others.Wait()
	for _, claim := range m.claims {
		pop(claim)
	}
}

// deadConnections is a hook that holds up a number of scripts.
type deadConnections struct {
	left    atomic.Int64
	release chan struct{}
}

func (d *deadConnections) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *deadConnections) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && d.left.Add(-1) >= 0 {
			<-d.release
		}
		return next(ctx, cmd)
	}
}

func (d *deadConnections) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
