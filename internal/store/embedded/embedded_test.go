package embedded_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/store/embedded"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func start(t *testing.T) (*embedded.Server, *redis.Client) {
	t.Helper()
	server, err := embedded.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

func TestKeysExpireByTheWallClock(t *testing.T) {
	t.Parallel()
	_, client := start(t)
	began := time.Now()
	if err := client.Set(t.Context(), "lease", "x", 300*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for client.Exists(t.Context(), "lease").Val() == 1 {
		if time.Since(began) > time.Minute {
			t.Fatal("key with a ttl of 300ms is still there after a minute")
		}
		<-tick.C
	}
	if lived := time.Since(began); lived < 300*time.Millisecond {
		t.Errorf("key with a ttl of 300ms lived %s", lived)
	}
}

func TestScriptsSeeTimePass(t *testing.T) {
	t.Parallel()
	_, client := start(t)
	const script = `local t = redis.call("TIME"); return t[1] * 1000000 + t[2]`
	first, err := client.Eval(t.Context(), script, nil).Int64()
	if err != nil {
		t.Fatal(err)
	}
	if off := time.Since(time.UnixMicro(first)).Abs(); off > time.Minute {
		t.Errorf("TIME is %s away from the wall clock", off)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		now, err := client.Eval(t.Context(), script, nil).Int64()
		if err != nil {
			t.Fatal(err)
		}
		if now > first {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("TIME stands still at %d", first)
		}
	}
}

func TestCloseTwiceRefusesConnections(t *testing.T) {
	t.Parallel()
	server, client := start(t)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Close()
	server.Close()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("ping after Close: got nil, want an error")
	}
	if got, want := server.URL(), "redis://"+server.Addr()+"/0"; got != want {
		t.Errorf("URL: got %q, want %q", got, want)
	}
}
