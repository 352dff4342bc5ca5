package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/actions"
)

// doneSite is a site whose reshard is over.
type doneSite struct {
	reshardSite
	drives chan struct{}
}

func (s doneSite) drive(context.Context) { close(s.drives) }

// TestTinyReshard: a reshard that ends before the command first looks at it is reported as done.
func TestTinyReshard(t *testing.T) {
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	with := &session{Streams: &terminal.Streams{Out: out, Err: out}, ctx: t.Context()}
	four := 4
	c := &queuesReshard{Shards: &four}
	c.Queue = "orders"
	err = c.awaitEnd(with, doneSite{drives: make(chan struct{})}, actions.Resharding{Queue: "orders", Reshard: status.Reshard{Phase: reshard.None, From: 4}})
	text, _ := os.ReadFile(out.Name())
	if err != nil || !strings.Contains(string(text), "orders has 4 shards: ") {
		t.Errorf("got %q, %v", text, err)
	}
}
