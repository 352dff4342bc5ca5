//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const outage = 2 * ttl // longer than a lease lives

// TestRedisFrozen freezes Redis for longer than a lease. Redis goes on with its data, and the node goes on by itself.
// Nothing is lost, no retry is spent, and no id runs twice at once. Meanwhile a producer gets a clear error.
// TestClusterRedisAway stops Redis.
func TestRedisFrozen(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	w := r.start(settings{Work: 20 * time.Millisecond})
	q := r.impatient()
	r.push(plainJobs(longID, 4)...) // under way when the lease is lost
	r.await("the long jobs are under way", patience, func() bool { return r.owns("n1") && r.stats().Jobs.InFlight == 4 })
	r.push(plainJobs("before", 600)...)
	r.await("the worker is busy", patience, func() bool { return r.stats().Processed > 50 })
	r.redis.Pause()
	r.pushesFail(q, outage)
	r.redis.Resume()
	back := time.Now()
	r.pushesAgain()
	r.drained()
	t.Logf("drained %s after the end of the outage", time.Since(back))
	w.terminate(patience)
	// What was done during the outage and could not be acked is done again: in each
	// shard at most what had been popped for the next 50 ms, and one job more.
	unacked := r.shards * 4
	v := r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: unacked, MaxUncaused: unacked})
	if v.Failed == 0 {
		t.Error("got no handler call cut off by the lost lease: the test would show little")
	}
	r.noneFailed()
}

// pushesFail pushes for as long as an outage is to last. Each push must fail in time
// and say where Redis should have been.
func (r *rig) pushesFail(q *protocol.Queue, outage time.Duration) {
	r.t.Helper()
	tries := 0
	for began := time.Now(); time.Since(began) < outage; tries++ {
		sent := time.Now()
		err := r.pushTo(q, plainJob(fmt.Sprintf("meanwhile-%d", tries)))
		switch {
		case err == nil:
			r.t.Fatal("got a successful push, want an error while redis is away")
		case !protocol.Unreachable(err) || !strings.Contains(err.Error(), r.redis.Addr()):
			r.t.Fatalf("got %q, want an error that says that redis %s is unreachable", err, r.redis.Addr())
		case time.Since(sent) > time.Second+slack:
			r.t.Fatalf("got an error after %s, want it within %s at a timeout of 1 s", time.Since(sent), time.Second+slack)
		}
		<-time.After(200 * time.Millisecond)
	}
	r.t.Logf("%d pushes were refused", tries)
}

// impatient is the queue of a pusher that waits for Redis for a second.
func (r *rig) impatient() *protocol.Queue {
	r.t.Helper()
	client, err := protocol.Open(protocol.Config{Redis: r.url, Cluster: r.cluster, Timeout: time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { client.Close() })
	q, err := client.Queue(r.t.Context(), queueName)
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

// pushesAgain waits until pushes succeed: a client that saw many refused connections
// tries a new one only once a second.
func (r *rig) pushesAgain() {
	r.t.Helper()
	try := 0
	r.await("a push succeeds after the outage", patience, func() bool {
		try++
		return r.tryPush(plainJob(fmt.Sprintf("again-%d", try))) == nil
	})
	r.push(plainJobs("after", 20)...)
}

// TestStubbornHandlerEndsTheProcess runs a handler that ignores its cancel while Redis is away. The process exits with
// status 75 before another instance could seize its lease (0.9 ttl), and the next process does the work.
//
// Another instance holds one of the shards, so the node asks Redis for it again and again. The process must end in time
// also while it waits for such an answer.
func TestStubbornHandlerEndsTheProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	release := r.hold(1 - lowkiq.ShardOf("a", 2))
	w := r.start(settings{Handler: "stubborn"})
	r.push(plainJob("a"))
	r.works(w)
	paused := time.Now()
	r.redis.Pause()
	status := w.exits(patience)
	took := time.Since(paused)
	r.redis.Resume()
	if limit := ttl + slack; status != "exit status 75" || took > limit {
		t.Errorf("got %s after %s, want exit status 75 within %s", status, took, limit)
	}
	r.died(w, 0)
	release()
	next := r.start(settings{})
	r.works(next)
	r.drained()
	next.terminate(patience)
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}

// hold claims a shard for an instance that lives. release ends that.
func (r *rig) hold(shard int) (release func()) {
	r.t.Helper()
	const instance = "other/0.1"
	if _, err := r.client.Leases().Take(r.t.Context(), instance, nil, []byte("{}"), time.Hour); err != nil {
		r.t.Fatal(err)
	}
	claim, err := r.queue.Shard(shard).Claim(r.t.Context(), instance, protocol.Fresh, protocol.Owner{})
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if _, err := claim.Release(r.t.Context()); err != nil {
			r.t.Error(err)
		}
	}
}
