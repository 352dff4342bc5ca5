package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
)

// listedIDs reads the ids of a list; an id in base64 is "?".
func listedIDs(t *testing.T, body []byte) (ids []string) {
	t.Helper()
	var list JobPage[Job]
	must(t, json.Unmarshal(body, &list))
	for _, job := range list.Jobs {
		if job.Text == nil {
			job.JobID = JobIDOf("?")
		}
		ids = append(ids, job.ID())
	}
	return ids
}

// Where every job is after an action; fill put them elsewhere.
func TestActions(t *testing.T) {
	url := shared(t)
	for _, c := range []struct{ action, body, id, want string }{
		{"jobs/run-now", `{"ids":["s1"]}`, "s1", "ready"},
		{"jobs/run-now", `{"ids":["b1"]}`, "b1", "blocked"},
		{"jobs/kill", `{"ids":["r1"]}`, "r1", "morgue"},
		{"jobs/delete", `{"ids":["r1"]}`, "r1", "404"},
		{"jobs/delete", `{"ids":["w1"]}`, "w1", "in_flight"},
		{"run-all-now", ``, "f1", "ready"},
		{"kill-all-failed", ``, "f1", "morgue"},
		{"kill-all-failed", ``, "r1", "ready"},
		{"delete-all-failed", ``, "f2", "404"},
		{"morgue/requeue", `{"ids":["d1"]}`, "d1", "ready"},
		{"morgue/requeue", `{"all":true}`, "d2", "ready"},
		{"morgue/requeue", `{"all":true,"kind":"dead"}`, "d1", "ready"},
		{"morgue/requeue", `{"all":true,"kind":"dead"}`, "d2", "morgue"},
		{"morgue/delete", `{"all":true,"by":"id","from":"d2"}`, "d1", "morgue"},
		{"jobs/kill", `{"all":true,"state":"retry","by":"retries","from":"1"}`, "f1", "morgue"},
		{"jobs/kill", `{"all":true,"state":"retry","by":"retries","from":"1"}`, "f2", "retry"},
		{"jobs/delete", `{"all":true}`, "s1", "404"},
		{"jobs/delete", `{"all":true}`, "b1", "blocked"},
		{"jobs/run-now", `{"all":true,"state":"scheduled"}`, "f1", "retry"},
		{"blocked/bury", `{"all":true}`, "b1", "morgue"},
		{"morgue/delete", `{"ids":["d1"]}`, "d1", "404"},
		{"morgue/delete", `{"ids":["d1"]}`, "d2", "morgue"},
		{"blocked/requeue", `{"ids":["b1"]}`, "b1", "ready"},
		{"blocked/skip", `{"ids":["b1"]}`, "b1", "morgue"},
		{"blocked/bury", `{"ids":["b1"]}`, "b1", "morgue"},
	} {
		t.Run(c.action+" "+c.id, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, url).fill()
			expect(t, w.do("POST", ordersPath+c.action, c.body), 200)
			answer := w.do("GET", ordersPath+"jobs/"+c.id, "")
			if c.want == "404" {
				expect(t, answer, 404)
				return
			}
			expect(t, answer, 200, `"state":"`+c.want+`"`)
		})
	}
}

// A dry run counts what the action itself would then change, and changes nothing.
func TestDryRun(t *testing.T) {
	url := shared(t)
	for _, c := range []struct {
		action, body string
		changed      int
	}{
		{"jobs/run-now", `"ids":["s1","b1","nobody"]`, 1},
		{"jobs/kill", `"ids":["r1","w1","d1","b1"]`, 2},
		{"jobs/kill", `"ids":["r1","b1","r1","r1"]`, 2}, // each once
		{"jobs/delete", `"all":true`, -1},
		{"jobs/kill", `"all":true,"state":"retry","by":"retries","from":"1"`, -1},
		{"kill-all-failed", ``, -1},
		{"morgue/requeue", `"ids":["d1","d9","r1"]`, 1},
		{"morgue/delete", `"all":true,"kind":"dead"`, -1},
		{"blocked/skip", `"ids":["b1","f1"]`, 1},
		{"blocked/bury", `"all":true`, 1},
	} {
		t.Run(c.action+" "+c.body, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, url).fill()
			changed := func(body string) (n int) {
				var step Changed
				answer := w.do("POST", ordersPath+c.action, body)
				expect(t, answer, 200)
				must(t, json.Unmarshal(answer.Body.Bytes(), &step))
				return step.Changed
			}
			before := w.do("GET", ordersPath+"jobs?limit=1000", "").Body.String()
			dry := changed("{" + strings.TrimPrefix(c.body+`,"dry_run":true}`, ","))
			if after := w.do("GET", ordersPath+"jobs?limit=1000", "").Body.String(); after != before {
				t.Errorf("got %s after the dry run, want what was there before: %s", after, before)
			}
			if did := changed("{" + c.body + "}"); did != dry || dry == 0 || c.changed >= 0 && dry != c.changed {
				t.Errorf("the dry run counted %d, the action changed %d, want %d", dry, did, c.changed)
			}
		})
	}
}

// What is no id is refused, by whatever asks, and changes nothing: a shard keeps something of its own where that of the empty id would be.
func TestNoID(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	counts := func() string {
		_, of, _ := strings.Cut(w.do("GET", "/api/v1/queues/orders", "").Body.String(), `"jobs":`)
		of, _, _ = strings.Cut(of, "}")
		return of
	}
	before := counts()
	for _, action := range []string{"jobs/delete", "jobs/kill", "jobs/run-now", "morgue/requeue", "morgue/delete", "blocked/skip"} {
		for _, id := range []string{"", strings.Repeat("x", 513)} {
			for _, dry := range []string{"", `,"dry_run":true`} {
				expect(t, w.do("POST", ordersPath+action, `{"ids":["w1","`+id+`"]`+dry+`}`), 400, "job id is empty or too long")
			}
			expect(t, w.do("GET", ordersPath+"jobs?id="+id, ""), 400, "job id is empty or too long")
		}
	}
	if after := counts(); after != before {
		t.Errorf("got %s after what was refused, want what was there before: %s", after, before)
	}
}

// A job that has failed is no fresh one in any figure once its turn has come, and is killed and
// deleted with the others.
func TestAllFailedWhoseTurnHasCome(t *testing.T) {
	url := shared(t)
	for action, want := range map[string]int{"kill-all-failed": 200, "delete-all-failed": 404} {
		w := newWorld(t, url).fill()
		expect(t, w.do("POST", ordersPath+"jobs/run-now", `{"ids":["f1"]}`), 200)
		expect(t, w.do("GET", ordersPath+"jobs?state=failed", ""), 200, `"id":"f1"`, `"id":"f2"`)
		expect(t, w.do("GET", "/api/v1/stats", ""), 200, `"enqueued":8,"fresh":5,"retries":3,`)
		expect(t, w.do("GET", "/api/v1/queues/orders", ""), 200, `"jobs":{"ready":5,"scheduled":1,"retry":1,"held":0,"in_flight":1,"blocked":1,"failed":2}`)
		expect(t, w.do("POST", ordersPath+action, ""), 200, `"changed":2`)
		expect(t, w.do("GET", ordersPath+"jobs/f1", ""), want)
	}
}

// A run is not ended to be held where it cannot be held then.
func TestCancelToHoldIsRefusedAsAWhole(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	holds := make([]rules.Hold, rules.MaxHolds)
	for i := range holds {
		holds[i].ID = fmt.Sprint("id-", i)
	}
	value, err := json.Marshal(holds)
	must(t, err)
	_, err = rules.In(w.client.DB()).Change(t.Context(), "orders", rules.Change{If: -1, Edit: func(map[string]rules.Setting, time.Time) (map[string]json.RawMessage, []string, error) {
		return map[string]json.RawMessage{"holds": value}, nil, nil
	}})
	must(t, err)
	expect(t, w.do("POST", ordersPath+"jobs/w1/cancel", `{"then":"hold"}`), 400, "the queue has 1000 of them, which is the limit; undo some, or hold a prefix")
	if n := w.node.told.Load(); n != 0 {
		t.Error("its handler was told to stop")
	}
	expect(t, w.do("POST", ordersPath+"jobs/w1/cancel", `{"then":"retry"}`), 200)
}

// An id may be held by itself and by prefixes: to undo one of its holds says which one holds it then, and to undo what is not held says so.
func TestUndoneMayBeHeld(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	for _, c := range []struct{ body, want string }{
		{`{"prefix":"ac"}`, `{"prefix":"ac","queue":"orders","undone":false,"held":true,"count":1}`},
		{`{"prefix":"acme:","for":"1h"}`, `{"prefix":"acme:","queue":"orders","undone":false,"held":true,"until":`},
		{`{"id":"acme:7"}`, `{"id":"acme:7","queue":"orders","undone":false,"held":true,"count":3}`},
		{`{"id":"acme:7","undo":true}`, `{"id":"acme:7","queue":"orders","undone":true,"held":true,"held_by_prefix":"acme:","until":`},
		{`{"id":"acme:7","undo":true}`, `{"id":"acme:7","queue":"orders","undone":false,"held":true,"held_by_prefix":"acme:","until":`},
		{`{"prefix":"acme:","undo":true}`, `{"prefix":"acme:","queue":"orders","undone":true,"held":true,"held_by_prefix":"ac","count":1}`},
		{`{"prefix":"a","undo":true}`, `{"prefix":"a","queue":"orders","undone":false,"held":false,"count":1}`},
		{`{"prefix":"ac","undo":true}`, `{"prefix":"ac","queue":"orders","undone":true,"held":false,"count":0}`},
	} {
		expect(t, w.do("POST", ordersPath+"holds", c.body), 200, c.want)
	}
}

// A run that is ended to be held is held before: by then its id may be anywhere. One that cannot be ended is held as it was before.
func TestCancelToHoldHoldsFirst(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	held := func() string {
		t.Helper()
		holds, err := HoldsOf(t.Context(), w.client, "orders")
		must(t, err)
		var all []string
		for _, h := range holds {
			all = append(all, fmt.Sprint(h.String(), " ", h.Why, " ", !h.Until.IsZero()))
		}
		return fmt.Sprint(all)
	}
	end := func(status int, before, during, after string, err error) {
		t.Helper()
		if got := held(); got != before {
			t.Errorf("before: %s are held, want %s", got, before)
		}
		asked := false
		w.node.ending = func() error {
			asked = true
			if got := held(); got != during {
				t.Errorf("while its handler is told to stop: %s are held, want %s", got, during)
			}
			return err
		}
		expect(t, w.do("POST", ordersPath+"jobs/w1/cancel", `{"then":"hold","why":"it hangs"}`), status)
		if !asked {
			t.Error("no handler was told to stop")
		}
		if got := held(); got != after {
			t.Errorf("after: %s are held, want %s", got, after)
		}
	}
	const hangs = `["w1" it hangs false]`
	end(409, "[]", hangs, "[]", status.ErrNotRunning)
	expect(t, w.do("POST", ordersPath+"holds", `{"id":"w1","why":"mine","for":"1h"}`), 200)
	end(409, `["w1" mine true]`, hangs, `["w1" mine true]`, status.ErrNoAnswer)
	end(200, `["w1" mine true]`, hangs, hangs, nil)
	expect(t, w.do("POST", ordersPath+"jobs/f1/cancel", `{"then":"hold"}`), 409, "not running")
	if got := held(); got != hangs {
		t.Errorf("%s are held after a cancel of what does not run, want %s", got, hangs)
	}
	// Somebody holds it for a time meanwhile: that stays.
	w.node.ending = func() error {
		expect(t, w.do("POST", ordersPath+"holds", `{"id":"w1","why":"theirs","for":"1h"}`), 200)
		return status.ErrNotRunning
	}
	expect(t, w.do("POST", ordersPath+"jobs/w1/cancel", `{"then":"hold"}`), 409)
	if got := held(); got != `["w1" theirs true]` {
		t.Errorf("%s are held, want what somebody has set meanwhile", got)
	}
}

func TestPauseShows(t *testing.T) {
	var log bytes.Buffer
	into := logbuf.Logger(slog.New(slog.NewTextHandler(&log, nil)))
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.Log = into }).fill()
	for _, step := range []struct{ action, want string }{{"pause", `"paused":true`}, {"pause", `"paused":true`}, {"resume", `"paused":false`}} {
		expect(t, w.do("POST", ordersPath+step.action, ""), 200, step.want)
		expect(t, w.do("GET", "/api/v1/queues/orders", ""), 200, step.want)
	}
	logbuf.Flush(into, time.Minute)
	if !strings.Contains(log.String(), "action=pause queue=orders") {
		t.Errorf("got log %q, want the pause in it", log.String())
	}
}

func TestParseBody(t *testing.T) {
	t.Parallel()
	byIDs := browse.Kill
	onAll := browse.Actions()[slices.IndexFunc(browse.Actions(), func(a *browse.Action) bool { return a.Path == "kill-all-failed" })]
	for _, c := range []struct {
		name, body string
		action     *browse.Action
		want       string // the problem's detail begins so
		line, col  int
	}{
		{"ids", `{"ids":["a"]}`, byIDs, "", 0, 0},
		{"all", `{"all":true}`, byIDs, "", 0, 0},
		{"ids and not all", `{"all":false,"ids":["a"]}`, byIDs, "", 0, 0},
		{"filter", `{"all":true,"state":"retry","kind":"x","by":"retries","from":"1","to":"2","limit":5,"cursor":"x"}`, byIDs, "", 0, 0},
		{"nothing for all", ``, onAll, "", 0, 0},
		{"part of all", `{"limit":5,"kind":"x"}`, onAll, "", 0, 0},
		{"empty", ``, byIDs, "the body is empty", 0, 0},
		{"null", `null`, byIDs, "ids: no id is named", 0, 0},
		{"array", `["a"]`, byIDs, "got array; the body must be like {", 1, 1},
		{"cut off", "{\"ids\":\n[", byIDs, "the body ends too early", 2, 2},
		{"syntax", "{\n  ids}", byIDs, "invalid character 'i'", 2, 3},
		{"type", `{"ids":"a"}`, byIDs, "ids: got string", 1, 0},
		{"field", `{"id":["a"]}`, byIDs, "id: unknown field", 1, 0},
		{"more", "{\"ids\":[\"a\"]}\n{}", byIDs, "nothing may follow the object", 2, 1},
		{"not utf-8", "{\"ids\":[\"\xff\"]}", byIDs, "the body is not UTF-8", 0, 0},
		{"half a surrogate pair", `{"ids":["a\\\ud83d"]}`, byIDs, `half of a surrogate pair`, 1, 13},
		{"halves the wrong way", `{"ids":["\udc00\ud800"]}`, byIDs, `half of a surrogate pair`, 1, 10},
		{"a pair, and a backslash before u", `{"ids":["\ud83d\ude00","\\ud83d"]}`, byIDs, "", 0, 0},
		{"bad base64", `{"ids_base64":["%"]}`, byIDs, "illegal base64", 0, 0},
		{"ids and all", `{"all":true,"ids":["a"]}`, byIDs, "all: ids are named as well", 0, 0},
		{"ids and a filter", `{"ids":["a"],"kind":"x"}`, byIDs, "ids: a filter", 0, 0},
		{"state", `{"all":true,"state":"in_flight"}`, byIDs, `state: got "in_flight", must be one of ready`, 0, 0},
		{"order", `{"all":true,"by":"score"}`, byIDs, `by: got "score"`, 0, 0},
		{"time", `{"all":true,"from":"now"}`, byIDs, `from: got "now"`, 0, 0},
		{"limit", `{"all":true,"limit":10001}`, byIDs, `limit: got "10001", must be a number from 1 to 10000`, 0, 0},
		{"ids for all", `{"ids":["a"]}`, onAll, "ids: unknown field; the body must be empty, or like {", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := new(Selection).parseBody(c.action, []byte(c.body))
			if c.want == "" {
				must(t, err)
				return
			}
			var p *Problem
			if !errors.As(err, &p) {
				t.Fatalf("got %v, want a problem", err)
			}
			if !strings.HasPrefix(p.Detail, c.want) || p.Line != c.line || c.col > 0 && p.Column != c.col {
				t.Errorf("got line %d, column %d: %s; want line %d, column %d: %s", p.Line, p.Column, p.Detail, c.line, c.col, c.want)
			}
		})
	}
}

// Steps of an action, followed by their cursors, are the action.
func TestActionGoesOn(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	changed, cursor := 0, ""
	for {
		answer := w.do("POST", ordersPath+"jobs/kill", `{"all":true,"limit":2,"cursor":"`+cursor+`"}`)
		expect(t, answer, 200)
		var step Changed
		must(t, json.Unmarshal(answer.Body.Bytes(), &step))
		changed += step.Changed
		if cursor = step.Next; cursor == "" {
			break
		}
		expect(t, w.do("POST", ordersPath+"jobs/delete", `{"all":true,"cursor":"`+cursor+`"}`), 400, "another query")
	}
	if changed != 7 {
		t.Errorf("got %d killed, want the 7 that wait", changed)
	}
	expect(t, w.do("GET", ordersPath+"jobs", ""), 200, `{"jobs":[],`)
}

// replyError is an answer of Redis, as go-redis marks it.
type replyError string

func (e replyError) Error() string { return string(e) }
func (e replyError) RedisError()   {}

func TestOutage(t *testing.T) {
	t.Parallel()
	away, refused := replyError("CLUSTERDOWN it is"), protocol.ErrPayloadSize
	for _, c := range []struct {
		name    string
		results []protocol.Result
		want    error
	}{
		{"none pushed", nil, nil},
		{"all stored", []protocol.Result{{}, {Merged: true}}, nil},
		{"all away", []protocol.Result{{Err: away}, {Err: away}}, away},
		{"part away", []protocol.Result{{Err: away}, {}}, nil},
		{"part refused, the rest away", []protocol.Result{{Err: refused}, {Err: away}}, away},
		{"all refused", []protocol.Result{{Err: refused}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := findOutage(c.results); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	answers := pushResults([]lowkiq.Push{job("a"), job("\xff")}, []protocol.Result{{Err: away}, {Err: refused}})
	if !answers[0].Retry || answers[1].Retry || answers[1].Base64 == nil || *answers[0].Text != "a" {
		t.Errorf("got %+v, want the first alone to be tried again", answers)
	}
}

func TestProblemOf(t *testing.T) {
	t.Parallel()
	p := ProblemOf(&partialError{changed: 7, next: "abc", err: fmt.Errorf("kill: %w", replyError("OOM full"))})
	if p.Status != 503 || p.Changed == nil || *p.Changed != 7 || p.Next != "abc" || p.Detail != "kill: OOM full" {
		t.Errorf("got %+v, want 503 after 7 changes", p)
	}
	if p := ProblemOf(errors.New("the record is damaged")); p.Status != 500 {
		t.Errorf("got status %d, want 500", p.Status)
	}
	first := NewProblem(400, "x")
	if p := ProblemOf(&partialError{err: first}); p == first || first.Changed != nil {
		t.Error("a shared problem was changed")
	}
}
