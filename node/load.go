package node

import (
	"math"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/process/procs"
	"github.com/lowkiq/lowkiq/metrics"
)

// loadInterval is the time between two measurements of the load. A change of the lease's text costs all nodes a little.
const loadInterval = 10 * time.Second

// load measures what the process uses, for its lease.
type load struct {
	usage func() (cpu time.Duration, memory int64, err error)

	mu   sync.Mutex
	at   time.Duration  // of the last measurement, by the clock of leases
	cpu  time.Duration  // used until then
	last *identity.Load // nil before the second measurement
}

// newLoad returns the load of this process.
func newLoad() *load { return &load{usage: procs.Usage} }

// measure returns the load, at most loadInterval old. It is nil at first, and on a system that does not tell.
func (l *load) measure(now time.Duration, slots func() metrics.Use) *identity.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := now - l.at
	if l.at != 0 && since < loadInterval {
		return l.last
	}
	cpu, memory, err := l.usage()
	if err != nil {
		return nil
	}
	if use := slots(); l.at != 0 {
		l.last = &identity.Load{CPU: math.Round(100*(cpu-l.cpu).Seconds()/since.Seconds()) / 100, Memory: memory >> 20, Slots: use.Total, Busy: use.Busy}
	}
	l.at, l.cpu = now, cpu
	return l.last
}
