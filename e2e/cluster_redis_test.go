//go:build linux

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestClusterRedisAway stops Redis under five nodes for longer than a lease, and starts it again with its data. The
// same shards resume on the same nodes. Then Redis loses its data, and the nodes handle the jobs that are pushed from
// then on (I2, I4).
func TestClusterRedisAway(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newFleet(t, settings{TTL: 2 * ttl}, redistest.Durable...)
	f.upAll(names(5)...)
	f.balanced(patience)
	f.parts()
	began := judge.Now()
	f.redis.Stop()
	outage := 2 * f.settings.TTL
	<-time.After(outage)
	f.redis.Restart()
	back := judge.Now()
	f.balanced(patience)
	f.t.Logf("Redis away for %s: all shards held again %s after it was back", outage, (f.served(back) - back).Round(time.Millisecond))
	if moves := f.watch.since(began); len(moves) > 0 {
		t.Errorf("Redis away: got %d moves, want none: %+v", len(moves), moves[0])
	}
	if f.flow.failed.Swap(0) == 0 {
		t.Error("got no failed push during the outage: the test would show little")
	}
	f.forgets()
	// What was finished and could not be acked during the outage is done again.
	unacked := len(fleetQueues) * fleetShards
	f.finish(judge.Config{MaxDuplicates: unacked, MaxUncaused: unacked})
}

// served waits until every node has handled a job that was pushed after a moment, and
// returns when all shards had an owner.
func (f *fleet) served(after time.Duration) (at time.Duration) {
	f.t.Helper()
	f.await("every shard is claimed anew", patience, func() bool {
		_, at = f.watch.spread()
		return at > after
	})
	return at
}

// forgets empties Redis.
func (f *fleet) forgets() {
	f.t.Helper()
	admin := f.admin()
	f.booking.Lock() // no push between the two
	f.mu.Lock()
	for i := range f.pushed {
		f.pushed[i].Optional = true
	}
	err := admin.FlushAll(f.t.Context()).Err()
	f.mu.Unlock()
	f.booking.Unlock()
	if err == nil {
		err = admin.ScriptFlush(f.t.Context()).Err()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	emptied := judge.Now()
	f.balanced(patience)
	f.t.Logf("Redis emptied: all shards served %s later", (f.served(emptied) - emptied).Round(time.Millisecond))
	f.parts()
}

// TestClusterDefaultTTL stops two of three voters at the default ttl, among them the leader. Their processes exist but
// send nothing, as after a loss of power. The others return within 15 s.
func TestClusterDefaultTTL(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := newFleet(t, settings{TTL: 6 * time.Second})
	f.upAll(names(5)...)
	f.balanced(patience)
	leader, voters, _ := f.parts()
	lost := []*process{f.nodes[leader], f.nodes[voters[0]]}
	frozen := judge.Now()
	for _, p := range lost {
		p.mortal.Store(true)
		p.signal(syscall.SIGSTOP)
	}
	delete(f.nodes, leader)
	delete(f.nodes, voters[0])
	took := f.balanced(15*time.Second+slack) - frozen
	t.Logf("loss of two of three voters at a ttl of %s: their last shard served elsewhere after %s", f.settings.TTL, took.Round(time.Millisecond))
	for _, p := range lost { // what they were at ended, for the others, when they froze
		p.signal(syscall.SIGKILL)
		<-p.ended
		f.died(p, frozen)
	}
	if v := f.finish(judge.Config{MaxDuplicates: -1}); v.Deaths != 2 {
		t.Errorf("got %d deaths, want 2", v.Deaths)
	}
}
