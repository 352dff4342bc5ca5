// Release builds what a release consists of: static binaries for each platform, packed,
// and their checksums. The same commit, built with the same Go, gives the same bytes
// wherever it lies:
//
//	go run ./scripts/release [-out dist] [-platforms linux/amd64,windows/amd64]
//
// The version is the commit's tag, or what Go makes of a commit without one. Files in
// the archives carry SOURCE_DATE_EPOCH, by default the time of the commit.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// platforms are linux in full, darwin for development, windows for the client commands.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

func main() {
	out := flag.String("out", "dist", "`directory` for the archives")
	list := flag.String("platforms", platforms, "which to build, `GOOS/GOARCH,…`")
	flag.Parse()
	if err := release(*out, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func release(out string, platforms []string) error {
	stamp, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var archives []string
	for _, platform := range platforms {
		archive, err := releaseOne(out, platform, stamp)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		fmt.Println(archive)
		archives = append(archives, archive)
	}
	return writeSums(filepath.Join(out, "SHA256SUMS"), archives)
}

// releaseOne builds and packs the binary of one platform.
func releaseOne(out, platform string, stamp time.Time) (archive string, err error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return "", errors.New("want GOOS/GOARCH")
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	name := "lowkiq-node"
	if goos == "windows" {
		name += ".exe"
	}
	binary := filepath.Join(dir, name)
	if err := build(binary, goos, goarch); err != nil {
		return "", err
	}
	version, err := stamped(binary)
	if err != nil {
		return "", err
	}
	content := []entry{{name, binary, 0o755}, {"README.md", "README.md", 0o644}, {"CHANGELOG.md", "CHANGELOG.md", 0o644}}
	base := filepath.Join(out, fmt.Sprintf("lowkiq-node-%s-%s-%s", version, goos, goarch))
	if goos == "windows" {
		return base + ".zip", writeFile(base+".zip", content, stamp, zipTo)
	}
	return base + ".tar.gz", writeFile(base+".tar.gz", content, stamp, tarTo)
}

// build leaves out what differs from place to place: paths, symbols, the build id.
func build(binary, goos, goarch string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w -buildid=", "-o", binary, "./cmd/lowkiq-node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

// stamped is the version in a binary.
func stamped(binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.modified" && setting.Value == "true" {
			return "", errors.New("the tree has changes that are not committed: nobody could build it again")
		}
	}
	if info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "", errors.New("the binary has no version: build in a git checkout, with git on PATH")
	}
	return info.Main.Version, nil
}

// sourceDate is the time that all files get.
func sourceDate(epoch string) (time.Time, error) {
	if epoch == "" {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("time of the commit: git log: %w; set SOURCE_DATE_EPOCH", err)
		}
		epoch = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
