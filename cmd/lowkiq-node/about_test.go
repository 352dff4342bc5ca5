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
		err := checkPlatform(c.goos, c.command)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "does not work on Windows") {
			t.Errorf("%s on %s: got %v, want it refused: %t", c.command, c.goos, err, c.refused)
		}
	}
}

// TestFlagsBeforeCommand checks that the flags of a command may stand before the command. Other flags stay in place.
func TestFlagsBeforeCommand(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"-o json status":                  "status -o json",
		"-ojson why a":                    "why a -ojson",
		"--output=json --node u queues":   "queues --output=json --node u",
		"-o json watch -- -x":             "watch -o json -- -x",
		"--help":                          "--help",
		"--colour red status":             "--colour red status",
		"-o json":                         "-o json",
		"-o":                              "-o",
		"status -o json":                  "status -o json",
		"--token-file f -o json drain n2": "drain n2 --token-file f -o json",
	} {
		if got := strings.Join(commandFirst(strings.Fields(given)), " "); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}
