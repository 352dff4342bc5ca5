package terminal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// TestTable checks that scripts that split lines at spaces get each cell, and that no cell breaks its line.
func TestTable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s := &Streams{Out: out}
	s.PrintTable("NAME N LAG ERROR", func(row func(string, ...any)) {
		row("%s\t%d\t%s\t%s", "żółw", 7, "1.5s", "boom")
		row("%s\t%d\t%s\t%s", "b", 1234, "-", "no\tsuch\naccount")
	})
	want := "NAME  N     LAG   ERROR\n" + "żółw  7     1.5s  boom\n" + `b     1234  -     no\x09such\x0aaccount` + "\n"
	if got, err := os.ReadFile(file); string(got) != want || err != nil || s.Lost != nil {
		t.Errorf("got\n%s\n%v, %v, want\n%s", got, err, s.Lost, want)
	}
}
