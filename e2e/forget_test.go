//go:build linux

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// admin is an operator's connection to the test's Redis.
func (r *rig) admin() *redis.Client {
	return r.adminOf(r.redis)
}

// adminOf is a client of one server.
func (r *rig) adminOf(server *redistest.Server) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	r.t.Cleanup(func() { client.Close() })
	return client
}

// TestScriptsForgotten makes Redis forget its scripts again and again, as after a failover.
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	admin := r.admin()
	w := r.start(settings{TTL: calmTTL, Work: time.Millisecond})
	feed := r.feed(realEvents(3000))
	feed.share(1, 1)
	r.works(w)
	flushes := 0
	r.await("all was pushed while scripts vanished", patience, func() bool {
		flushes++
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return len(feed.done) > 0
	})
	feed.finish()
	r.drained()
	w.terminate(patience)
	t.Logf("%d times forgotten", flushes)
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}

// TestRedisFull holds Redis at its maxmemory for longer than a lease. Pushes fail with a clear error, nodes handle the
// stored jobs, and everything goes on afterwards.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, 16)
	admin := r.admin()
	const lives = 2 * ttl
	w := r.start(settings{TTL: lives, Work: 20 * time.Millisecond})
	r.push(plainJobs("before", 400)...)
	r.works(w)
	limit := func(bytes string) {
		t.Helper()
		if err := admin.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1")
	full := time.Now()
	r.drained()
	r.await("redis was full for longer than a ttl", patience, func() bool {
		err := r.tryPush(plainJob("meanwhile"))
		if err == nil || !strings.Contains(err.Error(), "OOM") || !strings.Contains(err.Error(), r.redis.Addr()) {
			t.Fatalf("got %v, want an error that says OOM and names redis %s", err, r.redis.Addr())
		}
		return time.Since(full) > lives+time.Second
	})
	limit("0")
	r.push(plainJobs("after", 50)...)
	r.drained()
	w.terminate(patience)
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}
