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
	value, err := json.Marshal(identity.Lease{Node: "n2", Instance: "n2/01K.1", Gossip: "127.0.0.1:7946", Process: identity.Process{Host: "another"}})
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
