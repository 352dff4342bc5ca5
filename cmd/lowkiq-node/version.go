package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCommand struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

// build is what the binary knows of itself.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func version() build {
	b := build{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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

func (c *versionCommand) Run(s *streams) error {
	b := version()
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(b)
	}
	_, err := fmt.Fprintf(s.out, "lowkiq-node %s (%s, %s)\n", b.Version, b.Go, b.Platform)
	return err
}
