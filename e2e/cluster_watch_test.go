//go:build linux

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// watch follows the claims of a fleet.
type watch struct {
	f   *fleet
	end func()

	mu     sync.Mutex
	shards []*protocol.Shard // guarded by mu
	now    []holding         // by shard; guarded by mu
	moves  []move            // in order of time; guarded by mu
}

// holding is who claims a shard, and when it was seen last.
type holding struct {
	owner protocol.Owner
	node  string // the last owner's
	since time.Duration
	seen  time.Duration // the last look at which it was claimed
}

// move is a shard's change to another instance.
type move struct {
	shard    lowkiq.Shard
	from, to string // nodes
	at       time.Duration
	pause    time.Duration // for which it was not claimed, to the precision of two looks
}

const (
	watchEvery  = 10 * time.Millisecond
	followEvery = 20 // number of looks between two looks for queues that have other shards
)

func (f *fleet) watchClaims() *watch {
	w := &watch{f: f}
	w.follow(f.queues)
	w.end = f.background(w.run)
	return w
}

func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n%followEvery == 0 {
			w.followAll()
		}
		asked := judge.Now()
		if owners, err := w.f.client.Owners(ctx, w.shards); err == nil {
			w.look(asked, judge.Now(), owners)
		}
	}
}

// followAll follows queues that have other shards.
func (w *watch) followAll() {
	var queues []*protocol.Queue
	for _, q := range w.f.queues {
		now, err := w.f.latest(q)
		if err != nil {
			return
		}
		queues = append(queues, now)
	}
	w.follow(queues)
}

// follow begins again if a queue has other shards than the watched shards.
func (w *watch) follow(queues []*protocol.Queue) {
	var shards []*protocol.Shard
	for _, q := range queues {
		shards = append(shards, q.All()...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.EqualFunc(shards, w.shards, func(x, y *protocol.Shard) bool { return x.Keys().Wake == y.Keys().Wake }) {
		return
	}
	w.shards, w.now = shards, make([]holding, len(shards))
}

// look takes in the claims as they were at some moment between two.
func (w *watch) look(from, to time.Duration, owners []protocol.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, owner := range owners {
		h := &w.now[i]
		if owner.Instance != "" && owner != h.owner {
			next := nodeOf(owner.Instance)
			if h.node != "" {
				w.moves = append(w.moves, move{w.shards[i].Shard, h.node, next, to, to - h.seen})
			}
			h.node, h.since = next, to
		}
		h.owner = owner
		if owner.Instance != "" {
			h.seen = from
		}
	}
}

// spread counts each queue's shards by instance, "" for those not claimed, and says when the last
// claim was made.
func (w *watch) spread() (counts []map[string]int, last time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	byQueue := map[string]map[string]int{}
	for i, h := range w.now {
		name := w.shards[i].Queue
		if byQueue[name] == nil {
			byQueue[name] = map[string]int{}
			counts = append(counts, byQueue[name])
		}
		byQueue[name][h.owner.Instance]++
		last = max(last, h.since)
	}
	return counts, last
}

// since lists the moves after a moment from one node to another.
func (w *watch) since(at time.Duration) (moves []move) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.moves {
		if m.at > at && m.from != m.to {
			moves = append(moves, m)
		}
	}
	return moves
}

// most is the largest number of moves of one shard.
func most(moves []move) int {
	counts := map[lowkiq.Shard]int{}
	n := 0
	for _, m := range moves {
		counts[m.shard]++
		n = max(n, counts[m.shard])
	}
	return n
}

// pauses describes for how long shards had no owner while they moved.
func pauses(moves []move) string {
	if len(moves) == 0 {
		return "no moves"
	}
	var list []time.Duration
	for _, m := range moves {
		list = append(list, m.pause)
	}
	slices.Sort(list)
	return fmt.Sprintf("%d moves, pauses median %s, p99 %s, longest %s", len(list),
		list[len(list)/2].Round(time.Millisecond), list[(len(list)*99-1)/100].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond))
}

// TestWatchSeesMoves checks that the watch sees moves, because the scenarios trust it.
func TestWatchSeesMoves(t *testing.T) {
	t.Parallel()
	w := &watch{shards: []*protocol.Shard{{Shard: lowkiq.Shard{Queue: "q"}}}, now: make([]holding, 1)}
	ms := time.Millisecond
	for i, instance := range []string{"", "a/1.1", "", "b/1.1", "b/1.2", "a/2.1"} {
		at := time.Duration(i) * 10 * ms
		w.look(at, at+ms, []protocol.Owner{{Instance: instance, Fence: int64(i)}})
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
