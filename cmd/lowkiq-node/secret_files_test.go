package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of a secret that others may read or write people are told, with what to do.
func TestSecretFilesOfOthers(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode][]string{
		0o600: nil, 0o640: nil, 0o644: {"chmod o-r"}, 0o620: {"chmod go-w"}, 0o602: {"chmod go-w"}, 0o666: {"chmod go-w", "chmod o-r"},
	} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		warnOfReaders(file, slog.New(slog.NewTextHandler(&log, nil)))
		got := log.String()
		if strings.Count(got, "\n") != len(want) {
			t.Errorf("%s: got %q, want %q", mode, got, want)
		}
		for _, words := range want {
			if !strings.Contains(got, words) {
				t.Errorf("%s: got %q, want %q", mode, got, words)
			}
		}
	}
}
