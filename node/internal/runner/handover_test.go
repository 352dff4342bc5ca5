package runner

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// farGroups answers as Redis that is far, 20 ms for each request, and counts how often it is told of less in calls.
func farGroups(g *groupsOfOne, frees *atomic.Int64) AskGroups {
	var was atomic.Int64
	return func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
		time.Sleep(10 * time.Millisecond)
		g.mu.Lock()
		grants, err := g.answer(r, 0)
		g.mu.Unlock()
		if busy := int64(r.Groups[0].Busy); was.Swap(busy) > busy {
			frees.Add(1)
		}
		time.Sleep(10 * time.Millisecond)
		return grants, err
	}
}

// TestHandOver: ids of a group at its limit follow one another without Redis, and now and then what Redis has granted goes back to it.
func TestHandOver(t *testing.T) {
	t.Parallel()
	calmly(t, 8, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var frees, runs atomic.Int64
		var mu sync.Mutex
		var first, last time.Time // guarded by mu
		of := Rules{ShardConcurrency: 8, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}
		s := p.add(Queue{Rules: of, AskGroups: farGroups(g, &frees)}, func(context.Context, *lowkiq.Batch) error {
			mu.Lock()
			if runs.Add(1) == 11 { // until then nobody knows what calls take
				first, _ = time.Now(), frees.Swap(0)
			}
			last = time.Now()
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			return nil
		})
		var ids []string
		for i := range 91 {
			ids = append(ids, fmt.Sprint("a:", i))
		}
		p.give(s, ids...)
		time.Sleep(time.Minute)
		synctest.Wait()
		s.has(t, 0, "in the end")
		mu.Lock()
		defer mu.Unlock()
		if took, most := last.Sub(first), 80*20*time.Millisecond*2; took > most {
			t.Errorf("80 calls of 20ms took %s, want no more than %s", took, most)
		}
		if n := frees.Load(); n < 80/(handOvers+1) || n > 60 {
			t.Errorf("a permit went back to Redis %d times in 80 calls, want some, and not each time", n)
		}
	})
}

// lingering waits until so many lanes wait for a permit of a group.
func lingering(t *testing.T, q *Queue, group string, want int) {
	t.Helper()
	g := &q.live.groups
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		n := len(g.waiters[group])
		g.mu.Unlock()
		if n >= want {
			synctest.Wait()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d lanes wait for a permit, want %d", n, want)
		}
	}
}

// lingerer is a shard of a queue of which one lane is in a call of a:2, and some others wait for its permit. Other ids note when they begin, and take
// long.
func lingerer(t *testing.T, p *process, lanes, waiters int) (s *shard, began func(id string) time.Time) {
	t.Helper()
	g := newGroupsOfOne(t, func() bool { return false })
	var mu sync.Mutex
	at := map[string]time.Time{} // guarded by mu
	of := Rules{ShardConcurrency: lanes, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}
	s = p.add(Queue{Rules: of, Concurrency: lanes, AskGroups: g.ask}, func(_ context.Context, b *lowkiq.Batch) error {
		mu.Lock()
		at[b.Jobs[0].ID] = time.Now()
		mu.Unlock()
		switch b.Jobs[0].ID {
		case "a:1":
			time.Sleep(40 * time.Millisecond)
		case "a:2", "a:3", "a:4":
			time.Sleep(150 * time.Millisecond)
		default:
			time.Sleep(10 * time.Second)
		}
		return nil
	})
	p.give(s, "a:1") // so it is known what calls take
	time.Sleep(time.Second)
	p.give(s, []string{"a:2", "a:3", "a:4"}[:1+waiters]...)
	lingering(t, p.runners[s.Shard].queue, "a:", waiters)
	return s, func(id string) time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at[id]
	}
}

// TestLingersForItself: lanes that wait for a permit of a group keep neither a slot of the node nor a call of their queue, and do what else their
// shard has to do.
func TestLingersForItself(t *testing.T) {
	t.Parallel()
	for lanes, others := range map[int][]string{2: {"other"}, 4: {"other", "one", "more"}} {
		calmly(t, 8, func(t *testing.T, p *process) {
			s, began := lingerer(t, p, lanes, lanes/2)
			if use := p.Slots.Use(); use.Busy != 1 {
				t.Errorf("of %d lanes: one call has %d slots, want one", lanes, use.Busy)
			}
			if busy, _ := p.runners[s.Shard].queue.live.bound.taken(); busy != 1 {
				t.Errorf("of %d lanes: %d calls of the queue are taken, want 1", lanes, busy)
			}
			came := time.Now()
			p.give(s, others...)
			time.Sleep(10 * time.Millisecond)
			for _, id := range others {
				if at := began(id); at.IsZero() || at.Sub(came) > 3*time.Millisecond {
					t.Errorf("of %d lanes: %s began after %s while lanes waited for a permit", lanes, id, at.Sub(came))
				}
			}
			time.Sleep(time.Minute)
			s.has(t, 0, "in the end")
		})
	}
}

// TestLingersBesideAsks: a lane that lingers because another one was about to look for work does that work if the other one begins a call.
func TestLingersBesideAsks(t *testing.T) {
	t.Parallel()
	calmly(t, 8, func(t *testing.T, p *process) {
		g := newGroupsOfOne(t, func() bool { return false })
		var gate atomic.Bool
		under, release := make(chan struct{}), make(chan struct{})
		ask := func(r *queue.GroupRequest) ([]queue.GroupGrant, error) {
			if r.Groups[0].Back > 0 && gate.CompareAndSwap(true, false) {
				close(under)
				<-release
			}
			return g.ask(r)
		}
		var other atomic.Int64
		of := Rules{ShardConcurrency: 3, Groups: rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 1}}}
		s := p.add(Queue{Rules: of, AskGroups: ask}, func(_ context.Context, b *lowkiq.Batch) error {
			switch b.Jobs[0].ID {
			case "a:1":
				time.Sleep(40 * time.Millisecond)
			case "other":
				other.Store(time.Now().UnixNano())
			default:
				time.Sleep(10 * time.Second)
			}
			return nil
		})
		p.give(s, "a:1")
		time.Sleep(time.Second)
		gate.Store(true)
		p.give(s, "a:2", "a:3")
		<-under // a:2 is in its call, and Redis is asked about a:3 again
		p.give(s, "b:1")
		time.Sleep(5 * time.Millisecond)
		p.give(s, "other")
		time.Sleep(5 * time.Millisecond)
		came := time.Now()
		close(release)
		time.Sleep(time.Second)
		if at := other.Load(); at == 0 || time.Unix(0, at).Sub(came) > 30*time.Millisecond {
			t.Errorf("began %s after Redis had answered", time.Unix(0, at).Sub(came))
		}
		time.Sleep(time.Minute)
		s.has(t, 0, "in the end")
	})
}

// TestPermitWithoutSlot: an id whose turn it is while somebody else has the slot asks again as one that was told to, not as one that comes for the first
// time.
func TestPermitWithoutSlot(t *testing.T) {
	t.Parallel()
	calmly(t, 2, func(t *testing.T, p *process) {
		s, _ := lingerer(t, p, 2, 1)
		other := &share{}
		if !p.Slots.takeFree(other) {
			t.Fatal("no slot is free")
		}
		p.h.group.Go(func() { // the next one is for another queue
			if p.Slots.take(context.Background(), other, time.Now()) == nil {
				time.Sleep(100 * time.Millisecond)
				p.Slots.give(other)
			}
		})
		time.Sleep(200 * time.Millisecond) // a:2 has ended
		g := &p.runners[s.Shard].queue.live.groups
		g.mu.Lock()
		if told := g.back["a:3"]; !told {
			t.Errorf("were told to ask again: %v, want a:3", g.back)
		}
		g.mu.Unlock()
		p.Slots.give(other)
		time.Sleep(time.Minute)
		s.has(t, 0, "in the end")
	})
}

// TestHandOverEnds: nothing is handed over after a handler has said that its group is to wait, nor by a limit that holds no more; whoever
// waits for a permit goes on without.
func TestHandOverEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*groups){
		"stop":  func(g *groups) { g.stop("a:", time.Minute) },
		"limit": func(g *groups) { g.changed() },
	} {
		by := rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}
		q, limit := &Queue{live: &live{}}, by.Limit
		q.live.rules.Store(&Rules{Groups: by})
		g := &q.live.groups
		g.took, g.busy, g.asking = time.Millisecond, map[string]int{"a:": 2}, true
		g.granted("a:")
		w := q.waitForGroup("a:1", "a:", by)
		if w == nil {
			t.Fatalf("%s: none may wait", name)
		}
		end(g)
		select {
		case <-w.done:
		default:
			t.Errorf("%s: waits still", name)
		}
		if g.leave(w) {
			t.Errorf("%s: has a permit", name)
		}
		if q.waitForGroup("a:2", "a:", by) != nil {
			t.Errorf("%s: one more may wait", name)
		}
		g.end([]string{"a:", "a:"}, time.Millisecond, limit)
		if len(g.busy)+len(g.waiters)+len(g.handOvers) != 0 {
			t.Errorf("%s: left are %v, %v, %v", name, g.busy, g.waiters, g.handOvers)
		}
	}
}

// TestHandOverOfOld: what was granted before a handler stopped its group, by another limit, or while a handler on another node has stopped it, is not handed over.
func TestHandOverOfOld(t *testing.T) {
	t.Parallel()
	by := rules.Groups{By: ":", Limit: rules.Limit{Concurrency: 2}}
	for name, c := range map[string]struct {
		meanwhile func(*groups)
		inForce   rules.Limit
		grant     queue.GroupGrant
		want      bool
	}{
		"as ever":            {func(*groups) {}, by.Limit, queue.GroupGrant{New: 1}, true},
		"stopped meanwhile":  {func(g *groups) { g.stop("a:", time.Minute) }, by.Limit, queue.GroupGrant{New: 1}, false},
		"limited meanwhile":  {(*groups).changed, rules.Limit{Concurrency: 1}, queue.GroupGrant{New: 1}, false},
		"stopped by another": {func(g *groups) { g.granted("a:") }, by.Limit, queue.GroupGrant{Stopped: true, NewIn: time.Second}, false},
	} {
		q := &Queue{live: &live{}}
		q.live.rules.Store(&Rules{Groups: by})
		g := &q.live.groups
		g.took, g.busy = time.Millisecond, map[string]int{"a:": 1}
		g.ask(&groupAsk{ids: []string{"a:2"}, groups: []string{"a:"}, done: make(chan struct{})})
		r, asks := g.request(by.Limit)
		c.meanwhile(g)
		g.take(r, asks, []queue.GroupGrant{c.grant}, nil, c.inForce)
		if w := q.waitForGroup("a:3", "a:", by); (w != nil) != c.want {
			t.Errorf("%s: may wait for a permit: %v, want %v", name, w != nil, c.want)
		}
	}
}
