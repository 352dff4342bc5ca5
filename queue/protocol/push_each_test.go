package protocol_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

// testPushEach checks that a push of a few jobs to many shards, which uses a script of its own, stores the same as
// single pushes.
func testPushEach(t *testing.T, b *backend) {
	few, one := newQueue(t, b.open(t), 40), newQueue(t, b.open(t), 40)
	for range 30 {
		jobs := someJobs(1 + rand.IntN(FewJobs))
		together, err := few.Push(t.Context(), jobs...)
		if err != nil {
			t.Fatal(err)
		}
		for i, job := range jobs {
			alone, err := one.Push(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			eq(t, fmt.Sprintf("answer to %s %s", job.ID, job.Payload), together[i], alone[0])
		}
	}
	for i := range 40 {
		eq(t, few.Shard(i).String(), contents(t, few, few.Shard(i)), contents(t, one, one.Shard(i)))
	}
}

// someJobs returns jobs of 60 ids, so that new, waiting and repeated ids meet.
func someJobs(n int) []lowkiq.Push {
	jobs := make([]lowkiq.Push, n)
	for i := range jobs {
		jobs[i] = job(fmt.Sprint("id", rand.IntN(60)), fmt.Sprint("p", rand.IntN(5)))
		switch rand.IntN(6) {
		case 0:
			score(float64(rand.IntN(3)))(&jobs[i])
		case 1:
			jobs[i].PerformAt = time.Now().Add(time.Hour)
		}
	}
	return jobs
}

// contents returns the waiting jobs of a shard, without the times that Redis chose.
func contents(t *testing.T, q *Queue, s *Shard) map[string]string {
	t.Helper()
	state, err := readState(s, context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"ready": fmt.Sprint(state.ready)}
	for id := range state.jobs {
		found, ok, err := browse.Of(q).Job(t.Context(), id)
		if err != nil || !ok {
			t.Fatal(id, ok, err)
		}
		text := ""
		for _, p := range found.Payloads {
			if p.Score < 1e6 {
				text += fmt.Sprintf("%v:", p.Score)
			}
			text += string(p.Data) + " "
		}
		all[id] = text
	}
	return all
}
