package demo

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/status"
)

var somePicture = Picture{Handled: Payloads / 2, PerSecond: 640, Lag: 1.25, Unowned: 5, Now: "kill -9 of n2",
	Nodes: []NodePicture{{Name: "n1", Shards: 6, Leads: true}, {Name: "n2", State: "killed"}, {Name: "n3", Shards: 5}}}

// On a terminal the picture is drawn over itself, below what was said, and no line wraps.
func TestScreenInPlace(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &Screen{Out: &out, Columns: func() int { return 40 }}
	s.Say("before")
	s.Show(somePicture)
	first := out.String()
	height := len(somePicture.renderLines())
	if got := strings.Count(strings.TrimPrefix(first, "before\n"), "\n"); got != height {
		t.Errorf("got %d lines in %q, want %d", got, first, height)
	}
	for line := range strings.Lines(first) {
		if n := len(strings.TrimSuffix(line, "\x1b[K\n")); n > 40 {
			t.Errorf("got a line of %d columns, want at most 40: %q", n, line)
		}
	}
	s.Say("after")
	if again := strings.TrimPrefix(out.String(), first); !strings.HasPrefix(again, "\x1b[8A\r\x1b[Jafter\n") {
		t.Errorf("got %q, want the picture of %d lines cleared before the line", again, height)
	}
	s.Clear()
	if got := out.String(); !strings.HasSuffix(got, "\x1b[8A\r\x1b[J") {
		t.Errorf("got %q at the end, want the picture cleared", got)
	}
}

func TestPictureLines(t *testing.T) {
	t.Parallel()
	lines := somePicture.renderLines()
	for _, want := range []string{
		"  n1      ######             6 shards  leads",
		"  n2                         0 shards  killed",
		"  nobody  #####              5 shards  ",
		"  [==============                ]  6402 of 12805    640 jobs/s   lag 1.2 s",
		"  now: kill -9 of n2",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("got\n%s\nwant a line %q", strings.Join(lines, "\n"), want)
		}
	}
	if got, want := somePicture.renderLine(), "handled  6402 of 12805 (49 %), 640 jobs/s, lag 1.2 s; shards: n1 6, n3 5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func viewOf(leader string, owners ...string) *view {
	var shards []status.Shard
	for _, owner := range owners {
		s := status.Shard{State: status.Owned, Owner: owner + "/B.1"}
		if owner == "" {
			s = status.Shard{State: status.Claiming, Owner: "dead/B.1"}
		}
		shards = append(shards, s)
	}
	return newView(time.Now(), status.Status{Leader: leader}, shards)
}

func TestBalanced(t *testing.T) {
	t.Parallel()
	times := func(a, b, none int) []string {
		return slices.Concat(slices.Repeat([]string{"n1"}, a), slices.Repeat([]string{"n3"}, b), slices.Repeat([]string{""}, none))
	}
	for _, c := range []struct {
		name string
		v    *view
		want bool
	}{
		{"even", viewOf("n1", times(8, 8, 0)...), true},
		{"no leader", viewOf("", times(8, 8, 0)...), false},
		{"uneven", viewOf("n1", times(9, 7, 0)...), false},
		{"one unserved", viewOf("n1", times(8, 7, 1)...), false},
		{"another node's", viewOf("n1", append(times(8, 7, 0), "n2")...), false},
		{"nothing known", &view{}, false},
	} {
		if got := c.v.isBalanced([]string{"n1", "n3"}); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
	}
	if got := viewOf("", times(8, 8, 0)...).countMoved(viewOf("", times(6, 8, 2)...)); got != 4 {
		t.Errorf("got %d shards moved, want 4", got)
	}
}

// README shows a verdict of the demo: with every line that one has.
func TestREADMEShowsTheVerdict(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	words, _, _ := strings.Cut(Outcome{}.Words(), "\n\n")
	for line := range strings.Lines(words) {
		if label, _, found := strings.Cut(line, ":"); found {
			seen++
			if !strings.Contains(string(readme), "\n"+label+":") {
				t.Errorf("the verdict that README shows lacks the line %q", label)
			}
		}
	}
	if seen < 8 {
		t.Errorf("got %d lines of a verdict, want 8 at least: the test looks in the wrong place", seen)
	}
}
