package node

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

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

// Streams may hold most of the connections and not all: one more is told to come later, health is
// answered, and none keeps the node from ending.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Redis: redistest.Start(t).URL(), HTTP: "127.0.0.1:0", connections: 2}, QueueConfig{Name: "orders", Shards: 2},
		func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) *http.Response {
		t.Helper()
		answer, err := client.Get(r.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	stream := get("/events?of=/")
	defer stream.Body.Close()
	for path, want := range map[string]int{"/events?of=/": http.StatusServiceUnavailable, "/healthz": http.StatusOK} {
		answer := get(path)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s beside as many streams as may be: got %s, want %d", path, answer.Status, want)
		}
	}
	_ = stream.Body.Close()
	await(t, "another stream is let in once the first has ended", func() bool {
		stream = get("/events?of=/")
		if stream.StatusCode != http.StatusOK {
			_ = stream.Body.Close()
		}
		return stream.StatusCode == http.StatusOK
	})
	defer stream.Body.Close()
	r.stop()
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Errorf("got %v, want the end of the stream", err)
	}
}
