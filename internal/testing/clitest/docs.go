package clitest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Documents returns README, docs and the pages of the examples and clients by name.
func Documents(t testing.TB) map[string]string {
	t.Helper()
	var files []string
	patterns := []string{
		"../../docs/*.md", "../../docs/incidents/*.md", "../../README.md", "../../examples/*/*.md", "../../clients/*/*.md",
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimPrefix(strings.TrimPrefix(filepath.ToSlash(file), "../../"), "docs/")] = string(text)
	}
	return texts
}

// Blocks returns the code blocks of a language.
func Blocks(markdown, language string) (found []string) {
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(markdown, -1) {
		found = append(found, block[1])
	}
	return found
}

// Words splits a command as a shell does, up to a redirection, a pipe or a comment.
func Words(line string) (list []string) {
	for _, part := range regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(line, -1) {
		if strings.ContainsAny(part[:1], "<>|&#;") {
			break
		}
		list = append(list, strings.Trim(part, `'"`))
	}
	return list
}

// CheckCommands fails unless a program understands its commands in the documents. There must be at least atLeast of them.
func CheckCommands(t *testing.T, program string, atLeast int, understood func(arguments []string) error) {
	t.Helper()
	shown := regexp.MustCompile(`(?m)^(?:bin/)?` + program + ` (.*)$`)
	named := regexp.MustCompile("`" + program + " ([^`\n]+)`")
	seen := 0
	for file, text := range Documents(t) {
		for _, found := range shown.FindAllStringSubmatch(strings.Join(Blocks(text, "sh"), "\n"), -1) {
			seen++
			if err := understood(Words(found[1])); err != nil {
				t.Errorf("%s shows %s %s: %v", file, program, found[1], err)
			}
		}
		for _, found := range named.FindAllStringSubmatch(text, -1) {
			arguments := Words(found[1])
			if err := understood(arguments); err != nil && understood(append(arguments, "--help")) != nil { // a document may name a part of a command
				t.Errorf("%s names %s %s: %v", file, program, found[1], err)
			}
		}
	}
	if seen < atLeast {
		t.Errorf("got %d commands of %s, want at least %d: the test searches the wrong place", seen, program, atLeast)
	}
}

// Parse returns the error of a grammar for arguments. --help and --version end the parser and are no errors.
func Parse(arguments []string, parser func(...kong.Option) (*kong.Kong, error)) (err error) {
	ended := errors.New("help or version")
	defer func() {
		if r := recover(); r != nil && r != any(ended) {
			err = fmt.Errorf("%v", r)
		}
	}()
	k, err := parser(kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) { panic(ended) }))
	if err != nil {
		return err
	}
	_, err = k.Parse(arguments)
	return err
}
