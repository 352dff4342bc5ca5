package protocol

import (
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// redisClock estimates Redis's clock from the last reading. It does not depend on the wall clock of this host.
type redisClock struct{ last atomic.Pointer[clockReading] }

type clockReading struct{ redis, here time.Time }

// read decodes the answer to TIME, and records it.
func (c *redisClock) read(reply any) (time.Time, error) {
	now, err := redisdb.Clock(reply)
	if err == nil {
		c.last.Store(&clockReading{now, time.Now()})
	}
	return now, err
}

// now returns the estimate. known is false before the first reading.
func (c *redisClock) now() (now time.Time, known bool) {
	r := c.last.Load()
	if r == nil {
		return now, false
	}
	return r.redis.Add(time.Since(r.here)), true
}
