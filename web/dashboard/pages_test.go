package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web/auth"
)

func TestPagesOfAFilledCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for _, c := range []struct {
		name, target string
		status       int
		want         []string
	}{
		{"overview", "/", 200, []string{"shop", "leader <b>n1</b>", "generation 42", `href="./queues/orders/morgue" class="bad">3</a>`, "1 draining", "1 gone", `data-live="./events?of=%2F"`}},
		{"filter", "/?q=MAI", 200, []string{">mail</a>", `value="MAI"`}},
		{"filter nothing", "/?q=%3Cb%3E", 200, []string{"No queue has “&lt;b&gt;” in its name"}},
		{"sort", "/?sort=lag", 200, []string{`aria-current="true">lag`}},
		{"sort unknown", "/?sort=colour", 400, []string{"not sorted by"}},
		{"queue", "/queues/orders", 200, []string{"<h1>orders</h1>", "<table class=\"wide stack shards\">\n<caption class=\"hidden\">Shards", `data-name="in flight"`, "Pause…", "Run all now…", "Kill all failed…", "Delete all failed…", "n1/01J.1"}},
		{"queue nobody handles", "/queues/mail", 200, []string{"no live node handles it", "queues delete mail"}},
		{"overview of queues nobody handles", "/?q=mail", 200, []string{`>mail</a> <span class="tag warn">unhandled</span>`}},
		{"queue of many shards", "/queues/mail", 200, []string{">draining</span>", ">claiming</span>", ">unowned</span>", "nobody"}},
		{"queue unknown", "/queues/nowhere", 404, []string{"There is no queue"}},
		{"queue impossible", "/queues/%7B%7D/jobs", 404, []string{"no such queue"}},
		{"jobs", "/queues/orders/jobs", 200, []string{">r1</a>", ">f1</a>", "no stock for 17 … second &lt;line&gt;", "AAEC"}},
		{"jobs of a state", "/queues/orders/jobs?state=scheduled", 200, []string{">s1</a>", "selected>scheduled"}},
		{"jobs by id", "/queues/orders/jobs?by=id&from=r1&to=r1", 200, []string{">r1</a>"}},
		{"jobs by retries", "/queues/orders/jobs?state=retry&by=retries&from=2&reverse=true", 200, []string{">f1</a>", "checked"}},
		{"jobs by due", "/queues/orders/jobs?from=2099-01-01&to=2101-01-01+00:00", 200, []string{">s1</a>"}},
		{"jobs of an empty range", "/queues/orders/jobs?by=id&from=zz&to=zzz", 200, []string{"No job is in this range"}},
		{"jobs page", "/queues/orders/jobs?limit=25", 200, []string{"<option selected>25"}},
		{"jobs bad time", "/queues/orders/jobs?from=tomorrow", 400, []string{"or a time like"}},
		{"jobs bad retries", "/queues/orders/jobs?state=retry&by=retries&to=many", 400, []string{"must be a number of failures"}},
		{"jobs bad order", "/queues/orders/jobs?by=colour", 400, []string{`by: got`}},
		{"jobs bad state", "/queues/orders/jobs?state=morgue", 400, []string{`state: got`}},
		{"jobs impossible", "/queues/orders/jobs?state=ready&by=retries", 400, []string{"retries sorts failed jobs"}},
		{"jobs bad cursor", "/queues/orders/jobs?cursor=x", 400, []string{"the cursor is damaged: it must be the next cursor of a page"}},
		{"in flight", "/queues/orders/in-flight", 200, []string{"<body data-again>", ">w1</a>", ">for ", `>Node</th>`, `<td class="id">n1</td>`, `<progress max="1" value="0.4" aria-label="Progress"></progress> 40 % <span class="soft">page &lt;12&gt;</span>`}},
		{"blocked", "/queues/orders/blocked", 200, []string{">b1</a>", "Skip oldest…", "Bury…", "stuck"}},
		{"morgue", "/queues/orders/morgue", 200, []string{">d1</a>", "Requeue all…", "Delete all…", "no &lt;b&gt;stock"}},
		{"morgue by id", "/queues/orders/morgue?by=id&reverse=true", 200, []string{">d2</a>"}},
		{"morgue of a kind", "/queues/orders/morgue?kind=" + url.QueryEscape("no <b>stock</b> for #"), 200, []string{">d1</a>", "Errors like"}},
		{"morgue without an error", "/queues/orders/morgue?kind=%20", 200, []string{">d2</a>", "without an error"}},
		{"errors", "/queues/orders/errors", 200, []string{"no &lt;b&gt;stock&lt;/b&gt; for #", "Requeue this group…", "Run this group now…", "no error: buried by hand</a>", `name="kind" value=" "`}},
		{"job", "/queues/orders/job?id=f1", 200, []string{"the reason of f1", "no stock for 17", "&#34;n&#34;: 1", "Run now…", "failed", "<dd>4</dd>", `data-name="attempt">4</td>`}},
		{"job that failed once", "/queues/orders/job?id=f2", 200, []string{"<dt>Failures in a row</dt><dd>1</dd>", `>Attempt</th>`, `data-name="attempt">1</td>`}},
		{"job that never failed", "/queues/orders/job?id=r1", 200, []string{"<dt>Failures in a row</dt><dd>none</dd>"}},
		{"jobs that failed", "/queues/orders/jobs?state=retry&by=id&from=f2&to=f2", 200, []string{`data-name="failures">1</td>`}},
		{"job blocked", "/queues/orders/job?id=b1", 200, []string{"Requeue…", "Skip oldest…", "Bury…"}},
		{"job dead", "/queues/orders/job?id=d2", 200, []string{"Requeue…", "Delete…"}},
		{"job in flight", "/queues/orders/job?id=w1", 200, []string{"Flight", "<dt>Progress</dt>", "40 %", "page &lt;12&gt;", ">State <span", "&#34;page&#34;: &#34;&lt;b&gt;&#34;"}},
		{"job long", "/queues/orders/job?id=long", 200, []string{"the beginning", "39.1 KiB"}},
		{"job of bytes", "/queues/orders/job?key=" + keyOf("\xff\n"), 200, []string{`&#34;\xff\n&#34;`, "AAEC/w==", "base64"}},
		{"job absent", "/queues/orders/job?id=nobody", 404, []string{"the reason of nobody"}},
		{"job unnamed", "/queues/orders/job", 400, []string{"No id is named"}},
		{"job of a bad key", "/queues/orders/job?key=*", 400, []string{"names no id"}},
		{"runs", "/queues/orders/runs", 200, []string{">f1</a>", `<span class="tag bad">exhausted</span>`, "<option>failed</option>"}},
		{"runs of a verdict", "/queues/orders/runs?verdict=failed&contains=price", 200, []string{">f2</a>", "<option selected>failed</option>", `value="price"`}},
		{"runs of none", "/queues/orders/runs?contains=nonsense", 200, []string{"The journal has no such run"}},
		{"runs of a bad verdict", "/queues/orders/runs?verdict=%3Cb%3E", 400, []string{"&lt;b&gt;"}},
		{"rules", "/queues/orders/rules", 200, []string{`<th scope="row">batch_size</th><td class="break"><code>3</code></td>`, `href="./queues/orders/rules?key=batch_size#set"`, "node.yaml:5:17", "fixed: the count says", `name="revision" value="0"`, "Change a rule"}},
		{"rules to be changed", "/queues/orders/rules?key=batch_size", 200, []string{"<option selected>batch_size</option>", `name="value" value="3" required autofocus`}},
		{"rules elsewhere", "/queues/mail/rules", 200, []string{"This node does not handle the queue"}},
		{"days", "/queues/orders/days", 200, []string{"No process counted anything"}},
		{"events", "/watch", 200, []string{"Events while this page is open"}},
		{"changes", "/changes", 200, []string{"None."}},
		{"changes of a queue", "/changes?queue=orders&user=ann", 200, []string{"None of these.", `value="ann"`}},
		{"job that can be tracked", "/queues/orders/job?id=f1", 200, []string{"<button>Track</button>"}},
		{"shards", "/shards", 200, []string{">A</span> n1", "n1 1, n2 1, 1 moving, 3 without an owner", `class="cell claiming" title="mail/2: to be claimed by n1"`}},
		{"nodes", "/nodes", 200, []string{"n1/01J.1", "Drain…", "Undo drain…", ">dead</span>", `<a href="http://127.0.0.1:7948">`, "<b>leader</b>", `data-name="version">0.2.0</td>`, `data-name="CPU">1.50</td><td class="num" data-name="memory">300.0 MiB</td><td class="num warn" data-name="slots busy">8 of 8</td>`,
			`<time datetime="2025-11-20T00:53:20.5Z"`, "behind: generation 40", `<span class="soft">static, 0 of 3</span>`, `> <span class="instance id">n5/01N.1</span>`, "another &lt;host&gt; cannot be reached."}},
		{"recurring", "/recurring", 200, []string{"<body data-again>", `<a href="./recurring/report">report</a>`, "at 06:00, Monday to Friday, Europe/Berlin", "every 24h <span class=\"soft\">+ up to 1m</span>", "none yet", "Run now…", "Pause…", "Remove…", `<h2 id="add">Add</h2>`}},
		{"recurring one of a file", "/recurring/report", 200, []string{"<h1>report</h1>", "<dt>Cron</dt><dd class=\"id\">0 6 * * 1-5</dd>", "<dt>From</dt><dd>file</dd>", "&lt;/pre&gt;&lt;b&gt;{tick}", "The next times", `<h2 id="edit">Change it</h2>`, `value="Europe/Berlin"`}},
		{"recurring one of run time", "/recurring/sync", 200, []string{"every 24h, up to 1m later", "Remove…", "tag: vip", "<dt>From</dt><dd>run time</dd>"}},
		{"recurring unknown", "/recurring/nobody", 404, []string{"there is no recurring entry with this name"}},
		{"workflow unknown", "/workflow?id=nobody", 404, []string{"Nothing is here", "There is no workflow nobody. A workflow is kept for a week after its end."}},
		{"workflow unnamed", "/workflow", 400, []string{"No id is named"}},
		{"workflow impossible", "/workflow?id=a+%3Cb%3E", 400, []string{"&lt;b&gt;", "must be printable UTF-8 without spaces"}},
		{"workflows bad cursor", "/workflows?cursor=%3Cb%3E", 400, []string{"must be the cursor of a page before"}},
		{"plan unasked", "/plan", 200, []string{"moves nothing", "Live are n1"}},
		{"plan", "/plan?add=n6,n7", 200, []string{"2 shards would move", "owner above its share"}},
		{"plan of nothing", "/plan?add=&remove=", 200, []string{"Nothing would move"}},
		{"plan unknown", "/plan?remove=n5", 400, []string{"unknown node &#34;n5&#34;"}},
		{"plan bad name", "/plan?add=%3Cb%3E", 400, []string{"&lt;b&gt;"}},
		{"redis", "/redis", 200, []string{"Version", "noeviction", "standalone", "Commands per second"}},
		{"nowhere", "/no/such/page", 404, []string{"Nothing is at /no/such/page"}},
		{"search of nothing", "/search?queue=&id=", 400, []string{"Nothing is asked for"}},
		{"search of nobody", "/search?q=nobody", 200, []string{"Nothing matches", "The names of 2 queues: none matches.", "Jobs with this id in 2 queues.", "For the text nobody: ", "2 of 2 queues to the end", `value="nobody"`}},
		{"search by an address of before", "/search?id=nobody", 200, []string{"Nothing matches"}},
		{"search of a part of a name", "/search?q=RDER", 200, []string{`Queues: <a href="./queues/orders">orders</a>`, "1 matches."}},
		{"search of text", "/search?q=stock", 200, []string{"Nothing matches"}},
		{"search of an error", "/search?q=" + url.QueryEscape(`error:"no stock for 17"`), 200, []string{">f1</a>", "<td>the error</td>", "no stock for 17 … second &lt;line&gt;"}},
		{"search of the morgue", "/search?q=" + url.QueryEscape("error:stock"), 200, []string{">d1</a>", ">d3</a>"}},
		{"search of a beginning", "/search?q=f*", 200, []string{">f1</a>", ">f2</a>", "For ids that begin with f: ", "<td>the beginning of the id</td>"}},
		{"search of a part of an id", "/search?q=" + url.QueryEscape("/b"), 200, []string{">a/b</a>", "<td>a part of the id</td>"}},
		{"search of a payload", "/search?q=onerror", 200, []string{"<td>a payload</td>", "&lt;/pre&gt;&lt;img"}},
		{"search of a tag", "/search?q=tag:vip", 200, []string{"Nothing matches", "For payloads with tag:vip: "}},
		{"search of what is not possible", "/search?q=" + url.QueryEscape("tag:a tag:b"), 200, []string{"not searched, ", "must be a single tag"}},
		{"search of markup", "/search?q=" + url.QueryEscape("<script>alert(1)"), 200, []string{"&lt;script&gt;alert(1)", "a part of the id"}},
		{"one vocabulary", "/", 200, []string{"<dt>Ready</dt>", "<dt>Scheduled</dt>", "<dt>Retry</dt>", "<dt>In flight</dt>", "<dt>Blocked</dt>", "<dt>Morgue</dt>"}},
		{"result", "/result?done=delete&queue=orders&changed=3&skipped=1&back=//example.com", 200, []string{"<h1>Done</h1>", "3 jobs deleted, of queue <b>orders</b>", "1 job was not changed", `href="./"`}},
		{"result unknown", "/result?done=x", 404, []string{"is no action of these pages"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, w.get(c.target), c.status, c.want...)
		})
	}
}

func TestPagesOfAnEmptyCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settle()
	expect(t, w.get("/"), 200, "No queue is registered yet")
	expect(t, w.get("/shards"), 200, "No queue is registered yet")
	expect(t, w.get("/recurring"), 200, "Nothing recurs yet")
	expect(t, w.get("/workflows"), 200, "No node has handled the start of a workflow yet")
}

func TestPagesOfAnEmptyQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fillQueueOnly()
	w.settle("orders")
	for target, want := range map[string]string{
		"/":                          "orders",
		"/queues/orders":             "orders",
		"/queues/orders/jobs":        "No job waits here",
		"/queues/orders/in-flight":   "No handler has a job",
		"/queues/orders/blocked":     "No id is blocked",
		"/queues/orders/morgue":      "The morgue is empty",
		"/queues/orders/errors":      "The journal has none",
		"/queues/orders/job?id=f1":   "The journal has no such run",
		"/shards":                    "orders",
		"/queues/orders/jobs?by=due": "No job waits here",
	} {
		answer := w.get(target)
		status := http.StatusOK
		if strings.Contains(target, "job?") {
			status = http.StatusNotFound
		}
		t.Run(target, func(t *testing.T) { expect(t, answer, status, want) })
	}
}

// A page shows what was put into it as text, wherever it comes from.
func TestHostileText(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	_, err := browse.Of(w.orders).Bury(t.Context(), "", "r2")
	must(t, err)
	for _, target := range []string{
		"/queues/orders/jobs", jobLink("orders", hostile), "/queues/orders/jobs?kind=" + url.QueryEscape(hostile),
		"/queues/orders/jobs?by=id&from=" + url.QueryEscape(hostile), "/?q=" + url.QueryEscape(hostile), "/plan?add=" + url.QueryEscape(hostile),
		"/queues/orders/jobs?cursor=" + url.QueryEscape(hostile), "/" + url.PathEscape(hostile),
	} {
		answer := w.get(target)
		for _, evil := range []string{"<script>alert", "<img src=x"} {
			if strings.Contains(answer.Body.String(), evil) {
				t.Errorf("%s: got %s unescaped", target, evil)
			}
		}
		for _, objection := range objections(answer.Body.String()) {
			t.Errorf("%s: %s", target, objection)
		}
	}
}

func TestPagesGoThroughAList(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for i := range 60 {
		w.push(job("page-" + string(rune('a'+i%26)) + string(rune('a'+i/26))))
	}
	seen, next := map[string]bool{}, "/queues/orders/jobs?by=id&limit=25&from=page-&to=page-zz"
	for pages := 1; next != ""; pages++ {
		if pages > 5 {
			t.Fatal("got more than 5 pages")
		}
		body := w.get(next).Body.String()
		for _, row := range strings.Split(body, `<th scope="row" class="id">`)[1:] {
			_, rest, _ := strings.Cut(row, ">")
			id, _, _ := strings.Cut(rest, "<")
			if seen[id] {
				t.Errorf("got %s twice", id)
			}
			seen[id] = true
		}
		next = ""
		if _, rest, ok := strings.Cut(body, `>⇤ First page</`); ok {
			if _, rest, ok = strings.Cut(rest, `<a href=".`); ok && strings.Contains(rest, `rel="next"`) {
				next, _, _ = strings.Cut(rest, `"`)
				next = strings.ReplaceAll(next, "&amp;", "&")
			}
		}
	}
	if len(seen) != 60 {
		t.Errorf("got %d jobs, want 60", len(seen))
	}
}

func TestLogOutIsForSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	node := w.node(auth.Tokens{Read: []string{readToken}})
	for _, c := range []struct {
		name string
		r    *http.Request
		want bool
	}{{"token", by("/plan", readToken), false}, {"session", withSession(by("/plan", ""), logIn(t, node)), true}} {
		answer := httptest.NewRecorder()
		node.ServeHTTP(answer, c.r.WithContext(t.Context()))
		expect(t, answer, 200)
		if got := strings.Contains(answer.Body.String(), `action="./logout" method="post"`); got != c.want {
			t.Errorf("%s: got a button to log out: %t, want %t", c.name, got, c.want)
		}
	}
}

// A browser keeps a file for as long as pages name it so, and under no other name: a node of
// another version would have it keep the wrong one.
func TestStaticFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, want := range map[string]string{"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg"} {
		for version, keep := range map[string]string{assetsVersion(): "public, max-age=31536000, immutable", "": "no-cache", "0123456789ab": "no-cache"} {
			answer := w.get("/static/" + name + "?v=" + version)
			if got := answer.Header().Get("Content-Type"); answer.Code != 200 || !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %d %s, want 200 %s", name, answer.Code, got, want)
			}
			if got := answer.Header().Get("Cache-Control"); got != keep {
				t.Errorf("%s as of version %q: got Cache-Control %q, want %q", name, version, got, keep)
			}
		}
		if !strings.Contains(w.get("/plan").Body.String(), "/static/"+name+"?v="+assetsVersion()) {
			t.Errorf("the page does not name the version of %s", name)
		}
	}
	expect(t, w.get("/static/none.css"), 404, "Nothing is at")
}

// Whatever is asked for in whatever way, a person gets a page.
func TestWrongMethods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ method, target, allow string }{
		{http.MethodPost, "/nodes", "GET, HEAD"}, {http.MethodPost, "/no/such/page", "GET, HEAD"}, {http.MethodDelete, "/queues/orders", "GET, HEAD"},
		{http.MethodPut, "/events", "GET, HEAD"}, {http.MethodGet, "/confirm", "POST"}, {http.MethodPut, "/do", "POST"}, {http.MethodGet, "/do", "POST"},
	} {
		answer := w.do(httptest.NewRequest(c.method, c.target+"?do=delete-all-dead&queue=orders", nil))
		expect(t, answer, 405, c.method+" is not possible at "+c.target)
		if got := answer.Header().Get("Allow"); got != c.allow {
			t.Errorf("%s %s: got Allow %q, want %q", c.method, c.target, got, c.allow)
		}
	}
	answer := w.do(httptest.NewRequest(http.MethodHead, "/plan", nil))
	if answer.Code != http.StatusOK {
		t.Errorf("HEAD: got %d, want 200", answer.Code)
	}
}

// An id is found with and without its queue; one that several have is a choice. A queue is found by its name, or a part of it.
func TestSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	for asked, want := range map[string]string{"queue=orders&id=a+b%2Fc": "/queues/orders/job?id=a+b%2Fc", "id=f1": jobLink("orders", "f1"), "queue=orders&id=": "/queues/orders", "q=orders": "/queues/orders", "q=+f1+": jobLink("orders", "f1")} {
		answer := w.get("/search?" + asked)
		if got := answer.Header().Get("Location"); answer.Code != http.StatusSeeOther || got != want {
			t.Errorf("%s: got %d to %q, want 303 to %q", asked, answer.Code, got, want)
		}
	}
	for _, name := range []string{"orders", "mail"} {
		if _, err := w.client.Push(t.Context(), name, lowkiq.Push{ID: "both"}); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, w.get("/search?id=both"), 200, "<td>the id</td>", jobLink("orders", "both"), jobLink("mail", "both"))
}
