package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The mutations follow the code: what each one breaks stands where it says, once.
func TestMutationsApply(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutations {
		text, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if names[m.name] || m.promise == "" || len(m.test) == 0 {
			t.Errorf("%s: got %+v, want a name of its own, a promise and packages", m.name, m)
		}
		names[m.name] = true
	}
	if len(names) < 20 {
		t.Errorf("got %d mutations, want at least 20", len(names))
	}
}

func TestFirstFailure(t *testing.T) {
	for output, want := range map[string]string{
		"--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/b (0.1s)\n--- FAIL: TestC (0s)\n": "TestA/b",
		"panic: runtime error\n": "a panic",
		"FAIL\n":                 "go test",
	} {
		if got := firstFailure(output); got != want {
			t.Errorf("%q: got %s, want %s", output, got, want)
		}
	}
}
