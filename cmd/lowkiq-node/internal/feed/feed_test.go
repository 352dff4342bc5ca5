package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// store is a target that remembers ids in order.
type store struct {
	ids   []string
	calls int
	most  int // jobs of the largest push
	// answer overrides the answer for a job, the n-th of a call.
	answer func(call, n int, job lowkiq.Push) *protocol.Result
}

func (s *store) Push(_ context.Context, jobs ...lowkiq.Push) ([]protocol.Result, error) {
	s.calls++
	s.most = max(s.most, len(jobs))
	results := make([]protocol.Result, len(jobs))
	var first error
	for i, job := range jobs {
		if s.answer != nil {
			if r := s.answer(s.calls, i, job); r != nil {
				results[i] = *r
				if first == nil {
					first = r.Err
				}
				continue
			}
		}
		s.ids = append(s.ids, job.ID)
	}
	return results, first
}

var errAway = fmt.Errorf("redis 127.0.0.1:1: %w", os.ErrDeadlineExceeded) // a net.Error

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "{\"id\":\"%d\"}\n", i)
	}
	return b.String()
}

type refused struct {
	mu    sync.Mutex
	lines []string
}

func (r *refused) add(line int, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("line %d: %v", line, reason))
}

func TestRun(t *testing.T) {
	t.Parallel()
	const mixed = "{\"id\":\"1\"}\n\n{\"id\":2}\n{\"id\":\"4\"}\n{\"id\":\"full\"}\n{\"id\":\"6\"}\n"
	for _, c := range []struct {
		name    string
		inputs  []string
		skip    int
		strict  bool
		want    Summary
		err     error
		ids     string
		refused []string
	}{
		{"nothing", []string{""}, 0, false, Summary{}, nil, "", nil},
		{"all", []string{lines(1, 3)}, 0, false, Summary{Pushed: 3, Lines: 3, Line: 3}, nil, "1 2 3", nil},
		{"no last newline", []string{"{\"id\":\"1\"}\n{\"id\":\"2\"}"}, 0, false, Summary{Pushed: 2, Lines: 2, Line: 2}, nil, "1 2", nil},
		{"bad lines do not stop the rest", []string{mixed}, 0, false, Summary{Pushed: 3, Refused: 2, Lines: 5, Line: 6}, nil, "1 4 6",
			[]string{"line 3: id: must be a string (column 7)", `line 5: too many payloads wait for this id`}},
		{"strict stops before the bad line", []string{mixed}, 0, true, Summary{Pushed: 1, Refused: 1, Lines: 2, Line: 1}, ErrStrict, "1",
			[]string{"line 3: id: must be a string (column 7)"}},
		{"strict goes on behind it", []string{mixed}, 3, true, Summary{Pushed: 1, Refused: 1, Lines: 2, Line: 4}, ErrStrict, "4 6",
			[]string{"line 5: too many payloads wait for this id"}},
		{"skip", []string{lines(1, 5)}, 3, false, Summary{Pushed: 2, Lines: 2, Line: 5}, nil, "4 5", nil},
		{"skip all", []string{lines(1, 5)}, 9, false, Summary{Line: 9}, nil, "", nil},
		{"files are counted through", []string{lines(1, 2), "{\"id\":\"3\"}", "\n{}\n"}, 1, false, Summary{Pushed: 2, Refused: 1, Lines: 3, Line: 5}, nil, "2 3",
			[]string{"line 5: id: missing (2 line 2, column 1)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			full := func(_, _ int, job lowkiq.Push) *protocol.Result {
				if job.ID == "full" {
					return &protocol.Result{Err: protocol.ErrTooManyPayloads}
				}
				return nil
			}
			s, r := &store{answer: full}, &refused{}
			f := &Feeder{Target: s, Shards: 4, Skip: c.skip, Strict: c.strict, Refused: r.add}
			var inputs []Input
			for i, text := range c.inputs {
				inputs = append(inputs, Input{fmt.Sprint(i), strings.NewReader(text)})
			}
			got, err := f.Run(t.Context(), inputs...)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %+v %v, want %+v %v", got, err, c.want, c.err)
			}
			if ids := strings.Join(s.ids, " "); ids != c.ids {
				t.Errorf("stored: got %q, want %q", ids, c.ids)
			}
			if !slices.Equal(r.lines, c.refused) {
				t.Errorf("refused: got %q, want %q", r.lines, c.refused)
			}
		})
	}
}

// The input breaks: what came before is stored, and the place is known.
func TestInputError(t *testing.T) {
	t.Parallel()
	s := &store{}
	f := &Feeder{Target: s, Shards: 4}
	broken := io.MultiReader(strings.NewReader(lines(1, 3)), iotest.ErrReader(errors.New("disk on fire")))
	got, err := f.Run(t.Context(), Input{"events", broken})
	if want := (Summary{Pushed: 3, Lines: 3, Line: 3}); got != want || !errors.Is(err, ErrInput) {
		t.Errorf("got %+v %v, want %+v and ErrInput", got, err, want)
	}
}

// Redis goes away in the middle of a batch and comes back: all lines are stored.
func TestAwayAndBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(call, n int, _ lowkiq.Push) *protocol.Result {
			if call < 8 && n%2 == 1 {
				return &protocol.Result{Err: errAway}
			}
			return nil
		}}
		noticed := 0
		f := &Feeder{Target: s, Shards: 4, Away: func(error) { noticed++ }}
		got, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 100))})
		if want := (Summary{Pushed: 100, Lines: 100, Line: 100}); got != want || err != nil {
			t.Fatalf("got %+v %v, want %+v", got, err, want)
		}
		if len(s.ids) != 100 || noticed == 0 {
			t.Errorf("got %d stored, %d notices; want 100 and some", len(s.ids), noticed)
		}
	})
}

// Redis stays away: every line up to Summary.Line is stored, the one after it is not,
// and a run with Skip stores the rest.
func TestGivesUpAndResumes(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"1", "2", "57", "100"} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{answer: func(_, _ int, job lowkiq.Push) *protocol.Result {
				if job.ID == lost {
					return &protocol.Result{Err: errAway}
				}
				return nil
			}}
			f := &Feeder{Target: s, Shards: 4}
			began := time.Now()
			sum, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 100))})
			if took := time.Since(began); !errors.Is(err, errAway) || took < 25*time.Second || took > 31*time.Second {
				t.Fatalf("got %v after %s, want %v after 30s", err, took, errAway)
			}
			for i := 1; i <= sum.Line; i++ {
				if !slices.Contains(s.ids, fmt.Sprint(i)) {
					t.Errorf("line %d is not stored, and the stream would be resumed after %d", i, sum.Line)
				}
			}
			if fmt.Sprint(sum.Line+1) != lost {
				t.Errorf("got line %d, want the one before %s", sum.Line, lost)
			}
			s.answer = nil
			f.Skip = sum.Line
			if _, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 100))}); err != nil {
				t.Fatal(err)
			}
			slices.Sort(s.ids)
			if got := len(slices.Compact(s.ids)); got != 100 {
				t.Errorf("got %d lines stored, want 100", got)
			}
		})
	}
}

// An error that is neither a refusal nor transient ends the run at once.
func TestFatal(t *testing.T) {
	t.Parallel()
	wrong := errors.New("script: no such function")
	s := &store{answer: func(_, _ int, job lowkiq.Push) *protocol.Result { return &protocol.Result{Err: wrong} }}
	f := &Feeder{Target: s, Shards: 4}
	if got, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 3))}); !errors.Is(err, wrong) || got.Line != 0 || s.calls != 1 {
		t.Errorf("got %+v %v after %d calls, want %v after 1", got, err, s.calls, wrong)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &store{answer: func(_, n int, _ lowkiq.Push) *protocol.Result { cancel(stop); return &protocol.Result{Err: errAway} }}
	f := &Feeder{Target: s, Shards: 4}
	if got, err := f.Run(ctx, Input{"", strings.NewReader(lines(1, 3))}); !errors.Is(err, stop) || got.Line != 0 {
		t.Errorf("got %+v %v, want %v", got, err, stop)
	}
}

// A slow stream is not kept waiting for a batch to fill.
func TestSlowStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		settled := make(chan int, 10)
		f := &Feeder{Target: &store{}, Shards: 4, Settled: func(s Summary) { settled <- s.Line }}
		go f.Run(t.Context(), Input{"", r}) //nolint:errcheck // ends with the pipe
		for i := 1; i <= 3; i++ {
			if _, err := io.WriteString(w, lines(i, i)); err != nil {
				t.Fatal(err)
			}
			if got := <-settled; got != i {
				t.Errorf("got line %d settled, want %d", got, i)
			}
		}
		w.Close()
	})
}

// Lines that are skipped take no time.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &Feeder{Target: &store{}, Shards: 4, Skip: 50, Rate: 10}
		began := time.Now()
		sum, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 80))})
		if took := time.Since(began); err != nil || sum.Pushed != 30 || took != 3*time.Second {
			t.Errorf("got %d lines in %s, %v, want 30 in 3s", sum.Pushed, took, err)
		}
	})
}

// A batch holds no more of a shard than one script takes, or order could be lost when
// one of two scripts must be repeated.
func TestBatchesPerShard(t *testing.T) {
	t.Parallel()
	s := &store{}
	f := &Feeder{Target: s, Shards: 1, Refused: func(line int, err error) { t.Error(line, err) }}
	big := strings.Repeat("x", 400_000)
	input := lines(1, 5000)
	for range 10 {
		input += `{"id":"big","payload":"` + big + "\"}\n"
	}
	got, err := f.Run(t.Context(), Input{"", strings.NewReader(input)})
	if err != nil || got.Pushed != 5010 || s.most > shareLines {
		t.Errorf("got %+v %v, largest batch %d; want 5010 in batches of at most %d", got, err, s.most, shareLines)
	}
	if s.calls < 10 {
		t.Errorf("got %d batches, want at least 10", s.calls)
	}
}

// What waits for one id cannot be read: its push is refused, and the stream goes on.
func TestDamagedRecordRefusesItsLine(t *testing.T) {
	t.Parallel()
	s, r := &store{answer: func(_, _ int, job lowkiq.Push) *protocol.Result {
		if job.ID == "2" {
			return &protocol.Result{Err: fmt.Errorf("job 2: %w", protocol.ErrDamaged)}
		}
		return nil
	}}, &refused{}
	f := &Feeder{Target: s, Shards: 4, Refused: r.add}
	got, err := f.Run(t.Context(), Input{"", strings.NewReader(lines(1, 3))})
	if want := (Summary{Pushed: 2, Refused: 1, Lines: 3, Line: 3}); got != want || err != nil || len(r.lines) != 1 {
		t.Errorf("got %+v %v, refused %q, want %+v and line 2 refused", got, err, r.lines, want)
	}
}

// Interrupted while Redis answers: what the answer says is stored is not to be pushed again.
func TestCancelCountsTheLastAnswer(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &store{answer: func(_, _ int, job lowkiq.Push) *protocol.Result {
		cancel(stop)
		if job.ID == "3" {
			return &protocol.Result{Err: context.Canceled}
		}
		return &protocol.Result{}
	}}
	f := &Feeder{Target: s, Shards: 4}
	got, err := f.Run(ctx, Input{"", strings.NewReader(lines(1, 3) + lines(3, 3))})
	if got.Line != got.Pushed || got.Pushed == 0 || got.Pushed > 2 || !errors.Is(err, stop) {
		t.Errorf("got %+v %v, want the lines before the third counted, and %v", got, err, stop)
	}
}
