// Package lua holds the transitions of a shard: one Redis script per file, so that no
// crash can expose a half-done step (I6).
//
// A line "--#include name" in a script stands for the text of lib/name.lua. The header of
// each file names its KEYS, ARGV, answers and errors, and the promise it keeps.
package lua

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.lua lib/*.lua
var files embed.FS

// Source returns the text of the named script (without ".lua") with its includes
// expanded. It panics on an unknown name: the names are constants of the program.
func Source(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(fmt.Sprintf("lua: no script %q: %v", name, err))
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if included, ok := strings.CutPrefix(strings.TrimSpace(line), "--#include "); ok {
			b.WriteString(Source("lib/" + included))
			continue
		}
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "--") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
