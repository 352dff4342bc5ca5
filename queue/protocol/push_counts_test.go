package protocol_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/daycounts"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/days"
	. "github.com/lowkiq/lowkiq/queue/protocol"
)

// TestPushesAreCountedByDay checks that the figures of the day have all payloads that pushes have stored or merged,
// once the client is closed. The pushes are in bulk, in part, single and deliveries. Refused payloads are not counted,
// and a delivery counts once.
func TestPushesAreCountedByDay(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	r := newRig(t, b)
	pushedOf := func(queue string) (n uint64) {
		t.Helper()
		found, err := days.Read(t.Context(), r.c, days.Days, 2, queue)
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range found { // two if it is midnight
			n += day.Figures.Pushed
			if day.Unreadable > 0 {
				t.Errorf("%s has %d counts that cannot be read", day.Period, day.Unreadable)
			}
		}
		return n
	}
	c := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
	q, err := c.Queue(t.Context(), r.q.Name)
	if err != nil {
		t.Fatal(err)
	}
	var many []lowkiq.Push
	for i := range 2500 {
		many = append(many, job(fmt.Sprint("many", i), "x"))
	}
	accepted, began := uint64(0), time.Now()
	push := func(jobs ...lowkiq.Push) {
		t.Helper()
		results, _ := q.Push(t.Context(), jobs...)
		for _, result := range results {
			if result.Err == nil {
				accepted++
			}
		}
	}
	push(many...)
	push(many[:100]...) // merged
	push(job("", "no id"), job("good", "y"))
	for range 3 {
		q.Deliver(context.Background(), Delivery{Source: "test", Number: 7}, job("delivered", "z")) //nolint:errcheck // the second is refused
	}
	accepted++
	if want := uint64(2500 + 100 + 1 + 1); accepted != want {
		t.Fatalf("%d payloads were accepted, want %d", accepted, want)
	}
	if got := pushedOf(r.q.Name); got != 0 && time.Since(began) < daycounts.Every {
		t.Errorf("before ten seconds are over %d are written", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := pushedOf(r.q.Name); got != accepted {
		t.Errorf("the day has %d pushed, want %d", got, accepted)
	}
	t.Run("by who may only push", func(t *testing.T) {
		c := (&backend{url: setUser(t, server, "producer", aclRule(t, "producer")...)}).open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
		if _, err := c.Push(t.Context(), r.q.Name, job("a", "1"), job("b", "2")); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if got := pushedOf(r.q.Name); got != accepted+2 {
			t.Errorf("the day has %d pushed, want %d", got, accepted+2)
		}
	})
}
