package node

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/limits"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The lease shows what lanes of the node's queues wait for. So every node can say why a queue does not go faster, also if it
// does not handle the queue, and needs no further requests for that.

const (
	waitsInterval = time.Second
	// A wait is shown after minReadings successive readings with it. It is shown until maxMissedReadings more readings were
	// without it, so that the lease does not change with each batch.
	minReadings, maxMissedReadings = 2, 4
	// maxWaitQueues is the maximum number of queues with waits in a lease, because all nodes read it.
	maxWaitQueues = 100
)

// waits has the waits of an instance's lanes, by queue.
type waits struct {
	mu    sync.Mutex
	seen  map[waitOf]int             // successive readings with the wait, then minReadings + the readings without it that are left; guarded by mu
	shown map[string][]protocol.Wait // guarded by mu
}

type waitOf struct {
	queue string
	protocol.Wait
}

// addReading adds the current waits by queue. It returns whether the waits to show have changed.
func (w *waits) addReading(now map[string][]protocol.Wait) (changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = map[waitOf]int{}
	}
	found := map[waitOf]bool{}
	for name, list := range now {
		for _, wait := range list {
			found[waitOf{name, wait}] = true
		}
	}
	for one := range found {
		if w.seen[one]++; w.seen[one] >= minReadings {
			w.seen[one] = minReadings + maxMissedReadings
		}
	}
	told := map[string][]protocol.Wait{}
	for one, n := range w.seen {
		switch {
		case found[one]:
		case n <= minReadings: // too few readings found the wait, or too many have missed it since
			delete(w.seen, one)
			continue
		default:
			w.seen[one] = n - 1
		}
		if w.seen[one] >= minReadings {
			told[one.queue] = append(told[one.queue], one.Wait)
		}
	}
	for i, name := range slices.Sorted(maps.Keys(told)) {
		if i >= maxWaitQueues {
			delete(told, name)
			continue
		}
		slices.SortFunc(told[name], func(x, y protocol.Wait) int { return stageOrder(x.For) - stageOrder(y.For) })
	}
	if reflect.DeepEqual(told, w.shown) || len(told)+len(w.shown) == 0 {
		return false
	}
	w.shown = told
	return true
}

// stageOrder gives waits a fixed order, so that the text of the lease does not change without a reason.
func stageOrder(of protocol.Stage) int {
	return slices.Index([]protocol.Stage{protocol.ForCall, protocol.ForPermit, protocol.ForProcess, protocol.ForSlot, protocol.ForRate, protocol.ForGroup}, of)
}

// shownWaits returns the waits for the lease.
func (w *waits) shownWaits() map[string][]protocol.Wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}

// waitsOf returns the current waits of queues.
func waitsOf(queues map[string]*limits.Queue) map[string][]protocol.Wait {
	now := map[string][]protocol.Wait{}
	for name, q := range queues {
		if list := q.Waits(); len(list) > 0 {
			now[name] = list
		}
	}
	return now
}

// watchWaits takes readings until ctx ends.
func (in *instance) watchWaits(ctx context.Context) {
	every(ctx, waitsInterval, func() {
		if in.waits.addReading(waitsOf(in.limits)) {
			in.keeper.RenewNow()
		}
	})
}
