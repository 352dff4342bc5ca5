package runner

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutations are changes of the source each of which breaks a promise.
var mutations = []struct{ name, file, old, new string }{
	{"the lease is not looked at before a call", "watchdog.go", "if !r.process.MayWork() {", "if false {"},
	{"what failed is acknowledged", "complete.go", "r.done(batch.Flight, all.done)", "r.done(batch.Flight, batch.Jobs)"},
	{"what was stopped is acknowledged", "watchdog.go", "		if err == nil {\n			done", "		if err != lowkiq.ErrTimeout {\n			done"},
	{"acks are sent twice", "complete.go", "	r.acks = nil\n	if acks != nil", "	if acks != nil"},
	{"a batch is not put back", "runner.go", "	r.buffer = append([]flight{{batch.Flight, batch.Jobs}}, r.buffer...)\n", ""},
	{"a pause gives nothing back", "lane.go", "	sent := r.send(", "	nacks = nil\n	sent := r.send("},
	{"a batch is taken twice", "runner.go", "	f.jobs = f.jobs[n:]\n", "	if f.jobs = f.jobs[n:]; n%3 == 2 {\n		f.jobs = batch.Jobs\n	}\n"},
	{"the shard is released beside its handlers", "runner.go", "	if r.lanes == 0 {\n		r.change(lanesEnd)", "	if true {\n		r.change(lanesEnd)"},
	{"a wake-up during a pop is forgotten", "state.go", "return repopping, false", "return p, false"},
	{"a quarantine never ends", "complete.go", "r.change(quarantineEnds)", "_ = number"},
	{"a handler slot is kept", "lane.go", "		t.r.process.Slots.give(&t.r.queue.share)\n", ""},
}

// TestMutations shows that TestHistories finds what it is there for: in each of these copies of the package it fails.
// LOWKIQ_MUTATIONS=all makes all of them; else two, drawn at random, of which each is built anew.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package anew")
	}
	chosen := rand.Perm(len(mutations))[:2]
	if os.Getenv("LOWKIQ_MUTATIONS") == "all" {
		chosen = rand.Perm(len(mutations))
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range chosen {
		m := mutations[i]
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %d times %q, want it once: the table is out of date", m.file, n, m.old)
			}
			mutant, overlay := filepath.Join(t.TempDir(), m.file), filepath.Join(t.TempDir(), "overlay.json")
			replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(dir, m.file): mutant}})
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{mutant: strings.Replace(string(source), m.old, m.new, 1), overlay: string(replace)} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// -vet=off: a mutant need not be tidy.
			run := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-overlay", overlay, "-run", "^TestHistories$", "-timeout", "100s", ".")
			run.Env = append(os.Environ(), "LOWKIQ_HISTORIES=0")
			out, err := run.CombinedOutput()
			if err == nil || strings.Contains(string(out), "build failed") {
				t.Errorf("not found: %v\n%s", err, out)
			}
			first, _, _ := strings.Cut(string(out), "\n    ")
			t.Logf("%.300s", first+string(out[min(len(first), len(out)):]))
		})
	}
}
