package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A form that is written otherwise than its example fails, and so does one without an example or with a damaged one;
// the examples of other releases are read, not compared.
func TestChangedForms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string // by release
		says  string            // "" = nothing is wrong
	}{
		"the same, raw":         {map[string]string{release: "`form\x00`"}, ""},
		"the same in quotes":    {map[string]string{release: `"form\x00"`}, ""},
		"changed":               {map[string]string{release: `"form\x01"`}, "may only be added"},
		"longer":                {map[string]string{release: `"form\x00\n"`}, "may only be added"},
		"no example":            {nil, "no example"},
		"one of another only":   {map[string]string{"0.0": `"form\x00"`}, "no example"},
		"another of another":    {map[string]string{release: `"form\x00"`, "0.0": `"older"`}, ""},
		"an example is damaged": {map[string]string{release: `"form\x00"`, "0.0": "older"}, "must be a Go string"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for of, text := range c.files {
				if err := os.MkdirAll(filepath.Join(dir, of), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, of, "form"), []byte(text+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			stored, err := loadExamples(dir, "form")
			if err == nil {
				err = checkExamples(stored, "form", "form\x00")
			}
			switch {
			case c.says == "" && (err != nil || len(stored) != len(c.files)):
				t.Errorf("got %v, %v, want every example and no error", stored, err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
}

// What is written is what is loaded, whatever its bytes.
func TestWrittenIsLoaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, today := range []string{"", "plain", "`", "\x00\xff\n", `"\`} {
		if err := writeExample(dir, "form", today); err != nil {
			t.Fatal(err)
		}
		stored, err := loadExamples(dir, "form")
		if err == nil {
			err = checkExamples(stored, "form", today)
		}
		if err != nil {
			t.Errorf("%q: %v", today, err)
		}
	}
}
