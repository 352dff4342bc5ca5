package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// listedIDs reads the ids of a list; an id in base64 is "?".
func listedIDs(t *testing.T, body []byte) []string {
	t.Helper()
	var list struct {
		Jobs []struct {
			ID *string `json:"id"`
		} `json:"jobs"`
	}
	must(t, json.Unmarshal(body, &list))
	ids := []string{}
	for _, job := range list.Jobs {
		if job.ID == nil {
			ids = append(ids, "?")
			continue
		}
		ids = append(ids, *job.ID)
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

func TestPauseShows(t *testing.T) {
	var log bytes.Buffer
	w := newWorld(t, shared(t), func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) }).fill()
	for _, step := range []struct{ action, want string }{{"pause", `"paused":true`}, {"pause", `"paused":true`}, {"resume", `"paused":false`}} {
		expect(t, w.do("POST", ordersPath+step.action, ""), 200, step.want)
		expect(t, w.do("GET", "/api/v1/queues/orders", ""), 200, step.want)
	}
	if !strings.Contains(log.String(), "queue=orders paused=true") {
		t.Errorf("got log %q, want the pause in it", log.String())
	}
}

func TestParseSelection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		allowAll   bool
		want       string // the problem's detail begins so
		line, col  int
	}{
		{"ids", `{"ids":["a"]}`, false, "", 0, 0},
		{"all", `{"all":true}`, true, "", 0, 0},
		{"ids and not all", `{"all":false,"ids":["a"]}`, true, "", 0, 0},
		{"empty", ``, false, "the body is empty", 0, 0},
		{"null", `null`, false, "ids: no id is named", 0, 0},
		{"array", `["a"]`, false, "got array; want {", 1, 1},
		{"cut off", "{\"ids\":\n[", false, "the body ends too early", 2, 2},
		{"syntax", "{\n  ids}", false, "invalid character 'i'", 2, 3},
		{"type", `{"ids":"a"}`, false, "ids: got string", 1, 0},
		{"field", `{"id":["a"]}`, false, "id: unknown field", 1, 0},
		{"more", "{\"ids\":[\"a\"]}\n{}", false, "want the end after one object", 2, 1},
		{"not utf-8", "{\"ids\":[\"\xff\"]}", false, "the body is not UTF-8", 0, 0},
		{"bad base64", `{"ids_base64":["%"]}`, false, "illegal base64", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := parseSelection([]byte(c.body), c.allowAll)
			if c.want == "" {
				must(t, err)
				return
			}
			var p *problem
			if !errors.As(err, &p) {
				t.Fatalf("got %v, want a problem", err)
			}
			if !strings.HasPrefix(p.Detail, c.want) || p.Line != c.line || c.col > 0 && p.Column != c.col {
				t.Errorf("got line %d, column %d: %s; want line %d, column %d: %s", p.Line, p.Column, p.Detail, c.line, c.col, c.want)
			}
		})
	}
}

// replyError is an answer of Redis, as go-redis marks it.
type replyError string

func (e replyError) Error() string { return string(e) }
func (e replyError) RedisError()   {}

func TestOutage(t *testing.T) {
	t.Parallel()
	away, refused := replyError("CLUSTERDOWN it is"), queue.ErrPayloadSize
	for _, c := range []struct {
		name    string
		results []queue.Result
		want    error
	}{
		{"none pushed", nil, nil},
		{"all stored", []queue.Result{{}, {Merged: true}}, nil},
		{"all away", []queue.Result{{Err: away}, {Err: away}}, away},
		{"part away", []queue.Result{{Err: away}, {}}, nil},
		{"part refused, the rest away", []queue.Result{{Err: refused}, {Err: away}}, away},
		{"all refused", []queue.Result{{Err: refused}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := outage(c.results); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	answers := pushResults([]lowkiq.Push{job("a"), job("\xff")}, []queue.Result{{Err: away}, {Err: refused}})
	if !answers[0].Retry || answers[1].Retry || answers[1].Base64 == nil || *answers[0].Text != "a" {
		t.Errorf("got %+v, want the first alone to be tried again", answers)
	}
}

func TestProblemOf(t *testing.T) {
	t.Parallel()
	p := problemOf(&partly{changed: 7, err: fmt.Errorf("kill: %w", replyError("OOM full"))})
	if p.Status != 503 || p.Changed == nil || *p.Changed != 7 || p.Detail != "kill: OOM full" {
		t.Errorf("got %+v, want 503 after 7 changes", p)
	}
	if p := problemOf(errors.New("the record is damaged")); p.Status != 500 {
		t.Errorf("got status %d, want 500", p.Status)
	}
	first := newProblem(400, "x")
	if p := problemOf(&partly{err: first}); p == first || first.Changed != nil {
		t.Error("a shared problem was changed")
	}
}
