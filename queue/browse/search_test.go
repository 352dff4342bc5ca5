package browse

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A search without any time left still searches something, within an id if it must. Its pages
// together are the list in its order. So the duration of a page does not grow with the list.
func TestSearchGoesOnInOrder(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	jobs := jobsOn(t, 3)
	now, err := jobs.db.Time(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("x"), 1<<16)
	var want []string
	push := func(id, said string, at time.Time) {
		t.Helper()
		jobsOf := []lowkiq.Push{{ID: id, Payload: []byte(said), PerformAt: at}}
		for i := range 3 { // of a few ids they are more than one script looks through
			jobsOf = append(jobsOf, lowkiq.Push{ID: id, Payload: fmt.Appendf(nil, "%d%s", i, large)})
		}
		if id == "i03" { // most of it is in the spill
			for i := range 3000 {
				jobsOf = append(jobsOf, lowkiq.Push{ID: id, Payload: fmt.Appendf(nil, "%d %s", i, large[:300])})
			}
		}
		pushAll(t, jobs, jobsOf...)
	}
	for i := range 16 {
		id, said := fmt.Sprintf("i%02d", i), "hay"
		if i%3 == 0 {
			said = "a needle"
			want = append(want, id)
		}
		push(id, said, now.Add(time.Hour+time.Duration(i)*time.Minute))
	}
	jobs.patience, jobs.db.Slow = 0, nil // no rests, either
	for _, query := range []Query{
		{State: StateScheduled, By: ByID},
		{State: StateScheduled},
		{By: ByDue},
		{By: ByDue, Range: Range{Reverse: true}},
		{State: StateScheduled, By: ByID, Range: Range{Reverse: true}},
	} {
		want := slices.Clone(want)
		if query.Reverse {
			slices.Reverse(want)
		}
		for _, limit := range []int{1, 100} {
			query.Contains, query.Limit, query.Cursor = "needle", limit, ""
			var got []string
			pages, examined := 0, 0
			for next := true; next; next = query.Cursor != "" {
				page, err := jobs.Page(t.Context(), query)
				if err != nil {
					t.Fatal(err)
				}
				if pages++; page.Examined > minSearchIDs || len(page.Jobs) > limit || pages > 1000 {
					t.Fatalf("%+v: page %d has %d jobs of %d that were looked at, want a few", query, pages, len(page.Jobs), page.Examined)
				}
				for _, job := range page.Jobs {
					got = append(got, job.ID)
				}
				examined += page.Examined
				query.Cursor = page.Next
			}
			if !slices.Equal(got, want) || examined != 16 || pages < 5 {
				t.Errorf("%+v: got %q of %d jobs on %d pages, want %q of 16 on five at least", query, got, examined, pages, want)
			}
		}
	}
}

// A search for waiting jobs leaves out other jobs in every order.
func TestSearchOfWhatWaits(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	jobs := jobsOn(t, 1)
	jobs.patience = time.Minute // a page ends after a second, full or not
	for _, id := range []string{"flies", "waits"} {
		if _, err := jobs.q.Push(t.Context(), lowkiq.Push{ID: id, Payload: []byte("needle")}); err != nil {
			t.Fatal(err)
		}
		if id == "flies" {
			claim, err := jobs.shards[0].Claim(t.Context(), "n/1", protocol.Fresh, protocol.Owner{})
			if err == nil {
				_, err = claim.Pop(t.Context(), protocol.PopRequest{IDs: 1, Bytes: 1})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, query := range []Query{{Waiting: true}, {Waiting: true, By: ByID}, {Waiting: true, By: ByDue}, {By: ByDue}} {
		query.Contains = "needle"
		if page, err := jobs.Page(t.Context(), query); err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != "waits" {
			t.Errorf("%+v: got %+v, %v; want what waits", query, page.Jobs, err)
		}
	}
	if page, err := jobs.Page(t.Context(), Query{Waiting: true, By: ByID}); err != nil || len(page.Jobs) != 1 {
		t.Errorf("by id: got %+v, %v; want what waits", page.Jobs, err)
	}
	if page, err := jobs.Page(t.Context(), Query{Search: Search{Contains: "needle"}}); err != nil || len(page.Jobs) != 2 {
		t.Errorf("all: got %+v, %v; want both", page.Jobs, err)
	}
}
