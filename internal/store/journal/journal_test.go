package journal

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.UnixMicro(1_700_000_000_000_000)

func TestRunsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "two words", "line\nline", "nul\x00", "ü", "d 1 2 3\n"})
		var block Block
		var want []Run
		for range rapid.IntRange(0, 5).Draw(t, "runs") {
			if rapid.IntRange(0, 3).Draw(t, "none") == 0 {
				block.Add(nil)
				continue
			}
			r := Run{
				ID: text.Draw(t, "id"), Verdict: rapid.SampledFrom(Verdicts()).Draw(t, "verdict"), RetryCount: rapid.IntRange(-1, 3).Draw(t, "retry"),
				Error: text.Draw(t, "error"), Instance: "n/1", Ended: t0,
				Ran: Ran{Due: t0.Add(-time.Duration(rapid.IntRange(-5, 5).Draw(t, "due")) * time.Second), Popped: t0, Log: text.Draw(t, "log")},
			}
			if rapid.Bool().Draw(t, "began") {
				r.Began, r.Took = t0.Add(time.Millisecond), time.Duration(rapid.IntRange(0, 9).Draw(t, "took"))*time.Microsecond
				r.Ended = r.Began.Add(r.Took)
			}
			if rapid.Bool().Draw(t, "answered") {
				r.Result = []byte(text.Draw(t, "result"))
			}
			block.Add(&r)
			want = append(want, r)
		}
		if block.Lines() != len(want) {
			t.Fatalf("got %d lines, want %d", block.Lines(), len(want))
		}
		first, rest := block.Cut(rapid.IntRange(0, block.Len()).Draw(t, "cut"))
		first.Join(rest)
		for _, b := range []Block{block, first} {
			got, err := Parse(b.Text(), "n/1", t0)
			if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
			}
		}
	})
}

// The line of a run is what Redis keeps: this is its form.
func TestLine(t *testing.T) {
	t.Parallel()
	r := Run{ID: "order-7", Verdict: Failed, RetryCount: 2, Error: "boom", Result: []byte("{}"),
		Ran: Ran{Due: t0, Popped: t0.Add(2 * time.Millisecond), Began: t0.Add(5 * time.Millisecond), Took: time.Second, Log: "page 1"}}
	if got, want := string(r.Append(nil)), "f 2 1700000000000000 2000 3000 1000000 7 4 6 3\norder-7boompage 1{}"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Began, r.Result = time.Time{}, nil
	if got, want := string(r.Append(nil)), "f 2 1700000000000000 2000 -1 -1 7 4 6 0\norder-7boompage 1"; got != want {
		t.Errorf("not begun: got %q, want %q", got, want)
	}
	if r.Attempt() != 3 {
		t.Errorf("attempt: got %d, want 3", r.Attempt())
	}
}

// What is long is cut: errors at their end, logs at their beginning; results are left out.
func TestCuts(t *testing.T) {
	t.Parallel()
	r := Run{ID: "a", Verdict: Done, RetryCount: -1, Error: strings.Repeat("ü", 101) + "x", Result: make([]byte, MaxResult+1),
		Ran: Ran{Due: t0, Popped: t0, Log: strings.Repeat("y", 30) + "\n" + strings.Repeat("z", MaxLog-10)}}
	runs, err := Parse(string(r.Append(nil)), "", t0)
	if err != nil || len(runs) != 1 {
		t.Fatalf("got %v, %v, want one run", runs, err)
	}
	if got := runs[0]; got.Error != strings.Repeat("ü", 100) || got.Log != strings.Repeat("z", MaxLog-10) || got.Result != nil || got.Attempt() != 1 {
		t.Errorf("got %d bytes of error, %d of log, result %q, attempt %d; want 200, %d, none, 1", len(got.Error), len(got.Log), got.Result, got.Attempt(), MaxLog-10)
	}
	for _, c := range []struct{ log, line, want string }{
		{"", "", ""}, {"a", "", "a"}, {"", "a", "a"}, {"a", "b", "a\nb"}, {"a\nb", "b", "a\nb"}, {"b", "b", "b"}, {"ab", "b", "ab\nb"},
		{"a", strings.Repeat("z", MaxLog), strings.Repeat("z", MaxLog)},
	} {
		if got := JoinLog(c.log, c.line); got != c.want {
			t.Errorf("%q and %.20q: got %.40q, want %.40q", c.log, c.line, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, bad := range []string{"x", "\n", "d 1 2 3 4 5 6 7 8 9\n", "q 0 0 0 0 0 0 0 0 0\n", "d 0 0 0 0 0 9 0 0 0\na", "d 0 0 0 0 0 -1 0 0 0\n", "d 0 0 0 0 0 1 0 0 -2\na", "d 0 0 0 0 0 1 0 0 2\na", "d x 0 0 0 0 1 0 0 0\na", "done 0 0 0 0 0 1 0 0 0\na"} {
		if _, err := Parse(bad, "", t0); !errors.Is(err, ErrEntry) {
			f.Errorf("%q: got %v, want %v", bad, err, ErrEntry)
		}
		f.Add(bad)
	}
	f.Add("l 0 0 0 0 0 1 0 3 0\nalogd 0 0 0 0 0 1 0 4 3\naand!{}")
	f.Fuzz(func(t *testing.T, lines string) {
		runs, err := Parse(lines, "", t0)
		if err != nil && !errors.Is(err, ErrEntry) {
			t.Fatal(err)
		}
		if len(runs) > len(lines)/20+1 {
			t.Errorf("got %d runs of %d bytes", len(runs), len(lines))
		}
	})
}
