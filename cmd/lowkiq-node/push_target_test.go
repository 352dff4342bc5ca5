package main

import (
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/connect"
)

// TestPushTarget checks that a push goes to LOWKIQ_URL, like all commands, unless a setting names a Redis.
func TestPushTarget(t *testing.T) {
	t.Parallel()
	const node = "http://10.0.0.1:7948"
	for name, c := range map[string]struct {
		source connect.Flags
		redis  string // LOWKIQ_REDIS
		want   string
	}{
		"nothing else": {want: node},
		"--redis":      {source: connect.Flags{Redis: "redis://10.0.0.2"}},
		"--config":     {source: connect.Flags{Config: "node.yaml"}},
		"LOWKIQ_REDIS": {redis: "redis://10.0.0.2"},
	} {
		env := map[string]string{"LOWKIQ_URL": node, "LOWKIQ_REDIS": c.redis}
		command := pushCommand{Flags: c.source}
		if got := command.defaultNode(func(key string) string { return env[key] }); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
