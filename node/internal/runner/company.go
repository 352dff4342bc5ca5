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
	lanes  int // guarded by the company's mu until begins is closed
}

// companyWait is how long the first lane waits. A call is slow if this is at most a hundredth of it.
const companyWait = 500 * time.Microsecond

// gather waits for others, and says how many go on at this moment.
func (c *company) gather() (lanes int) {
	c.mu.Lock()
	mine := c.next
	if mine == nil {
		mine = &departure{begins: make(chan struct{})}
		c.next = mine
		time.AfterFunc(companyWait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.next = nil
			close(mine.begins)
		})
	}
	mine.lanes++
	c.mu.Unlock()
	<-mine.begins
	return mine.lanes
}
