// Package version answers one question: from which sources was this binary built?
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Build describes how a binary was built.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ReadBuild returns the build of this binary.
func ReadBuild() Build {
	b := Build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			b.Revision = setting.Value
		}
	}
	return b
}

// String returns a line for people: version, Go and platform.
func (b Build) String() string { return fmt.Sprintf("%s (%s, %s)", b.Version, b.Go, b.Platform) }
