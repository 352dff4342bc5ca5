package node

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// stamp is a middleware that leaves its name.
func stamp(name string, trail *[]string) Middleware {
	return func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, b *lowkiq.Batch) error {
			*trail = append(*trail, name+" sees "+string(b.Jobs[0].Payloads[0].Data))
			defer func() { *trail = append(*trail, name+" ends") }()
			return next.Handle(ctx, b)
		})
	}
}

func TestMiddlewaresAndDecode(t *testing.T) {
	t.Parallel()
	n, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.client.Close()
	defer n.leases.Close()
	var trail []string
	err = n.Handle(QueueConfig{
		Name: "orders", Middlewares: []Middleware{stamp("outer", &trail), stamp("inner", &trail)},
		Push: queue.PushRules{Codec: queue.Codec{
			Name:   "bare",
			Encode: func(p []byte) ([]byte, error) { return bytes.TrimPrefix(p, []byte("plain ")), nil },
			Decode: func(p []byte) ([]byte, error) { return append([]byte("plain "), p...), nil },
		}},
	}, lowkiq.HandlerFunc(func(_ context.Context, b *lowkiq.Batch) error {
		trail = append(trail, "handler sees "+string(b.Jobs[0].Payloads[0].Data))
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	batch := &lowkiq.Batch{Jobs: []lowkiq.Job{{ID: "a", Payloads: []lowkiq.Payload{{Data: []byte("x")}}}}}
	if err := n.queues["orders"].handler.Handle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	want := []string{"outer sees plain x", "inner sees plain x", "handler sees plain x", "inner ends", "outer ends"}
	if !reflect.DeepEqual(trail, want) {
		t.Errorf("got %q, want %q", trail, want)
	}
	if got := string(batch.Jobs[0].Payloads[0].Data); got != "x" {
		t.Errorf("the node's own batch was changed: payload is %q, want x", got)
	}
}

// TestMaxCrashes: one crash is no proof.
func TestMaxCrashes(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{0: "", -1: "", 1: "max_crashes is 1, want 2 or more", 2: ""} {
		err := QueueConfig{Name: "orders", MaxCrashes: most}.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: got %v, want %q", most, err, want)
		}
	}
}
