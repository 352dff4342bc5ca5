package protocol_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestUsualPop compares the short way of lua/pop.lua, for the common records of a drain, with the rest of the script.
// Both answer and leave the same in Redis, whatever stands between these records.
func TestUsualPop(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for seed := range tier.Of(uint64(6), 6, 30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			short, long := newRig(t, b), newRig(t, b)
			pop := long.c.DB().Scripts.Pop
			text := strings.Replace(pop.Text(), "local usual = quiet and", "local usual = false and", 1)
			if text == pop.Text() {
				t.Fatal("pop.lua has no short way that could be left out")
			}
			pop.SetText(text)
			got, want := drainAtRandom(short, seed), drainAtRandom(long, seed)
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Fatalf("step %d: got %.2000s\nwant %.2000s", i, got[min(i, len(got)-1)], want[i])
				}
			}
		})
	}
}

// drainAtRandom fills a shard and empties it. It returns what each pop answers and leaves.
func drainAtRandom(r *rig, seed uint64) (steps []string) {
	r.t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	odd := []struct {
		part  float64 // of the records
		kinds []string
	}{
		{0, nil}, {0.02, []string{"deleted"}}, {0.3, []string{"large"}}, {0.02, []string{"some payloads"}}, {1, []string{"some payloads"}},
		{0.3, []string{"deleted", "large", "some payloads"}},
	}[seed%6]
	var jobs []lowkiq.Push
	var deleted []string
	ids := 1000
	if odd.part == 1 {
		ids = 300 // with thousands of payloads
	}
	for i := range ids {
		id, kind := fmt.Sprint("id-", i), "plain"
		if rnd.Float64() < odd.part {
			kind = odd.kinds[rnd.IntN(len(odd.kinds))]
		}
		switch kind {
		case "plain":
			jobs = append(jobs, job(id, "payload", score(1)))
		case "deleted":
			jobs = append(jobs, job(id, "gone", score(1)))
			deleted = append(deleted, id)
		case "large":
			jobs = append(jobs, job(id, strings.Repeat("large ", 20+rnd.IntN(100)), score(1)))
		default:
			most := 6
			if odd.part == 1 {
				most = 30 // a flight's payloads are bounded, too
			}
			for k := range 2 + rnd.IntN(most) {
				jobs = append(jobs, job(id, fmt.Sprint(strings.Repeat("one of some ", 4), k), score(float64(k))))
			}
		}
	}
	r.push(jobs...)
	if len(deleted) > 0 {
		_, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, deleted...)
		r.noErr(err)
	}
	var acks []Acks
	for range 400 {
		most, room := []int{100, 300, 1000}[rnd.IntN(3)], []int{9000, 1 << 20}[rnd.IntN(2)]
		p, err := r.claim.Pop(r.ctx, PopRequest{Acks: acks, IDs: 1 + rnd.IntN(most), Bytes: 1 + rnd.IntN(room), MaxCrashes: 3})
		r.noErr(err)
		steps = append(steps, r.afterPop(p))
		if len(p.Jobs) == 0 {
			break
		}
		acks = []Acks{{Flight: p.Flight, Rest: true}}
		if n := rnd.IntN(len(p.Jobs)); rnd.IntN(3) == 0 && n > 0 { // a part of the flight by itself
			part := Acks{Flight: p.Flight}
			for _, j := range p.Jobs[:n] {
				part.IDs = append(part.IDs, j.ID)
			}
			if _, err := r.claim.Ack(r.ctx, part); err != nil {
				r.t.Fatal(err)
			}
			if rnd.IntN(2) == 0 {
				acks = nil // what is left stays open
			}
		}
	}
	return steps
}

// afterPop returns a pop's answer and the shard after it, without the parts that differ between two runs.
func (r *rig) afterPop(p Popped) string {
	r.t.Helper()
	raw, err := readRaw(r.s, r.ctx)
	r.noErr(err)
	claim, count := raw.claim.Val(), raw.count.Val()
	maps.DeleteFunc(claim, func(field, _ string) bool {
		return strings.HasPrefix(field, "@") || field == "fence" || field == "at"
	})
	delete(count, "last")
	var jobs strings.Builder
	for _, j := range p.Jobs {
		jobs.WriteString(j.ID)
		for _, one := range j.Payloads {
			fmt.Fprintf(&jobs, " %v %s", one.Score, one.Data)
		}
		jobs.WriteByte('\n')
	}
	records := map[string]int{}
	for id, record := range raw.jobs.Val() {
		records[id] = len(record)
	}
	return fmt.Sprintf("%d %v %v %d %v %v\n%s%v %v %q %q %v", p.Flight, p.Open, p.Next.IsZero(), p.Ready, p.Parts, p.Quarantine, jobs.String(),
		claim, count, raw.flight.Val(), raw.ready.Val(), records)
}
