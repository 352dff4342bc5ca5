package redisdb_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestRedirectedCommandComesOnce sends two commands to a master that tells the client to try the first again, and redirects
// the second. The second must come once.
func TestRedirectedCommandComesOnce(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	db, err := redisdb.Open(redisdb.Config{URL: cluster.URL(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	do := func(args ...any) any {
		reply, err := db.Do(t.Context(), "prepare", args...)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	const a, b, counter = "{half}:a", "{half}:b", "{half-moved}:counter"
	do("SET", a, 1)
	do("SET", b, 1)
	half, whole := cluster.SlotOf(a), cluster.SlotOf(counter)
	from := cluster.OwnerOf(half)
	to := (from + 1) % 3
	if owner := cluster.OwnerOf(whole); owner != from {
		cluster.BeginMove(whole, owner, from).Finish()
	}
	do("SET", counter, 0) // now the client knows the owners of both slots
	cluster.BeginMove(half, from, to).Step(1)
	cluster.BeginMove(whole, from, to).Finish()
	replies, _ := db.Pipeline(t.Context(), "test", // each command has its own error
		redisdb.Cmd{"EVAL", "return redis.call('MGET', KEYS[1], KEYS[2])", 2, a, b}, redisdb.Cmd{"INCR", counter})
	if err, is := replies[0].(error); !is || !strings.HasPrefix(err.Error(), "TRYAGAIN") {
		t.Errorf("both keys of a half-moved slot: got %v, want TRYAGAIN", replies[0])
	}
	if got := redisdb.Int(replies[1]); got != 1 {
		t.Errorf("the redirected command: got the answer %v, want 1", replies[1])
	}
	if got := redisdb.Text(do("GET", counter)); got != "1" {
		t.Errorf("the redirected command came %s times, want once", got)
	}
}
