package main

import (
	"strings"
	"testing"
)

func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		goos, command string
		refused       bool
	}{
		{"windows", "run", true},
		{"windows", "dev", true},
		{"windows", "push <files>", false},
		{"windows", "drain <name>", false},
		{"windows", "version", false},
		{"linux", "run", false},
		{"darwin", "run", false},
	} {
		err := refusal(c.goos, c.command)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "does not work on Windows") {
			t.Errorf("%s on %s: got %v, want it refused: %t", c.command, c.goos, err, c.refused)
		}
	}
}
