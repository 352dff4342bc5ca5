//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestDrainsAFullRedis pushes jobs until Redis has no more memory. Nodes handle each of them once. They count the runs
// that are missing from the journal, and write lines again as memory gets free.
func TestDrainsAFullRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4, "--maxmemory", "16mb", "--maxmemory-policy", "noeviction")
	data, score, stored := strings.Repeat("x", 1000), 1.0, 0
	for full := false; !full; {
		jobs := make([]lowkiq.Push, 200)
		for i := range jobs {
			jobs[i] = lowkiq.Push{ID: fmt.Sprintf("id%d", stored+i), Payload: []byte(data), Score: &score}
		}
		results, err := r.queue.Push(t.Context(), jobs...)
		if err != nil && !protocol.Transient(err) {
			t.Fatal(err)
		}
		for _, one := range results {
			if one.Err == nil {
				stored++
			}
		}
		full = err != nil
		if stored > 100_000 {
			t.Fatal("100,000 jobs were taken, want a Redis that is full")
		}
	}
	w := r.start(settings{Journal: true, TTL: calmTTL})
	r.drained()
	w.terminate(patience)
	r.noneFailed()
	stats, lines := r.stats(), 0
	for _, s := range r.queue.All() {
		n, err := r.client.DB().ForTests().HGet(t.Context(), s.Keys().Count, "runs").Int()
		if err != nil {
			t.Errorf("%s: %v", s, err)
		}
		lines += n
	}
	t.Logf("%d jobs until Redis was full; lines of %d of them, %d counted as left out", stored, lines, stats.Unlogged)
	if stats.Processed != int64(stored) || lines+int(stats.Unlogged) != stored || lines == 0 || stats.Unlogged == 0 {
		t.Errorf("got %d handled, want %d; %d lines and %d left out, want some of each and one per job", stats.Processed, stored, lines, stats.Unlogged)
	}
	if _, err := r.queue.Push(t.Context(), plainJob("after")); err != nil {
		t.Errorf("push when there is room: %v", err)
	}
}
