package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/node/handler"
)

// TestProcesses checks that a queue gets as many children as docs/configuration.md says.
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
			q.Concurrency = c.queue
		}
		if got := processCount(q, c.node); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// The configurations of deploy are read as a node reads them.
func TestDeployedConfigurations(t *testing.T) {
	t.Parallel()
	compose, err := os.ReadFile("../../deploy/compose/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.Open("../../deploy/kubernetes/lowkiq.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer manifest.Close()
	var first struct{ Data map[string]string } // the ConfigMap
	if err := yaml.NewDecoder(manifest).Decode(&first); err != nil {
		t.Fatal(err)
	}
	// What the Deployment and the unit set beside.
	env := []string{"LOWKIQ_NODE_BIND=10.0.0.1:7946", "LOWKIQ_NODE_HTTP=10.0.0.1:7948", "LOWKIQ_URL=http://10.0.0.1:7948",
		"LOWKIQ_TOKEN_FILE=/t", "LOWKIQ_NODE_TOKEN_FILE=/t", "LOWKIQ_NODE_GOSSIP_KEY_FILE=/k"}
	for name, file := range map[string]string{"compose": string(compose), "kubernetes": first.Data["node.yaml"]} {
		cfg, err := config.Load(config.Input{Name: name, File: []byte(file), Env: env})
		if err != nil || len(cfg.Queues) != 1 {
			t.Errorf("%s: got %+v, %v, want one queue", name, cfg, err)
		}
	}
}
