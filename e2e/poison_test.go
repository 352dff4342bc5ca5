//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// TestPoison pushes an id that kills the process each time. Meanwhile 31 other shards work, and other ids of its own
// shard wait. In the end it alone is in the morgue, marked as a crash, after max_crashes (3) deaths that it caused
// alone.
func TestPoison(t *testing.T) {
	t.Parallel()
	const shards = 32
	r := newRig(t, shards)
	r.push(neighbours(shards, 8)...)
	r.push(plainJob(poisonID))
	r.excuse(func(p judge.Pushed) bool { return p.ID == poisonID })
	s := settings{TTL: calmTTL, Handler: "poison", Work: 20 * time.Millisecond, Concurrency: shards}
	deaths := 0
	w := r.start(s)
	r.await("the poison is buried and all others are done", patience, func() bool {
		if !w.running() {
			r.died(w, 0)
			deaths++
			w = r.start(s)
		}
		w.mortal.Store(true)
		stats := r.stats()
		return stats.Morgue > 0 && stats.Jobs.Total() == 0
	})
	w.terminate(patience)
	// The first death may find the poison among others in flight; then it is not counted.
	if deaths < 3 || deaths > 4 {
		t.Errorf("got %d deaths, want 3 or 4", deaths)
	}
	r.onlyPoisonIsDead()
	if v := r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: -1}); v.Distinct != len(r.pushed)-1 {
		t.Errorf("got %d payloads handled, want %d: all but the poison", v.Distinct, len(r.pushed)-1)
	}
}

func (r *rig) onlyPoisonIsDead() {
	r.t.Helper()
	page, err := browse.Of(r.queue).Page(r.t.Context(), browse.Query{State: browse.StateMorgue})
	if err != nil {
		r.t.Fatal(err)
	}
	dead := page.Jobs
	if len(dead) != 1 || dead[0].ID != poisonID {
		r.t.Fatalf("got %v in the morgue, want the poison alone", dead)
	}
	if !strings.Contains(dead[0].Error, "crash") || !strings.Contains(dead[0].Error, "3 times") {
		r.t.Errorf("got error %q, want it to speak of 3 crashes", dead[0].Error)
	}
}

// neighbours are n jobs for each shard.
func neighbours(shards, n int) (jobs []lowkiq.Push) {
	missing := shards * n
	have := make([]int, shards)
	for i := 0; missing > 0; i++ {
		id := fmt.Sprintf("neighbour-%d", i)
		if shard := lowkiq.ShardOf(id, shards); have[shard] < n {
			have[shard]++
			missing--
			jobs = append(jobs, plainJob(id))
		}
	}
	return jobs
}
