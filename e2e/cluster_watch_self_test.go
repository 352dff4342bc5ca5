//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// The scenarios trust the watch; so it must see what happens, and object.

func TestWatchSeesMoves(t *testing.T) {
	t.Parallel()
	w := &watch{shards: []*queue.Shard{{Shard: lowkiq.Shard{Queue: "q"}}}, now: make([]holding, 1)}
	ms := time.Millisecond
	for i, instance := range []string{"", "a/1.1", "", "b/1.1", "b/1.2", "a/2.1"} {
		at := time.Duration(i) * 10 * ms
		w.look(at, at+ms, []queue.Owner{{Instance: instance, Fence: int64(i)}})
	}
	moves := w.since(0)
	if len(moves) != 2 || most(moves) != 2 {
		t.Fatalf("got %+v, want a to b and b to a; from b to b is none", moves)
	}
	if first := moves[0]; first.from != "a" || first.to != "b" || first.pause != 21*ms {
		t.Errorf("got %+v, want a to b with a pause of 21ms", first)
	}
	if late := w.since(35 * ms); len(late) != 1 || late[0].to != "a" {
		t.Errorf("after 35ms: got %+v, want b to a alone", late)
	}
}

func TestEven(t *testing.T) {
	t.Parallel()
	owners := map[string]bool{"a/1.1": true, "b/1.1": true}
	for name, c := range map[string]struct {
		counts map[string]int
		want   bool
	}{
		"even":           {map[string]int{"a/1.1": 3, "b/1.1": 2}, true},
		"too many":       {map[string]int{"a/1.1": 4, "b/1.1": 1}, false},
		"unowned":        {map[string]int{"a/1.1": 2, "b/1.1": 2, "": 1}, false},
		"by a dead one":  {map[string]int{"a/1.1": 2, "b/1.1": 2, "c/1.1": 1}, false},
		"none for b yet": {map[string]int{"a/1.1": 5}, false},
	} {
		if got := even(c.counts, owners, 5); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	if even(map[string]int{"": 5}, map[string]bool{"": true}, 5) {
		t.Error("a node without a lease: got even, want not")
	}
}
