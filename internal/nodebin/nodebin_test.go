package nodebin

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestBinaryIsBuiltOnceAndRemoved(t *testing.T) {
	t.Parallel()
	var b Binary
	path := b.Path(t, "../..")
	if info, err := os.Stat(path); err != nil || info.Mode()&0o100 == 0 {
		t.Errorf("got %v, %v, want a program", info, err)
	}
	if again := b.Path(t, "nowhere"); again != path {
		t.Errorf("got %s the second time, want %s", again, path)
	}
	if err := b.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: got %v, want it gone", err)
	}
}

func TestRemoveOfNothing(t *testing.T) {
	t.Parallel()
	if err := new(Binary).Remove(); err != nil {
		t.Error(err)
	}
}

func TestBuildThatFailsSaysWhere(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir, err := build(root)
	if err == nil || !strings.Contains(err.Error(), root) {
		t.Errorf("got %v, want an error that names %s", err, root)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
