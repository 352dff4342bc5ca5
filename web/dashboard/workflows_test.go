package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/web/auth"
)

// hostileWorkflow is the id of a workflow that would break a page that does not escape it. A path would lose its dots.
const hostileWorkflow = `../"'><script>alert(1)</script>`

// startWorkflow starts an open workflow of a job, and one that waits for it. No node handles it.
func (w *world) startWorkflow(id string) {
	w.t.Helper()
	_, err := workflow.Start(w.t.Context(), w.client, workflow.Workflow{ID: id, Open: true, Jobs: []workflow.Job{
		{Queue: "orders", Push: lowkiq.Push{ID: "m1"}, Name: "first"}, {Queue: "orders", Push: lowkiq.Push{ID: "m2"}, After: []string{"first"}},
	}})
	must(w.t, err)
}

// keepWorkflow stores the state of a workflow, as a node keeps it.
func (w *world) keepWorkflow(id, fields string) {
	w.t.Helper()
	q, err := w.client.FindQueue(w.t.Context(), protocol.Workflows)
	if q == nil && err == nil {
		q, err = w.client.RegisterWorkflows(w.t.Context(), 2)
	}
	must(w.t, err)
	_, err = w.client.DB().Do(w.t.Context(), "keep a workflow", "HSET", q.Of(id).Keys().States, id, `{"v":1,"digest":"d","began":1763600000000,"changed":1763600060000,`+fields+"}")
	must(w.t, err)
}

// asked returns the last message that waits for a workflow.
func (w *world) asked(id string) string {
	w.t.Helper()
	_, first, err := w.client.ReadID(w.t.Context(), protocol.Workflows, id)
	must(w.t, err)
	return string(first[len(first)-1].Data)
}

func TestWorkflowPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keepWorkflow("half", `"total":2000,"done":1000,"names":["3 </bdi><img src=x onerror=alert(1)>","4 late"],"more_dead":3,"open":true,"waiting":[{"q":"orders","i":"m2","m":7,"n":"orders/m2","after":[6,4]}]`)
	w.keepWorkflow("done", `"total":1,"done":1,"ended":1763600060000`)
	w.keepWorkflow("dead", `"total":2,"done":1,"names":["2 a"],"more_dead":1,"told_dead":true`)
	w.keepWorkflow("late", `"total":2,"done":1,"late":true,"told_dead":true`)
	w.keepWorkflow("cancelled", `"total":4,"done":1,"dropped":2,"cancelled":true,"ended":1763600060000`)
	w.keepWorkflow("empty", `"total":0,"done":0,"open":true`)
	w.keepWorkflow(hostileWorkflow, `"total":1,"done":0`)
	expect(t, w.get("/workflows"), 200, "<body data-again>", `aria-current="page">Workflows</a>`, `href="./workflow?id=half"`, `<span class="tag good">done</span>`, `<span class="tag bad">dead</span>`, `<span class="tag bad">late</span>`, `<span class="tag warn">cancelled</span>`,
		`<td data-name="total">2,000</td><td data-name="done">1,000</td><td data-name="dead" class="bad">3</td><td data-name="waiting">1</td><td data-name="running">996</td>`, `<td class="text">open</td>`, `<time datetime="2025-11-20T00:54:20Z" title="2025-11-20 00:54:20">`)
	dead := w.get("/workflows?state=dead")
	expect(t, dead, 200, `<option selected>dead</option>`, `href="./workflow?id=dead"`)
	if strings.Contains(dead.Body.String(), `href="./workflow?id=done"`) {
		t.Error("the page of dead workflows has another")
	}
	expect(t, w.get("/workflows?state=gone"), 400, "must be running, done, dead, late or cancelled")
	for id, want := range map[string][]string{
		"half":          {"<body data-again>", "2,000 jobs</h2>", "running <b>996</b>", `<svg class="members"`, `role="img" aria-label="2,000 jobs: 1,000 done, 996 running, 1 waiting, 3 dead"`, `<rect class="done" x="0" y="0" width="49"`, `&lt;/bdi&gt;&lt;img src=x`, "<bdi>late</bdi>", "These are the first of 3", `job?id=m2"><bdi>orders/m2</bdi></a> after <bdi>job 6</bdi>, <bdi>late</bdi>`, "Close it", "Cancel it"},
		"done":          {"All jobs are done.", `width="100"`, "<dt>Ended</dt>"},
		"dead":          {"If they are requeued and succeed, it goes on.", "<bdi>a</bdi>", "Cancel it"},
		"late":          {"Its deadline has passed.", "Cancel it"},
		"cancelled":     {"It ended without a push.", `aria-label="4 jobs: 1 done, 0 running, 0 waiting, 0 dead, 2 dropped"`},
		"empty":         {"0 jobs: 0 done, 0 running, 0 waiting, 0 dead", "Close it"},
		hostileWorkflow: {"../&#34;&#39;&gt;&lt;script&gt;", `1 job: 0 done, 1 running`},
	} {
		answer := w.get(workflowLink(id))
		expect(t, answer, 200, want...)
		page := answer.Body.String()
		if (id == "done" || id == "cancelled") && changing(page) {
			t.Errorf("%s: got buttons, want none", id)
		}
		for _, page := range []string{page, w.get("/workflows").Body.String()} {
			if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img src=x") {
				t.Errorf("%s: got text of a user unescaped", id)
			}
		}
	}
}

// Each workflow is on one page of the list.
func TestWorkflowsGoThroughAList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 1200 // Redis hands out a small hash as a whole
	for i := range n {
		w.keepWorkflow(fmt.Sprint("w-", i), `"total":1,"done":0`)
	}
	seen, at := map[string]bool{}, workflowsPath
	for at != "" {
		answer := w.get(at)
		expect(t, answer, 200)
		body := answer.Body.String()
		if (at != workflowsPath) != strings.Contains(body, `<a href="./workflows">⇤ First page</a>`) {
			t.Fatalf("%s: got a link to the first page wrongly", at)
		}
		for _, row := range strings.Split(body, `title="w-`)[1:] {
			id, _, _ := strings.Cut(row, `"`)
			seen[id] = true
		}
		at = ""
		if _, rest, ok := strings.Cut(body, `<a href="./workflows?cursor=`); ok {
			cursor, _, _ := strings.Cut(rest, `"`)
			at = workflowsPath + "?cursor=" + cursor
		}
		if len(seen) > n {
			t.Fatal("got too many")
		}
	}
	if len(seen) != n {
		t.Errorf("got %d workflows, want %d", len(seen), n)
	}
}

// The buttons store what they ask for. Each is behind a menu that says what it does.
func TestWorkflowButtons(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fillQueueOnly()
	w.startWorkflow(hostileWorkflow)
	at := workflowLink(hostileWorkflow)
	expect(t, w.get(at), 200, "No node has handled its start yet.", "waiting <b>1</b>", `aria-label="2 jobs: 0 done, 1 running, 1 waiting, 0 dead"`, "Close it", "Cancel it")
	answer := w.post("/workflow", "id", hostileWorkflow, "do", "close")
	if got := answer.Header().Get("Location"); got != at {
		t.Fatalf("got %d and %q, want the page of the workflow", answer.Code, got)
	}
	page := w.follow(answer)
	expect(t, page, 200, "<dd>no</dd>")
	if strings.Contains(page.Body.String(), "Close it") || !strings.Contains(w.asked(hostileWorkflow), `"close"`) {
		t.Errorf("got %s after the close", w.asked(hostileWorkflow))
	}
	page = w.follow(w.post("/workflow", "id", hostileWorkflow, "do", "cancel"))
	expect(t, page, 200, "The cancel is stored.")
	if strings.Contains(page.Body.String(), "Cancel it") || !strings.Contains(w.asked(hostileWorkflow), `"cancel"`) {
		t.Errorf("got %s after the cancel", w.asked(hostileWorkflow))
	}
	expect(t, w.get("/changes"), 200, "close workflow", "cancel workflow", protocol.Workflows)
	expect(t, w.post("/workflow", "id", "nobody", "do", "cancel"), 404, "There is no workflow nobody")
	expect(t, w.post("/workflow", "id", hostileWorkflow, "do", "<b>"), 400, "must be close or cancel")
	expect(t, w.post("/workflow", "do", "close"), 400, "No id is named")
}

// Only a sender with the role Admin changes a workflow, and no page of another site does.
func TestWorkflowFormsAreGuarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fillQueueOnly()
	w.startWorkflow("import")
	node := w.node(auth.Tokens{Read: []string{readToken}, Push: []string{"push-token-0123456789"}, Admin: []string{adminToken}})
	for _, c := range []struct {
		token, site string
		status      int
	}{{"", "same-origin", 401}, {readToken, "same-origin", 403}, {"push-token-0123456789", "same-origin", 403}, {adminToken, "cross-site", 403}, {adminToken, "same-origin", 303}} {
		r := httptest.NewRequest(http.MethodPost, "/workflow", strings.NewReader("id=import&do=cancel"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", c.site)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		before := w.asked("import")
		answer := httptest.NewRecorder()
		node.ServeHTTP(answer, r.WithContext(t.Context()))
		if changed := w.asked("import") != before; answer.Code != c.status || changed != (c.status == 303) {
			t.Errorf("%s from %s: got %d, changed %t, want %d: %s", c.token, c.site, answer.Code, changed, c.status, answer.Body)
		}
	}
}
