package redisdb

import "testing"

// TestCountOnline checks that a replica counts only while it follows its master.
func TestCountOnline(t *testing.T) {
	t.Parallel()
	const address = "ip=10.0.0.2,port=6379,state="
	fields := map[string]string{
		"connected_slaves": "3", "slave0": address + "online,offset=1,lag=0", "slave1": address + "wait_bgsave,offset=0,lag=0",
		"slave12": address + "online,offset=1,lag=1", "slave_read_repl_offset": "state=online",
	}
	if n := countOnline(fields); n != 2 {
		t.Errorf("got %d replicas, want 2", n)
	}
}
