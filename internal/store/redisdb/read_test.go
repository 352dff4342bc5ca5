package redisdb_test

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// A full Redis answers reads of several keys at one instant, and a read that goes on while its key does not change.
func TestReadsOfFullRedis(t *testing.T) {
	t.Parallel()
	ctx, srv := t.Context(), redistest.Start(t)
	db, err := redisdb.Open(redisdb.Config{URL: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	do := func(args ...any) {
		if _, err := db.Do(ctx, "test", args...); err != nil {
			t.Error(err)
		}
	}
	do("HSET", "h", "f", "v")
	do("CONFIG", "SET", "maxmemory", "1")
	got, err := db.ReadAtomic(ctx, "read", redisdb.Cmd{"HGET", "h", "f"}, redisdb.Cmd{"HGET", "h", "no"}, redisdb.Cmd{"HGETALL", "h"}, redisdb.Cmd{"LRANGE", "no", 0, -1})
	if want := "[v <nil> [f v] []]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v, want %s", got, err, want)
	}
	for _, changes := range []bool{false, true} {
		_, unchanged, err := db.IfUnchanged(ctx, "read", "h", func(read func(args ...any) (any, error)) ([]redisdb.Cmd, error) {
			if changes {
				do("HDEL", "h", "f")
			}
			_, err := read("HGET", "h", "f")
			return nil, err
		})
		if err != nil || unchanged == changes {
			t.Errorf("changes %t: got unchanged %t, %v", changes, unchanged, err)
		}
	}
}
