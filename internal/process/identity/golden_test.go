package identity

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/rebalance/plan"
)

// TestGolden reads what every release has stored, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	who := Process{Host: "3c2e", PIDs: "pid:[4026531836]", Times: "time:[4026531834]", PID: 17, Start: "123456", Addresses: "192.0.2.1 2001:db8::1"}
	lease := Lease{
		Node: "n1", Boot: "01J", Instance: "n1/01J.2", Start: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Weight: 2,
		Gossip: "192.0.2.1:7946", Raft: "192.0.2.1:7947", HTTP: "http://192.0.2.1:8080", Version: "0.1.0",
		RaftInfo: rebalance.RaftInfo{Server: "01J#7.1", Leader: "01K#7.2", Applied: plan.Generation{Record: 7, Index: 300}, CanPlan: true},
		Queues:   map[string]int{"mail": 0, "orders": 16}, Draining: true, TTL: 6000, Process: who,
		Refused: []string{"shard orders/3: nack: NOPERM"}, Features: []string{"fmt2"},
		Load:    &Load{CPU: 1.25, Memory: 312, Slots: 8, Busy: 3},
		Unready: map[string]string{"mail": "post http://192.0.2.9/: connection refused"},
	}
	text, err := json.Marshal(lease)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "lease", string(text), func(t *testing.T, stored string) {
		if got, err := ParseLease([]byte(stored)); err != nil || !reflect.DeepEqual(got, lease) {
			t.Errorf("got %+v %v, want %+v", got, err, lease)
		}
	})
	id := Identity{Process: who, TTL: 6000, Children: true}
	if text, err = json.Marshal(id); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "identity", string(text), func(t *testing.T, stored string) {
		if got, ok := ParseIdentity([]byte(stored)); !ok || !reflect.DeepEqual(got, id) {
			t.Errorf("got %+v %v, want %+v", got, ok, id)
		}
	})
}
