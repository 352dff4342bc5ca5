package protocol

import (
	"slices"
	"sync"
	"time"
)

// combiner lets concurrent callers share requests. While maxActive requests are under way, the parts of
// further callers wait. When a request ends, the next request sends the waiting parts together. A part that
// comes while fewer requests are under way is sent at once.
type combiner[T comparable] struct {
	maxActive int         // requests under way at once
	maxSize   int         // total size of a full request; its last part may exceed it
	size      func(T) int // of a caller's part
	send      func([]T)   // sends a request and answers its callers

	mu       sync.Mutex
	waiting  []T  // parts for the next request, in order of arrival; guarded by mu
	active   int  // requests under way; guarded by mu
	starting bool // a timer will start a request for the waiting parts; guarded by mu
	progress int  // grows when a request starts or ends; guarded by mu
}

// startOrWait returns true if the caller may start a request. The caller must then call sendGroups with its part,
// or call nextGroup, send the group itself, and call handOver. Otherwise the part waits for the next request.
func (g *combiner[T]) startOrWait(part T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active < g.maxActive {
		g.active++
		g.progress++
		return true
	}
	g.waiting = append(g.waiting, part)
	return false
}

// waitFor puts a part into the next request. If no request is under way, a request starts after delay. Other
// parts may join it until then.
func (g *combiner[T]) waitFor(part T, delay time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, part)
	if g.active == 0 && !g.starting {
		g.starting = true
		time.AfterFunc(delay, g.startDelayed)
	}
}

// startDelayed starts a request for the waiting parts unless a request is under way, which will take them
// with it when it ends.
func (g *combiner[T]) startDelayed() {
	g.mu.Lock()
	g.starting = false
	start := g.active == 0 && len(g.waiting) > 0
	if start {
		g.active++
	}
	g.mu.Unlock()
	if start {
		g.sendGroups()
	}
}

// withdraw removes a part that still waits. It returns false if a request has taken the part.
func (g *combiner[T]) withdraw(part T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, part)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	return i >= 0
}

// withdrawIfStuck removes a part that still waits, if no request has started or ended since the previous call.
// seen is the progress at that call, and is updated.
func (g *combiner[T]) withdrawIfStuck(part T, seen *int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, part)
	if i < 0 || g.progress != *seen {
		*seen = g.progress
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// sendGroups sends one request after the other until no part waits. The first request contains first.
func (g *combiner[T]) sendGroups(first ...T) {
	for group := g.nextGroup(first...); len(group) > 0; group = g.nextGroup() {
		g.send(group)
	}
}

// nextGroup returns the parts of the next request: the given parts, and waiting parts up to maxSize. Without such
// parts the caller's request has ended, and nextGroup counts one request less under way.
func (g *combiner[T]) nextGroup(group ...T) []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.progress++
	size := 0
	for _, part := range group {
		size += g.size(part)
	}
	n := 0
	for n < len(g.waiting) && size < g.maxSize {
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

// handOver ends a request that a caller has sent itself. Waiting parts are sent by another goroutine, so that
// the caller need not.
func (g *combiner[T]) handOver() {
	if group := g.nextGroup(); len(group) > 0 {
		go func() {
			g.send(group)
			g.sendGroups()
		}()
	}
}
