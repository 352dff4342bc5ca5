package compose

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository's.
const root = "../.."

// dockerfile is the repository's Dockerfile, cut into what its build stage runs and the
// text of its last stage.
type dockerfile struct {
	runs  []string
	final string
}

func parseDockerfile(text string) (d dockerfile, err error) {
	build, final, found := strings.Cut(text, "\nFROM scratch\n")
	if !found {
		return d, fmt.Errorf("Dockerfile: want a last stage FROM scratch")
	}
	for _, run := range regexp.MustCompile(`(?m)^RUN (.*)$`).FindAllStringSubmatch(build, -1) {
		if run[1] != "go mod download" {
			d.runs = append(d.runs, run[1])
		}
	}
	const copied = "COPY --from=build /out/ /\n"
	if !strings.Contains(final, copied) || len(d.runs) == 0 {
		return d, fmt.Errorf("Dockerfile: want RUN lines in the build stage and %q in the last", copied)
	}
	d.final = "FROM scratch\n" + strings.Replace(final, copied, "COPY out/ /\n", 1)
	return d, nil
}

// nodeContext runs the build stage on this machine and returns a context for the last
// stage: the image is the Dockerfile's but for the registry's images.
func nodeContext(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseDockerfile(string(text))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, run := range d.runs {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(run, "/out/", filepath.Join(dir, "out")+"/"))
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("Dockerfile: RUN %s: %v\n%s", run, err, out)
		}
	}
	write(t, filepath.Join(dir, "Dockerfile"), d.final)
	return dir
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// libraries reads what ldd prints.
func libraries(ldd string) (paths []string) {
	for _, found := range library.FindAllStringSubmatch(ldd, -1) {
		paths = append(paths, found[1])
	}
	return paths
}

func TestLibraries(t *testing.T) {
	got := libraries("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	if want := "/lib/x86_64-linux-gnu/libm.so.6 /lib64/ld-linux-x86-64.so.2"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// redisContext is a context for an image of the installed Redis: the programs and what
// they are linked with.
func redisContext(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"redis-server", "redis-cli"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%s not found on PATH: apt-get install redis-server", name)
		}
		ldd, err := exec.CommandContext(t.Context(), "ldd", program).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", program, err)
		}
		copyFile(t, program, filepath.Join(dir, "root/usr/bin", name))
		for _, path := range libraries(string(ldd)) {
			copyFile(t, path, filepath.Join(dir, "root", path))
		}
	}
	write(t, filepath.Join(dir, "Dockerfile"), "FROM scratch\nCOPY root/ /\nWORKDIR /data\n")
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
