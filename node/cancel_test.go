package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// TestCancel cancels the run of an id at the owner of its shard. The payloads become what was asked for, and callers learn it.
func TestCancel(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	began := make(chan string, 10)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{Journal: rules.Journal{Runs: rules.JournalAll}}}, func(ctx context.Context, b *lowkiq.Batch) error {
		began <- b.Jobs[0].ID
		<-ctx.Done()
		return context.Cause(ctx)
	}).serving()
	cancel := func(id string, then protocol.Then) error {
		return run.Cluster().Cancel(t.Context(), p.Queue, id, protocol.Cancellation{Then: then, By: "ann"})
	}
	const bytes = "a\xff\x00" // an id need not be UTF-8
	p.push(lowkiq.Push{ID: bytes, Payload: []byte("1")})
	<-began
	p.hold(rules.Hold{Prefix: "a"}, false) // who asks for that holds it before
	// By a message, as from another node.
	where, err := p.client.Cancel(t.Context(), run.instance().name, p.Shard(0), bytes, protocol.Cancellation{Then: protocol.ThenHold, By: "ann"}, patience)
	if err != nil || !where.Cancelled || where.Stage != protocol.Handled {
		t.Fatalf("got %+v, %v, want that it was cancelled", where, err)
	}
	await(t, "it is held", func() bool { return p.counts() == protocol.Counts{Held: 1} })
	if err := cancel(bytes, protocol.ThenRetry); !errors.Is(err, status.ErrNotRunning) {
		t.Errorf("of a held id: got %v, want ErrNotRunning", err)
	}
	if err := cancel("nobody", protocol.ThenRetry); !errors.Is(err, status.ErrNotRunning) {
		t.Errorf("of no id: got %v, want ErrNotRunning", err)
	}
	// By the node itself.
	ended := make(chan lowkiq.Reply, 1)
	go func() {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		reply, err := p.client.Call(ctx, "orders", lowkiq.Push{ID: "b", Payload: []byte("1")})
		if err != nil {
			t.Error(err)
		}
		ended <- reply
	}()
	<-began
	if err := cancel("b", protocol.ThenRetry); err != nil {
		t.Fatal(err)
	}
	<-began // it is due at once
	await(t, "it is deleted", func() bool { return cancel("b", protocol.ThenDelete) == nil })
	if reply := <-ended; reply.State != lowkiq.ReplyDeleted {
		t.Errorf("its caller has got %+v, want that it is deleted", reply)
	}
	await(t, "nothing of it is left", func() bool { return p.counts() == protocol.Counts{Held: 1} })
	runs, err := browse.Of(p.Queue).Runs(t.Context(), browse.RunQuery{ID: "b"})
	if err != nil || len(runs.List) != 2 || runs.List[0].Verdict != browse.RunCancelled || runs.List[0].Error != "cancelled by ann" || runs.List[1].RetryCount != -1 {
		t.Errorf("got runs %+v, %v, want two that were cancelled", runs.List, err)
	}
	p.push(lowkiq.Push{ID: "c", Payload: []byte("1")})
	<-began
	await(t, "it is buried", func() bool { return cancel("c", protocol.ThenBury) == nil })
	for {
		got, err := p.Queue.Stats(t.Context())
		if err != nil || got.Failed != 0 {
			t.Fatalf("got %+v, %v, want no failure: a person has ended the run, and the metrics count none", got, err)
		}
		if got.Morgue == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}
