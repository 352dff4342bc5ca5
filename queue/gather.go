package queue

import (
	"slices"
	"sync"
	"time"
)

// gathered has concurrent callers share requests: while requests are under way, callers queue up,
// and the next request sends what has gathered. A lone caller's goes out at once.
type gathered[T comparable] struct {
	most int         // requests under way at once
	room int         // most that one request takes, by size; the last one may exceed it
	size func(T) int // of one caller's part
	send func([]T)   // one request; it answers the callers

	mu      sync.Mutex
	waiting []T         // guarded by mu
	active  int         // requests under way; guarded by mu
	soon    bool        // a request will begin for one that follows, by later; guarded by mu
	later   *time.Timer // guarded by mu
	turns   int         // requests that were begun or have ended; guarded by mu
}

// join says whether one begins a request at once, by run; if not, it waits for the next one.
func (g *gathered[T]) join(one T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active < g.most {
		g.active++
		g.turns++
		return true
	}
	g.waiting = append(g.waiting, one)
	return false
}

// follow has one go with the next request. If none is under way, one begins after a while, which
// others may join: at once when so many are there, if that is not 0.
func (g *gathered[T]) follow(one T, while time.Duration, company int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, one)
	switch {
	case company > 0 && len(g.waiting) >= company && g.active < g.most:
		if g.soon {
			g.soon = !g.later.Stop()
		}
		g.active++
		go g.run()
	case g.active == 0 && !g.soon:
		g.soon = true
		g.later = time.AfterFunc(while, g.begin)
	}
}

// begin begins a request for those that follow, if none is under way.
func (g *gathered[T]) begin() {
	g.mu.Lock()
	g.soon = false
	begins := g.active == 0 && len(g.waiting) > 0
	if begins {
		g.active++
	}
	g.mu.Unlock()
	if begins {
		g.run()
	}
}

// withdraw takes one back if it is in no request yet.
func (g *gathered[T]) withdraw(one T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, one)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	return i >= 0
}

// stuck takes one back that waits for the next request, if none was begun or has ended since its last
// look, which turns notes.
func (g *gathered[T]) stuck(one T, turns *int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, one)
	if i < 0 || g.turns != *turns {
		*turns = g.turns
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// run sends requests, one after the other, while callers wait. The first one has these, too.
func (g *gathered[T]) run(first ...T) {
	for group := g.take(first...); len(group) > 0; group = g.take() {
		g.send(group)
	}
}

// take forms the next group: these and others that wait. If there is none, a request less is under
// way.
func (g *gathered[T]) take(group ...T) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turns++
	size := 0
	for _, one := range group {
		size += g.size(one)
	}
	n := 0
	for n < len(g.waiting) && size < g.room {
		size += g.size(g.waiting[n])
		n++
	}
	group = append(group, g.waiting[:n]...)
	g.waiting = slices.Delete(g.waiting, 0, n)
	if len(group) == 0 {
		g.active--
	}
	return group
}

// leave ends a request that one caller has sent by itself; the next one goes on beside it.
func (g *gathered[T]) leave() {
	if group := g.take(); len(group) > 0 {
		go func() {
			g.send(group)
			g.run()
		}()
	}
}
