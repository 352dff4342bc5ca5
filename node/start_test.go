package node

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestGossipPortTaken: a node that cannot gossip says so and ends.
func TestGossipPortTaken(t *testing.T) {
	t.Parallel()
	taken := takenPort(t)
	n, err := New(Config{Name: "n1", Redis: redistest.Start(t).URL(), TTL: shortTTL, Bind: taken.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context()) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "gossip on "+taken.Addr().String()) {
			t.Errorf("got %v, want an error that names the address", err)
		}
	case <-time.After(15 * time.Second):
		t.Error("the node runs on without gossip")
	}
}

// TestRaftPortTaken: a node that cannot start gives its HTTP port back.
func TestRaftPortTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bind := fmt.Sprintf("127.0.0.1:%d", taken.Addr().(*net.TCPAddr).Port-1)
	n, err := New(Config{Name: "n1", Redis: redistest.Start(t).URL(), HTTP: "127.0.0.1:0", Bind: bind})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "raft listens one port above gossip") {
		t.Errorf("got %v, want an error that names the port of Raft", err)
	}
	address := strings.TrimPrefix(n.URL(), "http://")
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	again.Close()
}

// takenPort listens on a port, the one above which is free.
func takenPort(t *testing.T) net.Listener {
	t.Helper()
	for range 100 {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		above := fmt.Sprintf("127.0.0.1:%d", taken.Addr().(*net.TCPAddr).Port+1)
		if next, err := net.Listen("tcp", above); err == nil {
			next.Close()
			t.Cleanup(func() { taken.Close() })
			return taken
		}
		taken.Close()
	}
	t.Fatal("no two ports in a row are free")
	return nil
}
