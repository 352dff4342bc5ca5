package main

import (
	"context"
	"fmt"
	"net/http"
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

// TestTinyReshard checks that the command reports a reshard as done if it ends before the command first looks at it.
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

// TestWhyWhileJobsMove checks that why says how many jobs its figures leave out. They count the jobs of the new shards only.
func TestWhyWhileJobsMove(t *testing.T) {
	t.Parallel()
	for reshard, want := range map[string]string{
		"":                                     "orders: 2 ids ready, the oldest job due for 3s, 1 in flight\n",
		`"phase":"draining","moved":0,"of":0`:  "orders: 2 ids ready, the oldest job due for 3s, 1 in flight\n",
		`"phase":"copying","moved":4,"of":300`: "orders: 2 ids ready, the oldest job due for 3s, 1 in flight, without 296 jobs that must move to the new shards\n",
	} {
		code, text, errs := runAgainst(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"name":"orders","lag_s":3,"jobs":{"ready":2,"in_flight":1}`) //nolint:errcheck // a test
			if reshard != "" {
				fmt.Fprintf(w, `,"reshard":{%s}`, reshard) //nolint:errcheck // a test
			}
			fmt.Fprint(w, "}") //nolint:errcheck // a test
		}, "why", "--queue", "orders")
		if code != 0 || errs != "" || !strings.HasPrefix(text, want) {
			t.Errorf("%s: got exit code %d, %q and %q, want %q", reshard, code, text, errs, want)
		}
	}
}
