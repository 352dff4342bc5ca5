package node

import (
	"context"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestGossipPortTaken checks that a node that cannot gossip reports it and ends.
func TestGossipPortTaken(t *testing.T) {
	t.Parallel()
	addresses := redistest.Addresses(t, 2)
	taken, err := redistest.Listen(addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = ending(t, Config{Name: "n1", Redis: redistest.Start(t).URL(), Bind: addresses[0]})
	if err == nil || !strings.Contains(err.Error(), "gossip on "+addresses[0]) {
		t.Errorf("got %v, want an error that names %s", err, addresses[0])
	}
}

// ending runs a node that is to end by itself.
func ending(t *testing.T, cfg Config) error {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(nothing)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context()) }()
	return receive(t, "the node's end", ended)
}

// TestRaftPortTaken checks that a node that cannot start frees its HTTP port.
func TestRaftPortTaken(t *testing.T) {
	t.Parallel()
	addresses := redistest.Addresses(t, 2)
	taken, err := redistest.Listen(addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	n, err := New(Config{Name: "n1", Redis: redistest.Start(t).URL(), Bind: addresses[0]})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	serve := func(ctx context.Context) error { closed = ctx.Err() != nil; return nil }
	if err := n.Attach(func() (string, error) { return "http://n1", nil }, serve); err != nil {
		t.Fatal(err)
	}
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "raft listens one port above gossip") {
		t.Errorf("got %v, want an error that names the port of Raft", err)
	}
	if !closed {
		t.Error("the attached server was not told to close what it has opened")
	}
}

// TestClose checks that a node whose Run was not called leaves no connection behind after Close, and does not begin to work.
func TestClose(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	n, err := New(Config{Name: "n1", Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Client().Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	open := func() int { return strings.Count(raw(t, srv.Addr(), "CLIENT", "LIST"), "\n") }
	if open() < 2 {
		t.Error("the node's client has no connection, so the test shows nothing")
	}
	for range 2 { // a program may defer one and call another
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	await(t, "no connection but the one that asks", func() bool { return open() == 1 })
	if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "after Close") {
		t.Errorf("Run after Close: got %v", err)
	}
}

// TestCloseAfterRun checks that a node that has run is closed.
func TestCloseAfterRun(t *testing.T) {
	t.Parallel()
	run := start(t, Config{Redis: redistest.Start(t).URL()}, QueueConfig{}, nothing).serving()
	if err := run.Close(); err != nil || run.Ready() != nil {
		t.Errorf("Close while it runs: %v, ready: %v", err, run.Ready())
	}
	run.stop()
	if err := run.Close(); err != nil {
		t.Error(err)
	}
}
