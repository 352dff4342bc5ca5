// Package nodebin builds lowkiq-node and lowkiq-migrate for tests that start processes.
//
// A [Binary] is built at most once, when the first test asks for it. TestMain of the tests removes it.
package nodebin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is long enough to build everything on a busy machine.
const patience = 10 * time.Minute

// Binary is a lowkiq-node for all tests of a package. Its zero value is ready to use.
type Binary struct {
	once sync.Once
	dir  string
	err  error
}

// Path builds lowkiq-node in the repository at root and returns its path. lowkiq-migrate is in the same directory.
func (b *Binary) Path(t testing.TB, root string) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = buildCommands(root) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "lowkiq-node")
}

// Remove deletes the build. It is for TestMain, and may be called if nothing was built.
func (b *Binary) Remove() error { return os.RemoveAll(b.dir) }

func buildCommands(root string) (dir string, err error) {
	if err = readSources(root); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "lowkiq-node-"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", dir, "./cmd/lowkiq-node", "./cmd/lowkiq-migrate")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as releases are built
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build lowkiq-node in %s: %w\n%s", root, err, out)
	}
	return dir, nil
}

// readSources reads the directories of the source. This makes them inputs of the test for the go command: after a change in
// them it does not reuse the result of an earlier run.
func readSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == root {
			return err
		}
		if name := entry.Name(); name == "bin" || name == "testdata" || strings.HasPrefix(name, ".") {
			return filepath.SkipDir
		}
		return nil
	})
}
