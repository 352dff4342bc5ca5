package web

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
)

// TestGolden checks that clients still read the same from the recorded answers of every release.
func TestGolden(t *testing.T) {
	w := newWorld(t, shared(t)).fill()
	type results struct{ Results []PushResult }
	type changed struct{ Changed int }
	huge := strings.Repeat("x", lowkiq.MaxPayloadBytes)
	wrong := func(p Problem) *Problem {
		p.Type, p.Title = "about:blank", map[int]string{400: "Bad Request", 404: "Not Found"}[p.Status]
		return &p
	}
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		want                     any // as a client reads it
	}{
		{"error-body", "POST", ordersPath + "jobs", "{\"id\":\"x\"}\n{\"id\":7}", 400, wrong(Problem{Status: 400, Field: "id", Line: 2, Column: 7})},
		{"error-query", "GET", ordersPath + "jobs?limit=none", "", 400, wrong(Problem{Status: 400, Field: "limit"})},
		{"error-queue", "GET", "/api/v1/queues/nobody", "", 404, wrong(Problem{Status: 404})},
		{"answer-push", "POST", ordersPath + "jobs", `[{"id":"x"},{"id":"x"},{"id_base64":"/w==","payload":"` + huge + `"}]`, 200,
			&results{[]PushResult{{JobID: JobIDOf("x"), OK: true}, {JobID: JobIDOf("x"), OK: true, Merged: true}, {JobID: JobIDOf("\xff"), Error: `job "\xff": payload is too large: 1048578 bytes, at most 1048576 are allowed`}}}},
		{"answer-action", "POST", ordersPath + "jobs/delete", `{"ids":["x"]}`, 200, &changed{1}},
	} {
		answer := w.do(c.method, c.path, c.body)
		if answer.Code != c.status {
			t.Errorf("%s: got %d, want %d: %s", c.name, answer.Code, c.status, answer.Body)
		}
		golden.Check(t, c.name, answer.Body.String(), func(t *testing.T, stored string) {
			got := reflect.New(reflect.TypeOf(c.want).Elem()).Interface()
			err := json.Unmarshal([]byte(stored), got)
			if p, ok := got.(*Problem); ok && p.Detail != "" {
				p.Detail = "" // for people
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v %v, want %+v", got, err, c.want)
			}
		})
	}
}
