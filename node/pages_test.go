package node

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// A browser that watches a page must not keep its node from ending.
func TestPagesEndWithTheNode(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Redis: redistest.Start(t).URL(), HTTP: "127.0.0.1:0"}, QueueConfig{Name: "orders", Shards: 2},
		func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	answer, err := http.Get(r.URL() + "/events?of=/queues/orders")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	head := make([]byte, 14)
	if _, err := io.ReadFull(answer.Body, head); err != nil || !strings.HasPrefix(string(head), "event: figures") {
		t.Fatalf("got %q, %v, want the figures", head, err)
	}
	r.stop()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Errorf("got %v, want the end of the stream", err)
	}
}

// Beyond the bound a connection waits until another one ends. Neither keeps the node from ending.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Redis: redistest.Start(t).URL(), HTTP: "127.0.0.1:0", connections: 2}, QueueConfig{Name: "orders", Shards: 2},
		func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var streams []*http.Response
	for range 2 {
		answer, err := client.Get(r.URL() + "/events?of=/")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		streams = append(streams, answer)
	}
	hurry := &http.Client{Transport: client.Transport, Timeout: 200 * time.Millisecond}
	if answer, err := hurry.Get(r.URL() + "/healthz"); err == nil {
		_ = answer.Body.Close()
		t.Error("got an answer over a third connection, want none")
	}
	_ = streams[0].Body.Close()
	answer, err := client.Get(r.URL() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	r.stop()
	if _, err := io.Copy(io.Discard, streams[1].Body); err != nil {
		t.Errorf("got %v, want the end of the stream", err)
	}
}
