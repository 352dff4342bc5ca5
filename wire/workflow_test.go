package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseWorkflow(t *testing.T) {
	t.Parallel()
	w, err := ParseWorkflow([]byte(` {"jobs":[{"queue":"files","id":"a","payload":{"x":1},"name":"first","score":3},
		{"after":["first"],"id":"b","queue":"mail","header":{"tag":"vip"}}],"done":{"queue":"ends","id":"d"},"deadline":"2h","open":true} `))
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.Jobs[0], w.Jobs[1]
	if got := fmt.Sprint(a.Queue, a.ID, string(a.Payload), a.Name, *a.Score, b.Queue, b.ID, b.After, b.Header, w.Done.Queue, w.Done.Push.ID, w.Dead, w.Deadline == 2*time.Hour, w.Open); got !=
		`filesa{"x":1}first3mailb[first] map[tag:vip]endsd<nil> true true` {
		t.Errorf("got %s", got)
	}
	if jobs, err := ParseWorkflowJobs([]byte(`{"jobs":[{"queue":"files","id":"a"}]}`)); err != nil || len(jobs) != 1 {
		t.Errorf("got %v, %v", jobs, err)
	}
	for text, want := range map[string]string{
		``:                      `a workflow such as`,
		`[]`:                    `a workflow such as`,
		`{"jobs":1}`:            `jobs: must be an array of jobs`,
		`{"jobs":[{"id":"a"}]}`: `jobs[0].queue: missing`,
		`{"jobs":[{"queue":"q","id":"a","after":"b"}]}`:    `jobs[0].after: must be an array of names`,
		`{"jobs":[{"queue":"q","id":"a","name":1}]}`:       `jobs[0].name: must be a string`,
		`{"jobs":[{"queue":"q","id":"a","x":1}]}`:          `known: queue, id, id_base64, payload, score, perform_in, urgent, header, name, after`,
		`{"jobs":[{"queue":"q","id":"a","reply_to":"f"}]}`: `unknown field "reply_to"`,
		`{"done":{"id":"a"}}`:                              `done.queue: missing`,
		`{"dead":{"queue":"q"}}`:                           `dead.id: missing`,
		`{"dead":"q"}`:                                     `dead: unexpected character '"', want a job`,
		`{"done":{"queue":"q","id":"a","name":"n"}}`:       `done: unknown field "name"`,
		`{"deadline":5}`:                                   `deadline: must be a string`,
		`{}`:                                               `jobs: missing, and so are "done" and "open":true`,
		`{"dead":{"queue":"q","id":"a"},"open":false}`:     `jobs: missing, and so are "done" and "open":true`,
		`{"deadline":"soon"}`:                              `must be a duration such as "30s" or "2h"`,
		`{"open":true,"open":true}`:                        `field "open" given twice`,
		`{"close":true}`:                                   `unknown field "close" (known: jobs, done, dead, deadline, open)`,
		`{} {}`:                                            `the end after the workflow`,
	} {
		if _, err := ParseWorkflow([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{`{"jobs":[]}`, `{"open":true}`, `{"done":{"queue":"q","id":"a"}}`} {
		if _, err := ParseWorkflow([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ParseWorkflowJobs([]byte(`{"jobs":[],"open":true}`)); err == nil || !strings.Contains(err.Error(), `unknown field "open" (known: jobs)`) {
		t.Errorf("got %v", err)
	}
}
