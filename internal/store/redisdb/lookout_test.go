package redisdb_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

func openURL(t *testing.T, url string) *redisdb.DB {
	t.Helper()
	db, err := redisdb.Open(redisdb.Config{URL: url, Cluster: "c", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestReadOnlyEmptiesThePool replaces the master behind an address while connections to the old master stay. The first
// READONLY is the last, because the client opens all connections of the address again.
func TestReadOnlyEmptiesThePool(t *testing.T) {
	t.Parallel()
	old, next := redistest.Start(t), redistest.Start(t)
	proxy := redistest.NewProxy(t, old.Addr())
	db, ctx := openURL(t, proxy.URL()), t.Context()
	const conns = 8
	fill(ctx, t, db, conns)
	admin := redis.NewClient(&redis.Options{Addr: old.Addr(), Protocol: 2, DisableIdentity: true})
	defer admin.Close()
	if err := admin.ReplicaOf(ctx, "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	proxy.Lead(next.Addr())
	if _, err := db.Do(ctx, "write", "HSET", "k", "f", 1); !redisdb.Says(err, "READONLY") || !redisdb.Transient(err) {
		t.Fatalf("the first write: got %v, want READONLY", err)
	}
	for range conns {
		if _, err := db.Do(ctx, "write", "HSET", "k", "f", 1); err != nil {
			t.Errorf("a later write: %v", err)
		}
	}
}

// fill opens connections: as many commands wait at once.
func fill(ctx context.Context, t *testing.T, db *redisdb.DB, n int) {
	t.Helper()
	hold := make(chan struct{})
	var work, held sync.WaitGroup
	for range n {
		held.Add(1)
		work.Go(func() {
			_, _, err := db.IfUnchanged(ctx, "hold", "held", func(func(...any) (any, error)) ([]redisdb.Cmd, error) {
				held.Done()
				<-hold
				return nil, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	held.Wait()
	close(hold)
	work.Wait()
}

// TestNamelessCluster checks that a cluster that does not announce its servers' addresses gives an error that says what
// to change. It does not look like an empty Redis.
func TestNamelessCluster(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	for _, one := range []struct{ setting, value string }{
		{"cluster-preferred-endpoint-type", "unknown-endpoint"}, {"cluster-preferred-endpoint-type", "hostname"},
	} {
		for _, addr := range cluster.Addrs() {
			admin := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
			err := admin.ConfigSet(t.Context(), one.setting, one.value).Err()
			_ = admin.Close()
			if err != nil {
				t.Skipf("before Redis 7 there is no such setting: %v", err)
			}
		}
		db := openURL(t, cluster.URL())
		_, err := db.Do(t.Context(), "read", "GET", "k")
		_, checked := db.Check(t.Context(), false)
		for _, err := range []error{err, checked} {
			if err == nil || !strings.Contains(err.Error(), "set cluster-preferred-endpoint-type") || errors.Is(err, redis.Nil) {
				t.Errorf("%s: got %v, want what to change", one.value, err)
			}
		}
	}
}
