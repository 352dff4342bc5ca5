package condition

import (
	"testing"
	"time"
)

// A condition that lasts has a line at its start and others at growing intervals, which count what was left out; after some
// calm it begins anew.
func TestCondition(t *testing.T) {
	t.Parallel()
	var c Condition
	lines, told := []time.Duration{}, 0
	at := time.Duration(0)
	for ; at < time.Hour; at += 100 * time.Millisecond {
		if left, ok := c.See(at, time.Second); ok {
			lines = append(lines, at)
			told += left + 1
		}
	}
	want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811}
	for i, seconds := range want {
		if lines[i] != seconds*time.Second {
			t.Fatalf("got lines at %s, want the first at %v seconds", lines, want)
		}
	}
	if len(lines) > 22 || lines[len(lines)-1]-lines[len(lines)-2] != Most {
		t.Errorf("got %d lines in an hour, want one each %s in the end", len(lines), Most)
	}
	if _, ok := c.End(at, time.Second); ok {
		t.Error("got an end while it lasts")
	}
	left, ok := c.End(at+time.Second, time.Second)
	if told += left; !ok || told != 36_000 {
		t.Errorf("got %v and %d told of, want the end, and all 36,000", ok, told)
	}
	if _, ok := c.End(at+time.Hour, time.Second); ok {
		t.Error("got a second end")
	}
	if left, ok := c.See(at+time.Hour, time.Second); !ok || left != 0 {
		t.Errorf("after its end: got %v, %d left out, want a line", ok, left)
	}
}

// A condition that is rare begins anew each time, though nobody has said that it was over.
func TestRareCondition(t *testing.T) {
	t.Parallel()
	var c Condition
	for i := range 10 {
		at := time.Duration(i) * 3 * time.Minute
		if _, ok := c.See(at, time.Second); !ok {
			t.Errorf("at %s: got no line", at)
		}
		if _, ok := c.See(at+time.Millisecond, time.Second); ok {
			t.Errorf("at %s: got a second line at once", at)
		}
	}
}
