package main

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
)

// README and docs show commands and configurations; those must work.

// understood says what the command line makes of arguments.
func understood(arguments []string) error {
	return clitest.Parse(arguments, func(options ...kong.Option) (*kong.Kong, error) {
		return newParser(&cli{}, &terminal.Streams{}, options...)
	})
}

func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	clitest.CheckCommands(t, program, 10, understood)
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
		if err := understood(clitest.Words(line)); (err == nil) != good {
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
	for name, text := range clitest.Documents(t) {
		for _, file := range clitest.Blocks(text, "yaml") {
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
	all := strings.Join(clitest.Blocks(clitest.Documents(t)["configuration.md"], "yaml"), "")
	for _, key := range keys(reflect.TypeFor[config.Config]()) {
		if !regexp.MustCompile(`(?m)[ {]` + key + `:|^` + key + `:`).MatchString(all) {
			t.Errorf("docs/configuration.md lacks the key %s", key)
		}
	}
}
