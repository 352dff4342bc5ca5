// Package historytest runs random histories of a state machine, and shows that they find what they
// are there for.
//
// A history is a run in a bubble of testing/synctest: the machine under test, a fake of what it
// talks to, and faults at random moments. Its seed decides all that is drawn; the scheduler has a
// say, too.
//
//	LOWKIQ_HISTORIES=10000   how many histories a test runs
//	LOWKIQ_HISTORY=7         the history of this seed is run and shown, twenty times; one that fails is always shown
//	LOWKIQ_MUTATIONS=all     all mutations of a table are tried, not one
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

// History is one run: what is drawn in it, and what went wrong.
type History struct {
	Seed  uint64
	Start time.Time // by the bubble's clock

	mu     sync.Mutex
	rnd    *rand.Rand
	faults []string
	trace  []line
}

// line is what happened at a time. It is put into words only if it is shown.
type line struct {
	at     time.Duration
	format string
	args   []any
}

// IntN draws a number below n.
func (h *History) IntN(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rnd.IntN(n)
}

// Below draws a time below most, in microseconds.
func (h *History) Below(most time.Duration) time.Duration {
	return time.Duration(h.IntN(max(1, int(most/time.Microsecond)))) * time.Microsecond
}

// Fault notes what must not be: the history has failed.
func (h *History) Fault(format string, args ...any) {
	h.Trace("FAULT "+format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// Trace notes what happens, for a history that is shown or fails. args must not change later.
func (h *History) Trace(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trace = append(h.trace, line{time.Since(h.Start), format, args})
}

// Text is what has happened last, so many lines of it: for one that does not end.
func (h *History) Text(lines int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text(lines)
}

func (h *History) text(lines int) string {
	var text strings.Builder
	for _, l := range h.trace[max(0, len(h.trace)-lines):] {
		fmt.Fprintf(&text, "%s "+l.format+"\n", append([]any{l.at}, l.args...)...)
	}
	return text.String()
}

// Run runs histories on all processors until one fails: usual of them, a tenth with -short, or as
// many as LOWKIQ_HISTORIES says.
func Run(t *testing.T, usual int, run func(*testing.T, *History)) {
	t.Helper()
	if seed, err := strconv.ParseUint(os.Getenv("LOWKIQ_HISTORY"), 10, 64); err == nil {
		for range 20 {
			one(t, seed, true, run)
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
	if os.Getenv("LOWKIQ_MUTANT") != "" { // what finds a mutation is to find it again
		first, count, most = 0, 40_000, 90*time.Second
	}
	var group sync.WaitGroup
	var next, done atomic.Int64
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(count) && time.Since(began) < most && !t.Failed(); i = next.Add(1) {
				one(t, first+uint64(i), false, run)
				done.Add(1)
			}
		})
	}
	group.Wait()
	t.Logf("%d histories from seed %d in %s", done.Load(), first+1, time.Since(began).Round(time.Millisecond))
}

// One runs the history of a seed.
func One(t *testing.T, seed uint64, run func(*testing.T, *History)) { one(t, seed, false, run) }

func one(t *testing.T, seed uint64, show bool, run func(*testing.T, *History)) {
	synctest.Test(t, func(t *testing.T) {
		h := &History{Seed: seed, Start: time.Now(), rnd: rand.New(rand.NewPCG(seed, 1))}
		run(t, h)
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, fault := range h.faults[:min(3, len(h.faults))] {
			t.Errorf("history %d: %s", seed, fault)
		}
		if show || len(h.faults) > 0 {
			t.Log(h.text(len(h.trace)))
		}
	})
}

// Mutations shows that the package's TestHistories finds what it is there for: it fails in copies
// of the package in which a promise is broken. Of each copy the table has a name, a file, what
// stands in it once, and what stands there instead. One is tried, drawn at random, since each is
// built anew; LOWKIQ_MUTATIONS=all tries all.
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
			t.Errorf("%s: %s has %d times %q, want it once: the table is out of date", name, file, n, was)
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
		t.Run(table[i][0], func(t *testing.T) { try(t, filepath.Join(dir, table[i][1]), mutants[i]) })
	}
}

// try runs the histories of a package one of whose files is another.
func try(t *testing.T, file, mutant string) {
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
	run.Env = append(os.Environ(), "LOWKIQ_MUTANT=1", "CGO_ENABLED=0") // compiled as the Makefile compiles all but what the race detector runs
	out, err := run.CombinedOutput()
	if err == nil || strings.Contains(string(out), "build failed") {
		t.Errorf("not found: %v\n%s", err, out)
	}
	t.Logf("%s\n%.400s", histories.Find(out), out)
}

// histories is how Run says how many it took.
var histories = regexp.MustCompile(`\d+ histories from .*`)
