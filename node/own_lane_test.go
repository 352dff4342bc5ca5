package node

import (
	"context"
	"errors"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestHandlerThatWaitsForItself checks that a handler that would wait for its own lane gets an error at once, and pushes
// nothing.
func TestHandlerThatWaitsForItself(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, c := range []struct {
		name, calls string
		lanes       int
		refused     bool
	}{
		{"its own id", "asks", 1, true},
		{"another id of its lane", "other", 1, true},
		{"its own id, other lanes are free", "asks", 2, true},
		{"another id, another lane is free", "other", 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var client *queue.Client
			answers := make(chan error, 1)
			rules := QueueConfig{Name: "quotes", Shards: 1, Rules: rules.Rules{ShardConcurrency: c.lanes, BatchSize: 1}}
			n := start(t, Config{Redis: server.URL(), Cluster: lowkiqName(c.name)}, rules, func(ctx context.Context, b *lowkiq.Batch) error {
				if b.Jobs[0].ID == "asks" && b.Jobs[0].Callers == 0 {
					_, err := client.Call(ctx, "quotes", lowkiq.Push{ID: c.calls})
					answers <- err
				}
				return nil
			})
			client = n.Client()
			n.serving()
			if _, err := client.Push(t.Context(), "quotes", lowkiq.Push{ID: "asks"}); err != nil {
				t.Fatal(err)
			}
			err := <-answers
			if errors.Is(err, lowkiq.ErrOwnLane) != c.refused || !c.refused && err != nil {
				t.Errorf("got %v, want a refusal: %t", err, c.refused)
			}
			if c.refused && err.Error() != `job "`+c.calls+`": the handler would wait for itself: shard 0 of queue "quotes" is busy with its call until it returns; push without waiting, or call another queue` {
				t.Errorf("got %q", err)
			}
		})
	}
}

// lowkiqName is a text as the name of a cluster.
func lowkiqName(text string) string {
	name := []byte(text)
	for i, c := range name {
		if c < 'a' || c > 'z' {
			name[i] = '-'
		}
	}
	return string(name)
}
