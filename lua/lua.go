// Package lua holds the transitions of a shard: one Redis script per file, so that no
// crash can expose a half-done step (I6).
//
// A line "--#include name" in a script stands for the text of lib/name.lua. Lines
// "--#keys jobs ready ..." name its KEYS in their order. In the script and in its includes,
// KEY.ready then stands for KEYS[2]. The header of each file names its ARGV, answers and errors, and
// the promises that it keeps.
package lua

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed *.lua lib/*.lua
var files embed.FS

// Keys returns the names of a script's KEYS, in their order.
func Keys(name string) (keys []string) {
	for line := range strings.Lines(read(name)) {
		if names, ok := strings.CutPrefix(line, "--#keys "); ok {
			keys = append(keys, strings.Fields(names)...)
		}
	}
	return keys
}

var keyRule = regexp.MustCompile(`\bKEY\.\w+`)

// sources caches the results of Source by name, because each client of a process asks for
// every script.
var sources sync.Map

// Source returns the text of the named script (without ".lua") with its includes expanded and
// its keys numbered. It panics on an unknown name of a script or a key, because these names
// are constants of the program.
func Source(name string) string {
	if text, ok := sources.Load(name); ok {
		return text.(string)
	}
	text := numbered(name)
	sources.Store(name, text)
	return text
}

func numbered(name string) string {
	keys := Keys(name)
	return keyRule.ReplaceAllStringFunc(expand(name), func(key string) string {
		i := slices.Index(keys, strings.TrimPrefix(key, "KEY."))
		if i < 0 {
			panic(fmt.Sprintf("lua: script %s uses %s, its keys are %q", name, key, keys))
		}
		return fmt.Sprintf("KEYS[%d]", i+1)
	})
}

// expand puts included texts in their places, and drops comments and empty lines.
func expand(name string) string {
	var b strings.Builder
	for line := range strings.Lines(read(name)) {
		trimmed := strings.TrimSpace(line)
		if included, ok := strings.CutPrefix(trimmed, "--#include "); ok {
			b.WriteString(expand("lib/" + included))
		} else if trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func read(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(fmt.Sprintf("lua: no script %q: %v", name, err))
	}
	return string(text)
}
