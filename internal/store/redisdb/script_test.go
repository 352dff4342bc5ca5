package redisdb

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Every script of lua/ has a field, and the product uses each field. Permissions runs one script by
// its name.
func TestEveryScriptIsUsed(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	files, err := filepath.Glob(filepath.Join(root, "lua", "*.lua"))
	if err != nil || len(files) < 40 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	used := usedFields(t, root)
	fields := map[string]bool{"permissions": true}
	for _, f := range scriptFields {
		fields[fileOf(f.Name)] = true
		if !used["Scripts."+f.Name] {
			t.Errorf("nothing runs Scripts.%s", f.Name)
		}
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".lua"); !fields[name] {
			t.Errorf("lua/%s.lua has no field in Scripts", name)
		}
	}
	if all := NewScripts().All(); len(all) < 40 || len(all) != len(scriptFields)-reflect.TypeFor[rareScripts]().NumField() {
		t.Errorf("got %d scripts that nodes and producers call, of %d", len(all), len(scriptFields))
	}
}

var useRule = regexp.MustCompile(`\bScripts\.\w+`)

// usedFields returns each use of a script in Go files without tests.
func usedFields(t *testing.T, root string) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, use := range useRule.FindAllString(string(text), -1) {
			used[use] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}
