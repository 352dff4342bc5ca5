package runner

import (
	"testing"
	"time"
)

// The flushes of all shards meet: at the last tick that brings an ack to Redis in time.
func TestFlushesMeet(t *testing.T) {
	t.Parallel()
	for after := range 1000 {
		now := time.Unix(1_800_000_000, int64(after)*7919)
		d := untilTick(now)
		if d <= ackDelay-ackTick || d > ackDelay {
			t.Fatalf("%s after the second: got %s, want it in (%s, %s]", now.Sub(now.Truncate(time.Second)), d, ackDelay-ackTick, ackDelay)
		}
		if off := now.Add(d).UnixNano() % int64(ackTick); off != 0 {
			t.Fatalf("%s after the second: got %d ns beside a tick", now.Sub(now.Truncate(time.Second)), off)
		}
	}
}
