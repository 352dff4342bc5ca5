package protocol

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// gatherer is a caller of a combiner.
type gatherer struct {
	sent atomic.Int32
	done chan struct{}
}

// TestCombiner checks that each part of concurrent callers is in one request, or was withdrawn and is in none. At most
// two requests are under way, each with as many parts as fit. At the end none is under way.
func TestCombiner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var underWay, together, withdrawn atomic.Int32
		g := &combiner[*gatherer]{maxActive: 2, maxSize: 8, size: func(*gatherer) int { return 3 }}
		answer := func(group []*gatherer) {
			if n := underWay.Add(1); n > 2 || len(group) > 3 {
				t.Errorf("%d requests are under way, one of %d callers", n, len(group))
			}
			if len(group) > 1 {
				together.Add(1)
			}
			runtime.Gosched()
			underWay.Add(-1)
			for _, c := range group {
				c.sent.Add(1)
				close(c.done)
			}
		}
		g.send = answer
		var callers sync.WaitGroup
		for seed := range uint64(16) {
			callers.Go(func() {
				random := rand.New(rand.NewPCG(seed, 1))
				for range 500 {
					c, gaveUp := &gatherer{done: make(chan struct{})}, false
					switch random.IntN(4) {
					case 0: // as a pop that may go alone
						if g.startOrWait(c) {
							answer(g.nextGroup(c))
							g.handOver()
						}
					case 1: // as acks
						g.waitFor(c, time.Microsecond)
					case 2: // as a push whose context ends
						if g.startOrWait(c) {
							go g.sendGroups(c)
						}
						gaveUp = g.withdraw(c)
					default:
						if g.startOrWait(c) {
							go g.sendGroups(c)
						}
					}
					if gaveUp {
						withdrawn.Add(1)
					} else {
						<-c.done
					}
					if n := c.sent.Load(); n == 0 != gaveUp || n > 1 {
						t.Errorf("a caller was in %d requests, withdrawn: %t", n, gaveUp)
					}
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		if g.active != 0 || len(g.waiting) != 0 {
			t.Errorf("in the end %d requests are under way, %d callers wait", g.active, len(g.waiting))
		}
		if together.Load() == 0 || withdrawn.Load() == 0 {
			t.Errorf("%d requests had several callers, %d withdrew: the test shows little", together.Load(), withdrawn.Load())
		}
	})
}
