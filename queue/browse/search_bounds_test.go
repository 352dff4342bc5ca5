package browse

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// pushAll pushes jobs that the queue must accept.
func pushAll(t *testing.T, j *Jobs, jobs ...lowkiq.Push) {
	t.Helper()
	results, err := j.q.Push(t.Context(), jobs...)
	for _, r := range results {
		if err == nil {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pushLater pushes jobs that are due in an hour.
func pushLater(t *testing.T, j *Jobs, jobs ...lowkiq.Push) {
	t.Helper()
	for i := range jobs {
		jobs[i].PerformAt = time.Now().Add(time.Hour)
	}
	pushAll(t, j, jobs...)
}

// TestSearchOfAFarRedis checks a Redis that answers so slowly that the rest after reading a list is
// longer than a page. Each page of a search still searches some jobs, and the pages find all jobs.
func TestSearchOfAFarRedis(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	c, err := protocol.Open(protocol.Config{Redis: proxy.URL(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	far := Of(q)
	var jobs []lowkiq.Push
	for i := range 500 {
		jobs = append(jobs, lowkiq.Push{ID: fmt.Sprintf("i%03d", i), Payload: fmt.Appendf(nil, "n%dn", i%250)})
	}
	pushLater(t, far, jobs...)
	proxy.Delay(40 * time.Millisecond)
	for _, by := range []Order{ByID, ByDue} {
		query := Query{State: StateScheduled, By: by, Search: Search{Contains: "n7n"}}
		var found []string
		for pages := 0; ; pages++ {
			page, err := far.Page(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			if page.Examined == 0 || pages > 20 {
				t.Fatalf("by %s: page %d looked at %d jobs", by, pages, page.Examined)
			}
			for _, job := range page.Jobs {
				found = append(found, job.ID)
			}
			if query.Cursor = page.Next; query.Cursor == "" {
				break
			}
		}
		if slices.Sort(found); !slices.Equal(found, []string{"i007", "i257"}) {
			t.Errorf("by %s: found %q", by, found)
		}
	}
}

// TestTagsOfOneIDAreBounded checks that an id with very many tags is counted on several pages of
// some ten thousand tags, each payload once.
func TestTagsOfOneIDAreBounded(t *testing.T) {
	t.Parallel()
	jobs := jobsOn(t, 1)
	jobs.db.Slow = nil
	const payloads, each = 300, 500
	var crowd []lowkiq.Push
	for i := range payloads {
		tags := []string{"vip"}
		for k := range each {
			tags = append(tags, fmt.Sprintf("%x", i*each+k))
		}
		crowd = append(crowd, lowkiq.Push{ID: "crowd", Payload: fmt.Append(nil, i), Header: map[string]string{"tag": strings.Join(tags, ",")}})
	}
	for some := range slices.Chunk(crowd, 50) {
		pushLater(t, jobs, some...)
	}
	sums, pages := map[string]int{}, 0
	for cursor := ""; ; pages++ {
		page, err := jobs.Tags(t.Context(), "", cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Counts) > 45_000 {
			t.Fatalf("a page has %d tags", len(page.Counts))
		}
		for _, c := range page.Counts {
			sums[c.Tag] += c.Payloads
			if c.Jobs != 1 {
				t.Fatalf("tag %q: got %d jobs on a page", c.Tag, c.Jobs)
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if len(sums) != payloads*each+1 || sums["vip"] != payloads || sums["0"] != 1 || pages < 3 {
		t.Errorf("got %d tags, %d payloads of vip on %d pages", len(sums), sums["vip"], pages)
	}
}
