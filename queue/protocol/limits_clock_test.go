package protocol_test

import (
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestLimitsWhenTheClockIsSetBack sets the clock back after limits have granted calls by a clock that was ahead. This
// keeps no id waiting until that time comes again.
func TestLimitsWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	r := newRig(t, &backend{url: server.URL()})
	rated := rules.Limit{Rate: rules.Rate{N: 20, Per: time.Second}, Burst: 20}
	grant, err := r.c.TakeRate(r.ctx, "q", rated, []int{20})
	r.noErr(err)
	eq(t, "all of a rest", grant.Batches, 1)
	g := r.grouper("n/1")
	eq(t, "all of a group's rest", g.ask(rated, GroupWant{Group: "a:", New: 30}, GroupWant{Group: "b:", Stop: time.Second})[0].New, 20)
	one, two := r.asker("n/2"), r.asker("n/3")
	eq(t, "the permit", one.ask(1, 1), 1)
	eq(t, "no permit is left", two.ask(1, 1), 0)
	clock.Set(-time.Hour)
	rate, ids, told, stopped, turn := false, 0, 0, false, false
	for end := time.Now().Add(patience); !rate || ids < 3 || !stopped || !turn; {
		if time.Now().After(end) {
			t.Fatalf("%s later: the rate lets one go: %v, ids of its group begin: %d, of one that a handler stopped: %v, the permit's turn ends: %v",
				patience, rate, ids, stopped, turn)
		}
		if grant, err = r.c.TakeRate(r.ctx, "q", rated, []int{1}); err != nil {
			t.Fatal(err)
		}
		rate = rate || grant.Batches == 1
		got := g.ask(rated, GroupWant{Group: "a:", Back: 30}, GroupWant{Group: "b:", Back: 1})
		ids, stopped = ids+got[0].Back, stopped || got[1].Back == 1
		if told++; told == 1 && got[0].BackIn > 5*time.Second {
			t.Fatalf("the first of ids that may not begin at 20/s is told to ask again in %s", got[0].BackIn)
		}
		one.busy = 0
		one.ask(1, 1)
		turn = turn || two.ask(1, 1) == 1
		<-time.After(10 * time.Millisecond)
	}
}
