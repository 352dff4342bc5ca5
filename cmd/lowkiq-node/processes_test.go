package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/node/handler"
)

// TestProcesses: how many children a queue gets is what docs/configuration.md says.
func TestProcesses(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "# default: one process per CPU, at most concurrency"; !strings.Contains(string(text), want) {
		t.Errorf("docs/configuration.md does not say %q", want)
	}
	cpus := runtime.GOMAXPROCS(0)
	if got := handler.DefaultProcesses(); got != cpus {
		t.Errorf("the default is %d, want %d", got, cpus)
	}
	for _, c := range []struct{ configured, queue, node, want int }{
		{0, 0, 0, cpus}, {7, 0, 0, 7}, {7, 1, 1, 7}, {0, 1, 0, 1}, {0, 0, 1, 1}, {0, 1000, 1000, cpus},
	} {
		q := &config.Queue{}
		if c.configured > 0 {
			q.Handler.Processes = &c.configured
		}
		if c.queue > 0 {
			q.Concurrency = &c.queue
		}
		if got := processes(q, c.node); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}
