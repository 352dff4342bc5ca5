package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
)

// README and docs show commands and configurations; those must work.

func documents(t *testing.T) map[string]string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"../../docs/*.md", "../../README.md", "../../examples/*/*.md"} {
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

// blocks returns the code blocks of a language.
func blocks(markdown, language string) (found []string) {
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(markdown, -1) {
		found = append(found, block[1])
	}
	return found
}

// words splits a command as a shell does, up to a redirection, a pipe or a comment.
func words(line string) (list []string) {
	for _, part := range regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(line, -1) {
		if strings.ContainsAny(part[:1], "<>|&#;") {
			break
		}
		list = append(list, strings.Trim(part, `'"`))
	}
	return list
}

var command = regexp.MustCompile(`(?m)^(?:bin/)?lowkiq-node (.*)$`)

// understood says what the command line makes of arguments.
func understood(arguments []string) (err error) {
	exited := errors.New("help or version")
	defer func() {
		if r := recover(); r != nil && r != any(exited) {
			err = fmt.Errorf("%v", r)
		}
	}()
	parser, err := kong.New(&cli{}, kong.Name("lowkiq-node"), kong.Writers(io.Discard, io.Discard),
		kong.Bind(&streams{}), kong.Exit(func(int) { panic(exited) }))
	if err != nil {
		return err
	}
	if len(arguments) > 0 && arguments[0] == "migrate" { // pages keep the address of the old Redis in LOWKIQ_FROM
		arguments = append(slices.Clone(arguments), "--from=redis://old")
	}
	_, err = parser.Parse(arguments)
	return err
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	seen := 0
	for file, text := range documents(t) {
		for _, found := range command.FindAllStringSubmatch(strings.Join(blocks(text, "sh"), "\n"), -1) {
			seen++
			if err := understood(words(found[1])); err != nil {
				t.Errorf("%s shows lowkiq-node %s: %v", file, found[1], err)
			}
		}
		for _, named := range regexp.MustCompile("`lowkiq-node ([^`\n]+)`").FindAllStringSubmatch(text, -1) {
			arguments := words(named[1])
			if err := understood(arguments); err != nil && understood(append(arguments, "--help")) != nil { // it may be named in part
				t.Errorf("%s names lowkiq-node %s: %v", file, named[1], err)
			}
		}
	}
	if seen < 10 {
		t.Errorf("got %d commands, want at least 10: the test looks in the wrong place", seen)
	}
}

func TestDocumentedCommandsAreFoundOut(t *testing.T) {
	t.Parallel()
	for line, good := range map[string]bool{
		`push --queue a --id b --payload '{"a": 1}'`: true,
		"status -o json | less":                      true,
		"push --queue a < events.ndjson":             true,
		"push --id a":                                false,
		"status --nowhere":                           false,
		"status --nowhere --help":                    false,
		"push --id a --help":                         true, // named in part
		"nothing":                                    false,
	} {
		if err := understood(words(line)); (err == nil) != good {
			t.Errorf("lowkiq-node %s: got %v, want it understood: %t", line, err, good)
		}
	}
}

func load(file string) error {
	_, err := config.Load(config.Input{Name: "README.md", File: []byte(file)})
	return err
}

func TestDocumentedConfigurations(t *testing.T) {
	t.Parallel()
	var files []string
	for name, text := range documents(t) {
		for _, file := range blocks(text, "yaml") {
			files = append(files, file)
			if err := load(file); err != nil {
				t.Errorf("a configuration of %s: %v", name, err)
			}
		}
	}
	if len(files) == 0 {
		t.Fatal("found no configuration: the test looks in the wrong place")
	}
	if err := load(files[0] + "nonsense: 1\n"); err == nil {
		t.Error("an unknown key is accepted")
	}
}

// keys are the words that a configuration may have.
func keys(t reflect.Type) (words []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for field := range t.Fields() {
		if word := field.Tag.Get("yaml"); word != "" {
			words = append(append(words, word), keys(field.Type)...)
		}
	}
	return words
}

func TestDocumentedKeysAreComplete(t *testing.T) {
	t.Parallel()
	all := strings.Join(blocks(documents(t)["configuration.md"], "yaml"), "")
	for _, key := range keys(reflect.TypeFor[config.Config]()) {
		if !regexp.MustCompile(`(?m)[ {]` + key + `:|^` + key + `:`).MatchString(all) {
			t.Errorf("docs/configuration.md lacks the key %s", key)
		}
	}
}
