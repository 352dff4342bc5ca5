package main

import (
	"os"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
)

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
