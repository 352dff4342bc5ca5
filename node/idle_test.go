package node

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// commands is how many commands Redis has processed, those inside scripts included.
func commands(t *testing.T, addr string) int {
	t.Helper()
	for line := range strings.Lines(raw(t, addr, "INFO", "stats")) {
		if text, ok := strings.CutPrefix(line, "total_commands_processed:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("INFO has no total_commands_processed")
	return 0
}

// TestIdleCost checks that a hundred shards that have been idle for a while cost fewer than 5 Redis commands per second. An
// injected clock makes the polls of two minutes at once. The cost of the lease per second is added.
func TestIdleCost(t *testing.T) {
	t.Parallel()
	const shards, window = 1000, 120 * time.Second
	srv := redistest.Start(t)
	run := start(t, Config{Redis: srv.URL(), TTL: 2 * time.Minute}, QueueConfig{Shards: shards}, nothing).serving()
	in := run.instance()
	await(t, "all are subscribed", func() bool { return raw(t, srv.Addr(), "PUBSUB", "CHANNELS") == strconv.Itoa(shards+1) }) // and the instance itself
	in.lanes.Wait()
	clock := sinceBoot()
	polls := func(d time.Duration) {
		for end := clock + d; clock < end; clock += time.Second {
			in.wakeups.pollOnce(t.Context(), clock)
		}
	}
	polled := 0
	await(t, "the last confirmations have arrived, and all have backed off", func() bool {
		before := commands(t, srv.Addr())
		polls(window)
		polled = commands(t, srv.Addr()) - before
		return polled < 4*shards
	})
	before := commands(t, srv.Addr())
	for range 10 {
		in.afterRenewal(t.Context()) // once a second at the default ttl
	}
	renewals := (commands(t, srv.Addr())-before)/10 + 1 // and the lease's SET
	perSecond := float64(polled)/window.Seconds() + float64(renewals)
	per100 := perSecond / (shards / 100)
	t.Logf("%d shards: %d commands by polls in %s, %d per renewal: %.2f/s per hundred", shards, polled, window, renewals, per100)
	if per100 >= 5 {
		t.Errorf("%.2f commands a second per hundred idle shards, want less than 5", per100)
	}
	if want := shards * int(window/time.Minute); polled < want {
		t.Errorf("%d commands by polls in %s, want at least %d: each shard once a minute", polled, window, want)
	}
}
