// Package nodebin answers one question for tests: where is the lowkiq-node of this
// source?
//
// A [Binary] is built at most once, when the first test asks for it; the tests'
// TestMain removes it.
package nodebin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// patience is for a build of everything on a busy machine.
const patience = 10 * time.Minute

// Binary is a lowkiq-node for all tests of a package. Its zero value is ready to use.
type Binary struct {
	once sync.Once
	dir  string
	err  error
}

// Path builds lowkiq-node in the repository at root and returns where it is.
func (b *Binary) Path(t testing.TB, root string) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = build(root) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "lowkiq-node")
}

// Remove is for TestMain. It may be called if nothing was built.
func (b *Binary) Remove() error { return os.RemoveAll(b.dir) }

func build(root string) (dir string, err error) {
	if dir, err = os.MkdirTemp("", "lowkiq-node-"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", dir, "./cmd/lowkiq-node")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as releases are built
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build lowkiq-node in %s: %w\n%s", root, err, out)
	}
	return dir, nil
}
