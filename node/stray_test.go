package node

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

func TestStrays(t *testing.T) {
	t.Parallel()
	lease := func(name, host, gossip string) LeaseInfo {
		return LeaseInfo{Node: name, Gossip: gossip, Process: identity.Process{Host: host}}
	}
	for _, c := range []struct {
		name string
		own  LeaseInfo
		live []LeaseInfo
		want string // "" = none
	}{
		{"alone", lease("n1", "h1", "127.0.0.1:7946"), []LeaseInfo{lease("n1", "h1", "127.0.0.1:7946")}, ""},
		{"one host", lease("n1", "h1", "127.0.0.1:7946"), []LeaseInfo{lease("n2", "h1", "127.0.0.1:7956")}, ""},
		{"two hosts", lease("n1", "h1", "10.0.0.1:7946"), []LeaseInfo{lease("n2", "h2", "10.0.0.2:7946")}, ""},
		{"unknown host", lease("n1", "", "127.0.0.1:7946"), []LeaseInfo{lease("n2", "h2", "127.0.0.1:7946")}, ""},
		{"no gossip", lease("n1", "h1", "10.0.0.1:7946"), []LeaseInfo{lease("n2", "h2", "")}, ""},
		{"this one", lease("n1", "h1", "127.0.0.1:7946"), []LeaseInfo{lease("n2", "h2", "10.0.0.2:7946")}, "gossip at 127.0.0.1:7946"},
		{"the other", lease("n1", "h1", "10.0.0.1:7946"), []LeaseInfo{lease("n2", "h2", "[::1]:7946")}, "gossip at [::1]:7946"},
		{"both", lease("n1", "h1", "127.0.0.1:7946"), []LeaseInfo{lease("n1", "h1", "127.0.0.1:7946"), lease("n2", "h2", "127.0.0.1:7946")}, "node n2 of another host"},
	} {
		got := strays(c.own, c.live)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// What is found is in the status for as long as it is so.
func TestStraysAreInTheStatus(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Redis: redistest.Start(t).URL(), Bind: "127.0.0.1:0", TTL: 6 * time.Second}, QueueConfig{Name: "orders", Shards: 1},
		func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	warned := func() []string {
		status, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.Warnings
	}
	if got := warned(); len(got) > 0 {
		t.Errorf("alone: got %q, want no warning", got)
	}
	value, err := json.Marshal(LeaseInfo{Node: "n2", Instance: "n2/01K.1", Gossip: "127.0.0.1:7946", Process: identity.Process{Host: "another"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.leases.TakeLease(t.Context(), "n2/01K.1", []byte("{}"), value, time.Minute); err != nil {
		t.Fatal(err)
	}
	await(t, "the warning", func() bool {
		got := warned()
		return len(got) == 1 && strings.Contains(got[0], "node n2 of another host")
	})
	if err := r.leases.DropLease(t.Context(), "n2/01K.1"); err != nil {
		t.Fatal(err)
	}
	await(t, "no warning any more", func() bool { return len(warned()) == 0 })
}
