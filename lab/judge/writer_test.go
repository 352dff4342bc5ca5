package judge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

func batchOf(n int, jobs ...lowkiq.Job) *lowkiq.Batch {
	return &lowkiq.Batch{Shard: lowkiq.Shard{Queue: queue, Index: n}, Fence: 1, Jobs: jobs}
}

func TestWrapNotesEveryAnswer(t *testing.T) {
	batch := batchOf(0, lowkiq.Job{ID: "a", Payloads: loads("a", 1)}, lowkiq.Job{ID: "ü \"\x00\xff\n", Payloads: loads("b", 2)})
	tests := []struct {
		name    string
		answer  func() error
		handled int // payloads
	}{
		{"done", func() error { return nil }, 2},
		{"failed", func() error { return errors.New("a \"quoted\" .\n error") }, 0},
		{"one of them failed", func() error { return lowkiq.Failed{"a": errors.New("x")} }, 1},
		{"one of them failed, wrapped", func() error { return fmt.Errorf("batch: %w", lowkiq.Failed{"a": errors.New("x")}) }, 1},
		{"named without an error: done, as for a node", func() error { return lowkiq.Failed{"a": nil} }, 2},
		{"postponed", func() error { return lowkiq.Postpone{After: time.Second} }, 0},
		{"panicked", func() error { panic("x") }, 0},
		{"a long error", func() error { return errors.New(strings.Repeat("é\x00", 4000)) }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "history")
			w, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			panicked := call1(Wrap(w, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return test.answer() })), batch)
			if panicked != (test.name == "panicked") {
				t.Errorf("got panicked %v", panicked)
			}
			if err := errors.Join(w.Close(), w.Close()); err != nil {
				t.Fatal(err)
			}
			var pushed []Pushed
			for _, job := range batch.Jobs {
				p := job.Payloads[0]
				pushed = append(pushed, Pushed{Queue: queue, ID: job.ID, Score: p.Score, Digest: Digest(p.Data), Optional: true})
			}
			v, err := Check(Config{}, slices.Values(pushed), path)
			if err != nil {
				t.Fatal(err)
			}
			if !v.OK() || v.Calls != 2 || v.Handled != test.handled || v.Failed != 2-test.handled {
				t.Errorf("got %d handled of %d calls, %d failed, want %d of 2\n%s", v.Handled, v.Calls, v.Failed, test.handled, v.Words())
			}
		})
	}
}

func call1(h lowkiq.Handler, batch *lowkiq.Batch) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	_ = h.Handle(context.Background(), batch)
	return false
}

func TestWrapDoesNothingThatItCannotNote(t *testing.T) {
	broken := errors.New("disk full")
	called := 0
	handler := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { called++; return nil })
	writes, failAt := 0, 1
	w := newWriter(writerFunc(func(b []byte) (int, error) {
		if writes++; writes == failAt {
			return 0, broken
		}
		return len(b), nil
	}), nil, "p", Now)
	batch := batchOf(0, lowkiq.Job{ID: "a"})
	if err := Wrap(w, handler).Handle(t.Context(), batch); !errors.Is(err, broken) || called != 0 {
		t.Errorf("start not written: got %v and %d calls, want %v and none", err, called, broken)
	}
	failAt = 3
	if err := Wrap(w, handler).Handle(t.Context(), batch); !errors.Is(err, broken) || called != 1 {
		t.Errorf("end not written: got %v and %d calls, want %v and one", err, called, broken)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestDeathRefusesImpossibleTimes(t *testing.T) {
	w := newWriter(writerFunc(func(b []byte) (int, error) { return len(b), nil }), nil, "p", Now)
	for _, times := range [][2]time.Duration{{5, 4}, {-1, 4}} {
		if err := w.Death("p", times[0], times[1]); err == nil {
			t.Errorf("Death(%d, %d): got no error, want one", times[0], times[1])
		}
	}
}

// Many processes with many goroutines append to one file; some are killed.
func TestProcessesShareAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	driver, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	var pushed []Pushed
	for p := range 3 {
		worker := exec.Command(os.Args[0], "-test.run=^TestWorker$")
		worker.Env = append(os.Environ(), "HISTORY_WORKER="+path, fmt.Sprintf("HISTORY_ID=w%d", p), fmt.Sprintf("HISTORY_FENCE=%d", p+1))
		var said strings.Builder
		worker.Stdout, worker.Stderr = &said, &said
		kill := p == 2
		if kill {
			worker.Env = append(worker.Env, "HISTORY_FOREVER=1")
		}
		if err := worker.Start(); err != nil {
			t.Fatal(err)
		}
		killed := time.Duration(0)
		if kill {
			awaitText(t, path, `"w2`)
			killed = Now()
			if err := worker.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := worker.Wait(); (err != nil) != kill {
			t.Fatalf("worker %d: %v\n%s", p, err, said.String())
		}
		if kill {
			if err := driver.Death(fmt.Sprint(worker.Process.Pid), killed, Now()); err != nil {
				t.Fatal(err)
			}
		}
		for g := range workerGoroutines {
			for s := range workerCalls {
				p := pushes(fmt.Sprintf("w%d-%d", p, g), float64(s))[0]
				p.Optional = kill
				pushed = append(pushed, p)
			}
		}
	}
	v, err := Check(Config{MaxDuplicates: -1, MaxUncaused: -1}, slices.Values(pushed), path)
	if err != nil {
		t.Fatal(err)
	}
	if !v.OK() || v.Distinct < 2*workerGoroutines*workerCalls || v.Deaths != 1 {
		t.Errorf("got %s", v.Words())
	}
}

const (
	workerGoroutines = 8
	workerCalls      = 100
)

// TestWorker is not a test of its own: TestProcessesShareAFile runs it as a process.
func TestWorker(t *testing.T) {
	path := os.Getenv("HISTORY_WORKER")
	if path == "" {
		return
	}
	w, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fence, err := strconv.ParseInt(os.Getenv("HISTORY_FENCE"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	h := Wrap(w, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
	handle := func(g int, id string, score float64) error {
		batch := batchOf(g, lowkiq.Job{ID: id, Payloads: loads(id, score)})
		batch.Fence = fence
		return h.Handle(t.Context(), batch)
	}
	var wg sync.WaitGroup
	for g := range workerGoroutines {
		id := fmt.Sprintf("%s-%d", os.Getenv("HISTORY_ID"), g)
		wg.Go(func() {
			for s := range workerCalls {
				if err := handle(g, id, float64(s)); err != nil {
					t.Error(err)
				}
			}
			for os.Getenv("HISTORY_FOREVER") != "" { // repeats the last call until it is killed
				_ = handle(g, id, workerCalls-1)
			}
		})
	}
	wg.Wait()
}

func awaitText(t *testing.T, path, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), want) {
			return
		}
	}
	t.Fatalf("%s never had %q", path, want)
}
