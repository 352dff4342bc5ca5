// Command release builds the files of a release: static binaries for each platform in archives, and their checksums. The
// same commit, built with the same Go, gives the same bytes in any directory:
//
//	go run ./scripts/release [-out dist] [-platforms linux/amd64,windows/amd64]
//
// The version is the tag of the commit, or the version that Go derives from the commit. Files in the archives have the time
// SOURCE_DATE_EPOCH, by default the time of the commit.
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

// platforms has linux in full, darwin for development, and windows for the client commands.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

func main() {
	out := flag.String("out", "dist", "`directory` for the archives")
	list := flag.String("platforms", platforms, "which to build, `GOOS/GOARCH,…`")
	flag.Parse()
	if err := buildRelease(*out, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func buildRelease(out string, platforms []string) error {
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

// programs are the binaries of a release. The first determines the version.
var programs = []string{"lowkiq-node", "lowkiq-migrate"}

// releaseOne builds and packs the binaries of a platform.
func releaseOne(out, platform string, stamp time.Time) (archive string, err error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok {
		return "", errors.New("a platform must be GOOS/GOARCH")
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	content := []entry{{"README.md", "README.md", 0o644}, {"CHANGELOG.md", "CHANGELOG.md", 0o644}}
	for _, name := range programs {
		if goos == "windows" {
			name += ".exe"
		}
		content = append(content, entry{name, filepath.Join(dir, name), 0o755})
	}
	if err := buildBinary(dir, goos, goarch); err != nil {
		return "", err
	}
	version, err := readVersion(content[2].path)
	if err != nil {
		return "", err
	}
	archive = filepath.Join(out, fmt.Sprintf("lowkiq-%s-%s-%s.tar.gz", version, goos, goarch))
	return archive, writeFile(archive, content, stamp)
}

// buildBinary builds without the parts that differ from place to place: paths, symbols and the build id.
func buildBinary(dir, goos, goarch string) error {
	args := []string{"build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w -buildid=", "-o", dir + "/"}
	for _, name := range programs {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

// readVersion returns the version in a binary.
func readVersion(binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.modified" && setting.Value == "true" {
			return "", errors.New("the tree has changes that are not committed, so nobody could build the release again")
		}
	}
	if info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "", errors.New("the binary has no version; build in a git checkout, with git on PATH")
	}
	return info.Main.Version, nil
}

// sourceDate returns the time of all files.
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
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; it must be seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
