// Package historytest runs random histories of a state machine, and shows that they find the faults that they should find.
//
// A history is a run in a bubble of testing/synctest. It has the machine under test, a fake of its peers, and faults at
// random times. The seed decides all random values. The scheduler adds some chance of its own.
//
//	LOWKIQ_HISTORIES=10000   how many histories a test runs
//	LOWKIQ_HISTORY=7         the history of this seed is run and shown, twenty times; a history that fails is always shown
//	LOWKIQ_MUTATIONS=all     all mutations of a table are tried, in place of a single mutation
package historytest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// History is a run: its random values and its faults.
type History struct {
	Seed  uint64
	Start time.Time // start by the bubble's clock

	mu     sync.Mutex
	rnd    *rand.Rand
	faults []string
	trace  []line
}

// line is an event at a time. It becomes text only if it is shown.
type line struct {
	at     time.Duration
	format string
	args   []any
}

// IntN returns a random number below n.
func (h *History) IntN(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rnd.IntN(n)
}

// Below returns a random time below most, in microseconds.
func (h *History) Below(most time.Duration) time.Duration {
	return time.Duration(h.IntN(max(1, int(most/time.Microsecond)))) * time.Microsecond
}

// Fault records a fault, so that the history has failed.
func (h *History) Fault(format string, args ...any) {
	h.Trace("FAULT "+format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// Trace records an event for a history that is shown or fails. args must not change later.
func (h *History) Trace(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trace = append(h.trace, line{time.Since(h.Start), format, args})
}

// Text returns the last events as the given number of lines. It is for a history that does not end.
func (h *History) Text(lines int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastLines(lines)
}

func (h *History) lastLines(lines int) string {
	var text strings.Builder
	for _, l := range h.trace[max(0, len(h.trace)-lines):] {
		fmt.Fprintf(&text, "%s "+l.format+"\n", append([]any{l.at}, l.args...)...)
	}
	return text.String()
}

// Run runs histories on all processors until a history fails. It runs usual of them, a tenth of that with -short, or as many
// as LOWKIQ_HISTORIES says.
func Run(t *testing.T, usual int, run func(*testing.T, *History)) {
	t.Helper()
	if seed, err := strconv.ParseUint(os.Getenv("LOWKIQ_HISTORY"), 10, 64); err == nil {
		for range 20 {
			runOne(t, seed, true, run)
		}
		return
	}
	first, count, most := rand.Uint64N(1<<40), usual, 15*time.Second
	if testing.Short() {
		count, most = usual/10, 3*time.Second
	}
	if n, err := strconv.Atoi(os.Getenv("LOWKIQ_HISTORIES")); err == nil {
		count, most = n, time.Hour
	}
	if os.Getenv("LOWKIQ_MUTANT") != "" { // the histories that find a mutation must find it again
		first, count, most = 0, 40_000, 90*time.Second
	}
	var group sync.WaitGroup
	var next, done atomic.Int64
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(count) && time.Since(began) < most && !t.Failed(); i = next.Add(1) {
				runOne(t, first+uint64(i), false, run)
				done.Add(1)
			}
		})
	}
	group.Wait()
	t.Logf("%d histories from seed %d in %s", done.Load(), first+1, time.Since(began).Round(time.Millisecond))
}

// One runs the history of a seed.
func One(t *testing.T, seed uint64, run func(*testing.T, *History)) { runOne(t, seed, false, run) }

func runOne(t *testing.T, seed uint64, show bool, run func(*testing.T, *History)) {
	synctest.Test(t, func(t *testing.T) {
		h := &History{Seed: seed, Start: time.Now(), rnd: rand.New(rand.NewPCG(seed, 1))}
		run(t, h)
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, fault := range h.faults[:min(3, len(h.faults))] {
			t.Errorf("history %d: %s", seed, fault)
		}
		if show || len(h.faults) > 0 {
			t.Log(h.lastLines(len(h.trace)))
		}
	})
}

// Mutations shows that the package's TestHistories finds the faults that it should find. It must fail in copies of the
// package with a broken promise. For each copy the table has a name, a file, a text that occurs once in the file, and its
// replacement. Mutations tries a random copy, because each is built anew. LOWKIQ_MUTATIONS=all tries all.
func Mutations(t *testing.T, table [][4]string) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mutants := make([]string, len(table))
	for i, m := range table {
		name, file, was, is := m[0], m[1], m[2], m[3]
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), was); n != 1 {
			t.Errorf("%s: %s has %d times %q, which must occur once; update the table", name, file, n, was)
		}
		mutants[i] = strings.Replace(string(source), was, is, 1)
	}
	if testing.Short() || t.Failed() {
		return
	}
	chosen := rand.Perm(len(table))
	if os.Getenv("LOWKIQ_MUTATIONS") != "all" {
		chosen = chosen[:1]
	}
	for _, i := range chosen {
		t.Run(table[i][0], func(t *testing.T) { runMutant(t, filepath.Join(dir, table[i][1]), mutants[i]) })
	}
}

// runMutant runs the histories of a package with mutant in place of a file.
func runMutant(t *testing.T, file, mutant string) {
	path, overlay := filepath.Join(t.TempDir(), filepath.Base(file)), filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: path}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{path: mutant, overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// -vet=off: a mutant need not be tidy.
	run := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", overlay, "-run", "^TestHistories$", "-timeout", "100s", ".")
	run.Env = append(os.Environ(), "LOWKIQ_MUTANT=1", "CGO_ENABLED=0") // as the Makefile compiles everything except the runs of the race detector
	out, err := run.CombinedOutput()
	if err == nil || strings.Contains(string(out), "build failed") {
		t.Errorf("not found: %v\n%s", err, out)
	}
	t.Logf("%s\n%.400s", histories.Find(out), out)
}

// histories matches the line where Run prints how many histories it ran.
var histories = regexp.MustCompile(`\d+ histories from .*`)
