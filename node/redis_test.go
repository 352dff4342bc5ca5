package node

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// warned reports whether a node's status warns of something.
func (r *running) warned(of string) bool {
	r.t.Helper()
	known, err := r.Cluster().Status(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.ContainsFunc(known.Warnings, func(text string) bool { return strings.Contains(text, of) })
}

// TestEvictionWhileItRuns checks that a node warns of a policy with which Redis may drop jobs, if it is set while the node runs
// and is not allowed.
func TestEvictionWhileItRuns(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	strict := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, nothing).serving()
	lax := start(t, Config{Redis: srv.URL(), Name: "lax", AllowEviction: true}, QueueConfig{Name: "mail", Shards: 1}, nothing).serving()
	for _, step := range []struct {
		policy string
		warned bool
	}{{"volatile-lru", true}, {"allkeys-random", true}, {"noeviction", false}} {
		raw(t, srv.Addr(), "CONFIG", "SET", "maxmemory-policy", step.policy)
		strict.instance().checkMemory(t.Context())
		lax.instance().checkMemory(t.Context())
		if got := strict.warned("maxmemory-policy " + step.policy); got != step.warned {
			t.Errorf("%s: warned %t, want %t", step.policy, got, step.warned)
		}
		if lax.warned("maxmemory-policy") {
			t.Errorf("%s: got a warning though it is allowed", step.policy)
		}
	}
	if strict.warned("maxmemory-policy") {
		t.Error("got a warning of a policy that was changed back")
	}
}

// TestFullRedisIsNamed checks that a full Redis is named in warnings and as a cause, for as long as it is full.
func TestFullRedisIsNamed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var log lines
	run := start(t, Config{Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}, QueueConfig{Shards: 1}, nothing).serving()
	for _, full := range []bool{true, false} {
		raw(t, srv.Addr(), "CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[full])
		run.instance().checkMemory(t.Context())
		if used, limit := memoryOf(t, run); used < 1e5 || limit != map[bool]float64{true: 1}[full] {
			t.Errorf("full %t: got metrics of %v bytes used of %v", full, used, limit)
		}
		if got := run.warned("redis " + srv.Addr() + " is full with "); got != full || (run.Cluster().RedisFull() != "") != full {
			t.Errorf("full %t: got warned %t, cause %q", full, got, run.Cluster().RedisFull())
		}
	}
	raw(t, srv.Addr(), "CONFIG", "SET", "maxmemory", "1")
	run.instance().checkMemory(t.Context())
	run.stop()
	if used, limit := memoryOf(t, run); used != -1 || limit != -1 || run.Cluster().RedisFull() != "" {
		t.Errorf("without a lease: got metrics of %v bytes used of %v and cause %q, want none", used, limit, run.Cluster().RedisFull())
	}
	if !log.has(`msg="redis refuses pushes"`) || !log.has(`msg="redis is not full any more"`) {
		t.Errorf("got log %s, want its begin and end", log.String())
	}
}

// memoryOf returns the exported memory of Redis and its limit, -1 for those that are not exported.
func memoryOf(t *testing.T, run *running) (used, limit float64) {
	t.Helper()
	families, err := run.cfg.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	used, limit = -1, -1
	for _, f := range families {
		switch f.GetName() {
		case "lowkiq_redis_memory_used_bytes":
			used = f.GetMetric()[0].GetGauge().GetValue()
		case "lowkiq_redis_memory_max_bytes":
			limit = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return used, limit
}

// TestFullnessUnknown checks that a node exports no memory while Redis does not tell it.
func TestFullnessUnknown(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, nothing).serving()
	in := run.instance()
	in.checkMemory(t.Context())
	if used, limit := memoryOf(t, run); used < 0 || limit != 0 {
		t.Fatalf("got %v bytes used of %v, want some of 0", used, limit)
	}
	away, cancel := context.WithCancel(t.Context())
	cancel()
	in.checkMemory(away)
	if used, limit := memoryOf(t, run); used != -1 || limit != -1 {
		t.Errorf("got %v bytes used of %v, want no series", used, limit)
	}
}

func TestFullest(t *testing.T) {
	t.Parallel()
	unlimited, busy, low, high := protocol.Memory{Address: "unlimited", Used: 900}, protocol.Memory{Address: "busy", Used: 950},
		protocol.Memory{Address: "low", Used: 100, Max: 1000}, protocol.Memory{Address: "high", Used: 90, Max: 100}
	for _, c := range []struct {
		servers []protocol.Memory
		want    string
	}{
		{[]protocol.Memory{unlimited}, "unlimited"},
		{[]protocol.Memory{busy, unlimited}, "busy"},
		{[]protocol.Memory{high, low, busy}, "high"},
		{[]protocol.Memory{unlimited, low}, "low"},
	} {
		if got := fullest(c.servers); got.Address != c.want {
			t.Errorf("%v: got %s, want %s", c.servers, got.Address, c.want)
		}
	}
}

// TestRefusedLeaseIsNamed checks that a Redis that refuses writes is named as the cause, for as long as it does.
func TestRefusedLeaseIsNamed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, nothing).serving()
	in := run.instance()
	raw(t, srv.Addr(), "CONFIG", "SET", "min-replicas-to-write", "1")
	await(t, "the cause is named", func() bool {
		in.keeper.RenewNow()
		return run.warned("NOREPLICAS") && strings.Contains(run.Cluster().RedisRefuses(), "NOREPLICAS")
	})
	raw(t, srv.Addr(), "CONFIG", "SET", "min-replicas-to-write", "0")
	await(t, "it is not named any more", func() bool {
		in.keeper.RenewNow()
		return !run.warned("NOREPLICAS") && run.Cluster().RedisRefuses() == ""
	})
}
