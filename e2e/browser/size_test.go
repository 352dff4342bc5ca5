//go:build linux

package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// The size at which pages must still be quick.
const (
	manyQueues = 1000
	manyShards = 50
	manyJobs   = 1_000_000
)

// quick is what a page may take even on a busy machine.
const quick = 20 * time.Second

// bigPages are those that a size may harm.
var bigPages = []page{
	{name: "overview", path: "/", want: "queue-0000"},
	{name: "overview-sorted", path: "/?sort=lag", want: "million"},
	{name: "overview-filtered", path: "/?q=queue-009", want: "queue-0090"},
	{name: "queue", path: "/queues/queue-0050", want: "queue-0050"},
	{name: "queue-million", path: "/queues/million", want: "million"},
	{name: "jobs-by-time", path: "/queues/million/jobs", want: "job-"},
	{name: "jobs-by-id", path: query("/queues/million/jobs", "by", "id"), want: "job-"},
	{name: "jobs-by-id-from", path: query("/queues/million/jobs", "by", "id", "from", "job-0050000"), want: "job-"},
	{name: "jobs-last-first", path: query("/queues/million/jobs", "by", "due", "reverse", "true"), want: "job-"},
	{name: "in-flight", path: "/queues/million/in-flight", want: "million"},
	{name: "morgue", path: "/queues/million/morgue", want: "million"},
	{name: "errors", path: "/queues/million/errors", want: "million"},
	{name: "job", path: query("/queues/million/job", "id", "job-0050000"), want: "job-0050000"},
	{name: "shards", path: "/shards", want: "queue-0000"},
	{name: "nodes", path: "/nodes", want: "n1"},
	{name: "plan", path: query("/plan", "add", "n2"), want: "n2"},
	{name: "redis", path: "/redis", want: "noeviction"},
}

// newBigWorld is a cluster of one node that handles none of many queues and jobs: a part of
// that size.
func newBigWorld(t testing.TB, part int) *world {
	t.Helper()
	w := newWorld(t, "n1")
	ctx := context.Background()
	for i := range manyQueues / part {
		if _, err := w.client.Register(ctx, lowkiq.Queue{Name: fmt.Sprintf("queue-%04d", i), Shards: manyShards}); err != nil {
			t.Fatal(err)
		}
	}
	q, err := w.client.Register(ctx, lowkiq.Queue{Name: "million", Shards: manyShards})
	if err != nil {
		t.Fatal(err)
	}
	for from := 0; from < manyJobs/part; from += 50_000 {
		part := make([]lowkiq.Push, 50_000)
		for i := range part {
			part[i] = lowkiq.Push{ID: fmt.Sprintf("job-%07d", from+i), Payload: []byte("payload")}
		}
		if _, err := q.Push(ctx, part...); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// unread is what pages say whose figures are not complete.
const unread = "still being read"

// get reads a page and says how long that took.
func get(t testing.TB, at string) (body string, took time.Duration) {
	t.Helper()
	began := time.Now()
	answer, err := client.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: got %d, %v: %.200s", at, answer.StatusCode, err, text)
	}
	return string(text), time.Since(began)
}

// TestPagesOfManyQueues checks that pages are complete at a tenth of that size. The benchmark measures their speed at
// the full size.
func TestPagesOfManyQueues(t *testing.T) {
	t.Parallel()
	w := newBigWorld(t, 10)
	url := w.url("n1")
	began := time.Now()
	await(t, "all figures are read", 3*patience, func() bool {
		first, _ := get(t, url+"/")
		byLag, _ := get(t, url+"/?sort=lag")
		return strings.Contains(first, "queue-0000") && strings.Contains(byLag, "million") && !strings.Contains(first+byLag, unread)
	})
	t.Logf("all figures were read after %s", time.Since(began).Round(time.Second))
	goesOn(t, url)
	for _, p := range bigPages {
		body, took := get(t, url+p.path)
		if !strings.Contains(body, p.want) || !strings.Contains(body, "</html>") || strings.Contains(body, unread) {
			t.Errorf("%s: got %d bytes without %q, or without an end, or unread figures", p.path, len(body), p.want)
		}
		if took > quick {
			t.Errorf("%s: took %s", p.path, took)
		}
	}
	b := newTab(t, chromium(t), looks[1])
	for _, p := range bigPages {
		p.name = "big-" + p.name
		b.check(url, p)
	}
}

// goesOn: a search that finds nothing goes through all jobs by itself, and leaves one page in the tab's history.
func goesOn(t *testing.T, url string) {
	t.Helper()
	b := newTab(t, chromium(t), looks[0])
	b.open(url + "/redis")
	before := eval[int](b, "history.length")
	b.open(url + query("/queues/million/jobs", "q", "nowhere-to-be-found"))
	await(t, "the end of the search", 4*patience, func() bool {
		return eval[bool](b, `document.querySelector("[role=status]").innerText.includes("looked through 100 %")`)
	})
	if last := eval[string](b, `document.querySelector("[role=status]").innerText`); !strings.Contains(last, "for this page") || strings.Contains(last, "Stop") { // only pages after the first one say so
		t.Errorf("got %q, want the last one of several pages", last)
	}
	if pages := eval[int](b, "history.length") - before; pages != 1 {
		t.Errorf("got %d pages in the history, want one", pages)
	}
}

// BenchmarkPages measures how long a node takes for a page: the median and the slowest.
// The goal is 300 ms. Figures are refreshed in the background meanwhile.
func BenchmarkPages(b *testing.B) {
	w := newBigWorld(b, 1)
	url := w.url("n1")
	for _, p := range bigPages {
		b.Run(p.name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				_, took := get(b, url+p.path)
				times = append(times, took)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms/page")
			b.ReportMetric(float64(times[len(times)-1].Microseconds())/1000, "max-ms/page")
			b.ReportMetric(0, "ns/op")
		})
	}
}
