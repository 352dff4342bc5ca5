//go:build linux

package e2e

import (
	"context"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/demodata"
)

// flow pushes the real events to fleetQueues, again and again, until it is
// stopped: jobs are under way at every instant of a scenario. Failed pushes are the
// scenario's business; they are in the books.
type flow struct {
	f      *fleet
	stop   func()
	failed atomic.Int64 // pushes
}

const (
	flowPause = 50 * time.Millisecond
	flowBit   = 12 // events each time
)

// allEvents are read once for all fleets: that takes a second of a busy core.
var allEvents = sync.OnceValue(func() []lowkiq.Push { return realEvents(demodata.Count) })

func (f *fleet) startFlow() *flow {
	fl := &flow{f: f}
	fl.stop = f.background(fl.run)
	return fl
}

// background runs something until the test ends or calls stop, which waits for its end and
// may be called twice.
func (f *fleet) background(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); run(ctx) }()
	stop = func() { cancel(); <-ended }
	f.t.Cleanup(stop)
	return stop
}

func (fl *flow) run(ctx context.Context) {
	tick := time.NewTicker(flowPause)
	defer tick.Stop()
	events := allEvents()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bits := make([][]lowkiq.Push, len(fleetQueues))
		for range flowBit {
			job := events[n%len(events)]
			if again := n / len(events); again > 0 {
				job.ID = fmt.Sprintf("%s of round %d", job.ID, again)
			}
			k := crc32.ChecksumIEEE([]byte(job.ID)) / 7 % uint32(len(bits))
			bits[k] = append(bits[k], job)
			n++
		}
		for k, bit := range bits {
			if len(bit) > 0 && fl.f.tryPushTo(fl.f.queues[k], bit...) != nil {
				fl.failed.Add(1)
			}
		}
	}
}
