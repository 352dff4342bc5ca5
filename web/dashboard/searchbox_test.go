package dashboard

import (
	"fmt"
	"html"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

func TestSearchOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]browse.Search{
		"":                              {},
		"  ":                            {},
		"acme":                          {Contains: "acme"},
		" two  words ":                  {Contains: "two words"},
		`"two  words"`:                  {Contains: "two  words"},
		"tag:vip":                       {Tag: "vip"},
		`acme tag:vip error:"no stock"`: {Contains: "acme", Tag: "vip", Error: "no stock"},
		`"tag:vip"`:                     {Contains: "tag:vip"},
		"acme:7":                        {Contains: "acme:7"},
		`{"n":1}`:                       {Contains: `{"n":1}`},
		`"{" a"b`:                       {Contains: `{ a"b`},
		`error:`:                        {},
		`a "`:                           {Contains: "a "},
		`a "b c`:                        {Contains: "a b c"},
		`tag:"very important"`:          {Tag: "very important"},
		`error:no error:stock`:          {Error: "no stock"},
		`tag:a tag:b`:                   {Tag: "a,b"}, // which the search refuses
		`Tag:vip id:7 http://x`:         {Contains: "Tag:vip id:7 http://x"},
	} {
		if got := searchOf(text); got != want {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
}

// The box finds jobs by what they say, keeps what is asked for, and says what is wrong beside itself.
func TestSearchBox(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	search := func(list, text string) *httptest.ResponseRecorder {
		return w.get("/queues/orders/" + list + "?by=&state=&q=" + url.QueryEscape(text))
	}
	expect(t, search("jobs", "a/b"), 200, `value="a/b"`, "looked through 100 %", ">a/b<")
	if body := search("jobs", "a/b").Body.String(); strings.Contains(body, ">r1<") {
		t.Errorf("got %s, want what was asked for", body)
	}
	expect(t, search("jobs", `error:"no stock"`), 200, ">f1<")
	expect(t, search("morgue", `error:stock`), 200, ">d1<", ">d3<")
	expect(t, search("jobs", "nowhere"), 200, "No job matches", "looked through 100 %")
	expect(t, search("jobs", strings.Repeat("x", browse.MaxSearch+1)), 200, "201 bytes, at most 200 are allowed", `role="alert"`)
	expect(t, search("jobs", `"><script>alert(1)`), 200, "1 job on this page", "&lt;script&gt;alert(1)")
	expect(t, w.get("/queues/orders/jobs?by=id&limit=25&q=n"), 200, "looked through")
	expect(t, search("jobs", "tag:a tag:b"), 200, "must be a single tag", `value="tag:a tag:b"`)
	expect(t, search("jobs", `error:"no stock" 7`), 200, `href="./queues/orders/morgue?q=error%3a%22no%20stock%22%207"`, `href="./queues/orders/rules"`)
	for _, text := range []string{"tag:a tag:b", strings.Repeat("x", browse.MaxSearch+1)} {
		if body := search("morgue", text).Body.String(); strings.Contains(body, "No job matches") {
			t.Errorf("%.20s: got %s, want nothing said of jobs, as none was looked at", text, body)
		}
	}
}

// What narrows a list leaves no button that means more than is shown: a form says state and kind of error, and nothing else.
func TestAllIsWhatIsShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	named := regexp.MustCompile(`name="do" value="([a-z-]*all[a-z-]*|[a-z]+-failed|[a-z]+-scheduled)"`)
	for list, want := range map[string]string{
		"jobs": "run-all kill-failed delete-failed", "jobs?by=id&limit=25&reverse=true": "run-all kill-failed delete-failed", "jobs?kind=no+stock+for+%23": "run-all kill-failed delete-failed",
		"jobs?state=scheduled": "run-scheduled", "jobs?state=retry": "run-failed", "jobs?state=failed": "run-failed kill-failed delete-failed", "jobs?state=ready": "", "jobs?state=held": "",
		"jobs?state=failed&by=id&from=f2": "", "jobs?to=2026-01-02": "", "jobs?q=f1": "", "morgue?by=retries&from=1": "", "morgue?q=tag:x": "",
		"morgue": "requeue-all delete-all-dead", "blocked": "unblock-all", "in-flight": "",
	} {
		body := w.get("/queues/orders/" + list).Body.String()
		var got []string
		for _, one := range named.FindAllStringSubmatch(body, -1) {
			got = append(got, one[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got buttons %q, want %q", list, got, want)
		}
	}
	// The API's parameters are none of a page: they filter nothing beside buttons that say all.
	for _, param := range []string{"contains", "tag", "error"} {
		expect(t, w.get("/queues/orders/morgue?"+param+"=nowhere"), 200, ">d1</a>", ">d3</a>", "Requeue all…")
	}
}

// A search of what waits leaves out what is in flight or blocked, in each order, and an order that is asked for is kept.
func TestSearchShowsWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for _, list := range []string{"jobs?q=b1", "jobs?by=id&q=b1", "jobs?by=due&reverse=true&q=b1"} {
		expect(t, w.get("/queues/orders/"+list), 200, "No job matches")
	}
	if body := w.get("/queues/orders/jobs?by=id").Body.String(); strings.Contains(body, ">b1</a>") || !strings.Contains(body, ">r1</a>") {
		t.Errorf("by id: got %s, want what waits", body)
	}
	expect(t, w.get("/queues/orders/blocked?q=b1"), 200, ">b1</a>")
	expect(t, w.get("/queues/orders/jobs?q=f"), 200, "in no order")
	body := w.get("/queues/orders/jobs?reverse=true&q=f").Body.String()
	if f1, f2 := strings.Index(body, ">f1</a>"), strings.Index(body, ">f2</a>"); f1 < 0 || f2 < 0 || f1 < f2 == (dueFirst(t, w, "f1", "f2") == "f1") || strings.Contains(body, "in no order") {
		t.Errorf("last first: got f1 at %d and f2 at %d, want them by due time, the last first", f1, f2)
	}
}

// dueFirst is the one of two ids that is due before the other.
func dueFirst(t *testing.T, w *world, one, other string) string {
	t.Helper()
	jobs, err := browse.Of(w.orders).Find(t.Context(), "", one, other)
	if err != nil || len(jobs) != 2 {
		t.Fatalf("got %d jobs, %v", len(jobs), err)
	}
	if jobs[0].PerformAt.Before(jobs[1].PerformAt) {
		return jobs[0].ID
	}
	return jobs[1].ID
}

// A search goes on from page to page, and stays what it is meanwhile.
func TestSearchGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for i := range 60 {
		w.push(job(fmt.Sprintf("page-%02d", i)))
	}
	link := regexp.MustCompile(`<a href="\.([^"]+)">Go on</a>`)
	ids := regexp.MustCompile(`>(page-\d\d)</a>`)
	for _, kept := range []string{"limit=25", "limit=25&state=ready", "by=id&limit=25&state=ready"} {
		seen, next := map[string]int{}, "/queues/orders/jobs?q=page-&"+kept
		for pages := 1; next != ""; pages++ {
			if pages > 10 {
				t.Fatalf("%s: got more than 10 pages", kept)
			}
			answer := w.get(next)
			body := answer.Body.String()
			expect(t, answer, 200, `value="page-"`, "<option selected>25", "looked through ")
			if pages > 1 {
				expect(t, answer, 200, " for this page", `<a href="./queues/orders/jobs?`)
			}
			if strings.Contains(kept, "state=ready") {
				expect(t, answer, 200, `<option value="ready" selected>`)
			}
			for _, id := range ids.FindAllStringSubmatch(body, -1) {
				seen[id[1]]++
			}
			next = ""
			if found := link.FindStringSubmatch(body); found != nil {
				next = html.UnescapeString(found[1])
				for _, one := range append(strings.Split(kept, "&"), "q=page-") {
					if !strings.Contains(next, one) {
						t.Errorf("%s: got link %s, want %s in it", kept, next, one)
					}
				}
			}
		}
		if len(seen) != 60 {
			t.Errorf("%s: got %d jobs, want 60", kept, len(seen))
		}
	}
}

func TestLooked(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]listBody{
		"looked through 40 %, 1,200 jobs":               {Through: .4, Examined: 1200, Next: "/"},
		"looked through 80 %, 1,200 jobs for this page": {Through: .8, Examined: 1200, First: "/", Next: "/"},
		"looked through 99 %, 1 job":                    {Through: .999, Examined: 1, Next: "/"},
		"looked through 100 %, 0 jobs":                  {Through: 1},
		"looked through 17 jobs":                        {Examined: 17},
	} {
		if got := b.Looked(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Payloads that a codec has encoded cannot be searched: that is said beside the box, and other searches go on.
func TestSearchBoxOfACodec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	same := func(data []byte) ([]byte, error) { return data, nil }
	must(t, w.client.SetRules("orders", protocol.PushRules{Codec: protocol.Codec{Name: "same", Encode: same, Decode: same}}))
	w.fillQueueOnly()
	w.push(lowkiq.Push{ID: "a", Header: map[string]string{"tag": "vip"}})
	expect(t, w.get("/queues/orders/jobs?q=acme"), 200, `role="alert"`, "stored in codec &#34;same&#34;", `value="acme"`, `aria-invalid="true"`)
	expect(t, w.get("/queues/orders/jobs?q=tag:vip"), 200, ">a</a>", "1 job on this page")
}
