package protocol_test

import (
	"context"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/events"
)

var eventTests = []testCase{{"Events", testEventsAreHeard}}

// testEventsAreHeard checks that nodes that publish find a listener, which gets their events and the list of changes.
func testEventsAreHeard(t *testing.T, b *backend) {
	r := newRig(t, b)
	eq(t, "nobody listens", len(interest(r)), 0)
	got := make(chan events.Event, 1000)
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range events.Listen(ctx, r.c.DB(), events.Filter{Queue: r.q.Name, ID: "a"}) {
			got <- e
		}
	}()
	defer func() { stop(); <-ended }()
	p := events.NewPublisher(events.Into(r.c.DB()))
	run, stopped := context.WithCancel(r.ctx)
	defer stopped()
	go p.Run(run) //nolint:errcheck // nil
	until(t, "the listener is known", func() bool { return len(interest(r)) == 1 })
	eq(t, "to what", interest(r), []string{r.q.Name})
	p.Want(interest(r)...)
	seen := map[events.Kind]bool{}
	until(t, "it hears a run and a change", func() bool {
		at := time.UnixMicro(1_700_000_000_000_000)
		for _, id := range []string{"b", "a"} {
			p.Runs("n/1", r.q.Name, 0, []journal.Run{{ID: id, Verdict: journal.Done, Ran: journal.Ran{Due: at, Popped: at}}})
			r.noErr(changes.In(r.c.DB()).Add(r.ctx, changes.Line{Action: "requeue", Queue: r.q.Name, IDs: []string{id}}))
		}
		for len(got) > 0 {
			e := <-got
			seen[e.Kind] = true
			if e.Run != nil && e.Run.ID != "a" || e.Change != nil && e.Change.IDs[0] != "a" {
				t.Fatalf("heard %+v, want what is about a", e)
			}
		}
		return seen[events.Ran] && seen[events.Changed]
	})
}

func interest(r *rig) []string {
	wanted, err := events.Interest(r.ctx, r.c.DB(), []string{"mails", r.q.Name})
	r.noErr(err)
	return wanted
}
