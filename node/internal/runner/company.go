package runner

import (
	"sync"
	"time"
)

// company has lanes whose slow calls have ended pop together, those of all shards of a process. Each
// would wake process and Redis by itself otherwise, which costs more than all that is done for such a
// call. Their calls begin together then, too, and end together: with handlers that take about as long
// as each other, few moments are left in which anything happens.
//
//	lane 1: call ──► . . . ┐
//	lane 2:   call ──► . . ┼──► one request ──► calls begin
//	lane 3:     call ──► . ┘
//	                 companyWait
type company struct {
	mu   sync.Mutex
	next *departure // nil: no lane waits; guarded by mu
}

// departure is when those that wait go on.
type departure struct {
	begins chan struct{}
	timer  *time.Timer // begins it
	lanes  int         // guarded by the company's mu until begins is closed
}

const (
	// companyWait is how long the first lane waits. A call is slow if this is at most a hundredth of
	// it.
	companyWait = 500 * time.Microsecond
	// companyMost is how many go on together: what is done for more takes longer than it saves.
	companyMost = 16
)

// gather waits for others, and says how many go on at this moment.
func (c *company) gather() (lanes int) {
	mine := c.join()
	<-mine.begins
	return mine.lanes
}

func (c *company) join() *departure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		d := &departure{begins: make(chan struct{})}
		d.timer = time.AfterFunc(companyWait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.begin(d)
		})
		c.next = d
	}
	mine := c.next
	if mine.lanes++; mine.lanes == companyMost {
		mine.timer.Stop()
		c.begin(mine)
	}
	return mine
}

// begin lets a departure begin, once. mu is held.
func (c *company) begin(d *departure) {
	if c.next == d {
		c.next = nil
		close(d.begins)
	}
}
