package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// tool is this program.
func tool(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "release")
	command(t, ".", []string{"CGO_ENABLED=0"}, "go", "build", "-o", path, ".")
	return path
}

func command(t *testing.T, dir string, env []string, argv ...string) string {
	t.Helper()
	out, err := try(dir, env, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return out
}

func try(dir string, env []string, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// checkout is a repository of its own with what is committed here, tagged.
func checkout(t *testing.T) string {
	t.Helper()
	if _, err := try(".", nil, "git", "rev-parse", "HEAD"); err != nil {
		t.Skip("SKIPPED: this is no git checkout, so whether a release can be built again was NOT TESTED")
	}
	dir := t.TempDir()
	packed := filepath.Join(t.TempDir(), "head.tar")
	command(t, "../..", nil, "git", "archive", "-o", packed, "HEAD")
	command(t, dir, nil, "tar", "-xf", packed)
	date := "2026-01-02T03:04:05Z"
	who := []string{"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
		"GIT_AUTHOR_DATE=" + date, "GIT_COMMITTER_DATE=" + date}
	for _, args := range []string{"init -q", "add -A", "commit -q -m release", "tag v0.0.1"} {
		command(t, dir, who, append([]string{"git", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false"}, strings.Fields(args)...)...)
	}
	return dir
}

func sums(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "dist", "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// One commit in two places gives the same bytes. They share Go's build cache, of which
// paths are no part with -trimpath; what is left to differ is stamped, linked and packed.
func TestReleaseIsReproducible(t *testing.T) {
	tier.All(t)
	build, here, there := tool(t), checkout(t), checkout(t)
	command(t, here, nil, build, "-platforms", "linux/amd64")
	command(t, there, nil, build, "-platforms", "linux/amd64")
	first, _, _ := strings.Cut(sums(t, here), "\n")
	if got := strings.TrimSpace(sums(t, there)); got != first {
		t.Errorf("got %s in one directory and %s in another", first, got)
	}
	command(t, filepath.Join(here, "dist"), nil, "sha256sum", "--check", "SHA256SUMS")
	if name := "  lowkiq-v0.0.1-linux-amd64.tar.gz"; !strings.Contains(sums(t, here), name) {
		t.Errorf("%s is not in %s", name, sums(t, here))
	}
	command(t, here, nil, "tar", "-xzf", "dist/lowkiq-v0.0.1-linux-amd64.tar.gz", "-C", t.TempDir(), "lowkiq-node", "lowkiq-migrate")
	changed := filepath.Join(here, "README.md")
	if err := os.WriteFile(changed, []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := try(here, nil, build, "-platforms", "linux/amd64"); err == nil || !strings.Contains(out, "not committed") {
		t.Errorf("a changed tree: got %v, %s, want it refused", err, out)
	}
}

// The same files at the same time are the same archive, others are not.
func TestPack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	stamp := time.Unix(1_700_000_000, 0).UTC()
	packed := func(name string, at time.Time) string {
		var archive bytes.Buffer
		if err := packArchive(&archive, []entry{{name, file, 0o755}}, at); err != nil {
			t.Fatal(err)
		}
		return archive.String()
	}
	first, again := packed("a", stamp), packed("a", stamp)
	if first != again {
		t.Error("twice the same differs")
	}
	if packed("a", stamp) == packed("b", stamp) || packed("a", stamp) == packed("a", stamp.Add(time.Hour)) {
		t.Error("different archives count as the same")
	}
}

func TestSourceDate(t *testing.T) {
	if got, err := sourceDate("1700000000"); err != nil || got.Unix() != 1_700_000_000 {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := sourceDate("yesterday"); err == nil {
		t.Error("yesterday counts as a time")
	}
}
