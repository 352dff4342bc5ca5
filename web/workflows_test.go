package web

import (
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"testing"
)

// TestWorkflow starts a workflow, lets it grow, closes and cancels it over HTTP, without a node that handles it.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redistest.Start(t).URL()).fill()
	const start = `{"open":true,"deadline":"1h","jobs":[{"queue":"orders","id":"w1","name":"first"},{"queue":"orders","id":"w2","after":["first"]}]}`
	for _, step := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"PUT", "", start, 201, `"state":"stored","total":2,"done":0,"dead":0,"waiting":1,"running":1,"dropped":0,"open":true`},
		{"PUT", "", start, 200, `"total":2`},
		{"PUT", "", `{"jobs":[]}`, 409, "another workflow has this id"},
		{"PUT", "", `{}`, 400, `so the workflow would do nothing`},
		{"GET", "", "", 200, `"id":"import-1/2","state":"stored"`},
		{"POST", "/jobs", `{"jobs":[{"queue":"orders","id":"w3"}]}`, 200, `"id":"import-1/2"`},
		{"POST", "/jobs", `{"jobs":[{"queue":"orders","id":"w3"}],"open":true}`, 400, `unknown field \"open\" (known: jobs)`},
		{"POST", "/close", "", 200, `"open":false`},
		{"POST", "/close", "", 200, `"open":false`},
		{"POST", "/jobs", `{"jobs":[{"queue":"orders","id":"w4"}]}`, 409, "the workflow is not open"},
		{"DELETE", "", "", 200, `"id":"import-1/2"`},
	} {
		answer := w.do(step.method, "/api/v1/workflows/import-1%2F2"+step.path, step.body)
		expect(t, answer, step.status, step.want)
	}
	lines := w.do("GET", "/api/v1/changes?queue=lowkiq.workflows&id=import-1%2F2", "")
	expect(t, lines, 200, `"action":"cancel workflow","queue":"lowkiq.workflows","ids":["import-1/2"]`, `"action":"close workflow"`)
}
