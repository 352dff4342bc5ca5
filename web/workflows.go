package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/web/auth"
	"github.com/lowkiq/lowkiq/wire"
)

// PushedTo is a push with its queue.
type PushedTo struct {
	Queue string `json:"queue"`
	PushedJob
}

// WorkflowJob is a job of a workflow. It must not be urgent.
type WorkflowJob struct {
	PushedTo
	Name  string   `json:"name,omitempty"`  // for people and for after, at most 60 bytes; default: queue and id
	After []string `json:"after,omitempty"` // names of jobs of the same request; the job is pushed when all of them are done
}

// WorkflowStart is the body of a request to start a workflow.
type WorkflowStart struct {
	Jobs []WorkflowJob `json:"jobs,omitempty"` // pushed as one; at most 600 KiB as they are stored
	Done *PushedTo     `json:"done,omitempty"` // pushed once when all jobs are done and the workflow is closed
	// pushed once when nothing of the workflow can run any more and a job has died, or at the deadline
	Dead     *PushedTo `json:"dead,omitempty"`
	Deadline string    `json:"deadline,omitempty"` // time from the start, such as 2h; default: none
	Open     bool      `json:"open,omitempty"`     // whether jobs may be added until it is closed
}

// WorkflowJobs is the body of a request to add jobs to a workflow.
type WorkflowJobs struct {
	Jobs []WorkflowJob `json:"jobs"`
}

// Workflow is the status of a workflow. Times are unix seconds.
type Workflow struct {
	ID string `json:"id"`
	// stored: no node has handled its start yet; running; done: all jobs are done; dead or late: the push dead was made, because jobs
	// have died or because of the deadline; cancelled
	State     workflow.State `json:"state" enum:"stored running done dead late cancelled"`
	Total     int            `json:"total"` // jobs
	Done      int            `json:"done"`
	Dead      int            `json:"dead"`       // jobs that were buried or deleted, or have expired
	Waiting   int            `json:"waiting"`    // jobs that wait for others
	Running   int            `json:"running"`    // jobs that were pushed and have not ended; 0 once the workflow has ended
	Dropped   int            `json:"dropped"`    // jobs that waited for others when the workflow was cancelled
	Open      bool           `json:"open"`       // whether jobs may be added
	DeadNames []string       `json:"dead_names"` // of the first ten dead jobs
	// the first ten dead jobs, and the first ten jobs that wait for others; absent in a list
	DeadJobs    []WorkflowMember `json:"dead_jobs,omitempty"`
	WaitingJobs []WorkflowMember `json:"waiting_jobs,omitempty"`
	Began       *float64         `json:"began,omitempty"`
	Changed     *float64         `json:"changed,omitempty"`
	Ended       *float64         `json:"ended,omitempty"`
}

// WorkflowMember is a job of a workflow.
type WorkflowMember struct {
	Queue string   `json:"queue"` // "" if only the name of a dead job is known, as with id
	ID    string   `json:"id"`
	Name  string   `json:"name"`
	After []string `json:"after,omitempty"` // names of the jobs that it waits for, at most ten
}

// Workflows is a page of workflows, the newest first within the page.
type Workflows struct {
	Workflows []Workflow `json:"workflows"`
	Next      string     `json:"next,omitempty"` // cursor of the next page
}

// WorkflowOf returns a status in the form of the API.
func WorkflowOf(s workflow.Status) Workflow {
	w := Workflow{ID: s.ID, State: s.State, Total: s.Total, Done: s.Done, Dead: s.Dead, Waiting: s.Waiting, Running: s.Running(), Dropped: s.Dropped, Open: s.Open, DeadNames: s.DeadNames}
	if w.DeadNames == nil {
		w.DeadNames = []string{}
	}
	for _, m := range s.DeadJobs {
		w.DeadJobs = append(w.DeadJobs, WorkflowMember(m))
	}
	for _, m := range s.WaitingJobs {
		w.WaitingJobs = append(w.WaitingJobs, WorkflowMember(m))
	}
	if !s.Began.IsZero() {
		w.Began, w.Changed = new(unixSeconds(s.Began)), new(unixSeconds(s.Changed))
	}
	if !s.Ended.IsZero() {
		w.Ended = new(unixSeconds(s.Ended))
	}
	return w
}

func (a *api) workflowRoutes() []route {
	const example = "/api/v1/workflows/import-42"
	return []route{
		{name: "workflows", pattern: "GET /api/v1/workflows", about: "workflows of the last week, and those that have not ended", path: "/api/v1/workflows?limit=100", query: workflowsQuery,
			gives: Workflows{}, serve: a.listWorkflows},
		{name: "workflow", pattern: "GET /api/v1/workflows/{workflow}", about: "a workflow", path: example, gives: Workflow{}, fails: []int{404}, serve: a.showWorkflow},
		{name: "startWorkflow", pattern: "PUT /api/v1/workflows/{workflow}", about: "start a workflow: push jobs to any queues, and one more when all of them are done",
			more: "All of it is stored, or nothing. 201: it is started. 200: the same request was made before, and nothing is done; due times of jobs do not count. " +
				"409: another workflow has the id. A workflow is kept for a week after its end.",
			path: "/api/v1/workflows/import-43", role: auth.Push, body: `{"jobs":[{"queue":"orders","id":"a"}],"done":{"queue":"mail","id":"u7"}}`,
			takes: WorkflowStart{}, gives: Workflow{}, creates: true, fails: []int{404, 409}, serve: a.startWorkflow},
		{name: "addToWorkflow", pattern: "POST /api/v1/workflows/{workflow}/jobs", about: "add jobs to an open workflow, all or none",
			more: "The same request again does nothing, if it is among the last 200.",
			path: example + "/jobs", role: auth.Push, body: `{"jobs":[{"queue":"orders","id":"b"}]}`, takes: WorkflowJobs{}, gives: Workflow{}, fails: []int{404, 409}, serve: a.addToWorkflow},
		{name: "closeWorkflow", pattern: "POST /api/v1/workflows/{workflow}/close", about: "no more jobs will be added to a workflow, so its push done may be made",
			path: example + "/close", role: auth.Push, takes: nothing{}, optional: true, gives: Workflow{}, fails: []int{404}, serve: a.closeWorkflow},
		{name: "cancelWorkflow", pattern: "DELETE /api/v1/workflows/{workflow}", about: "end a workflow without a push; its jobs are left alone, and jobs that wait for others are dropped",
			path: example, role: auth.Push, gives: Workflow{}, fails: []int{404}, serve: a.cancelWorkflow},
	}
}

const maxWorkflows = 100 // of a page, if the request does not say

func (a *api) listWorkflows(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, query := maxWorkflows, r.URL.Query()
	if query.Has("limit") {
		if err := readLimit(query, maxLimit, &n); err != nil {
			return nil, err
		}
	}
	page, next, err := workflow.List(r.Context(), a.client, workflow.State(query.Get("state")), query.Get("cursor"), n)
	if err != nil {
		return nil, err
	}
	answer := Workflows{make([]Workflow, len(page)), next}
	for i := range page {
		answer.Workflows[i] = WorkflowOf(page[i])
	}
	return answer, nil
}

func (a *api) showWorkflow(_ http.ResponseWriter, r *http.Request) (any, error) {
	s, err := workflow.Get(r.Context(), a.client, r.PathValue("workflow"))
	if err != nil {
		return nil, err
	}
	return WorkflowOf(s), nil
}

// createdAnswer is an answer with status 201.
type createdAnswer struct{ answer any }

func (a *api) startWorkflow(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readJobs(w, r)
	if err != nil {
		return nil, err
	}
	parsed, err := wire.ParseWorkflow(body)
	if err != nil {
		return nil, err
	}
	id := r.PathValue("workflow")
	created, err := workflow.Start(r.Context(), a.client, workflow.Workflow{
		ID: id, Jobs: workflowJobs(parsed.Jobs), Done: parsed.Done, Dead: parsed.Dead, Deadline: parsed.Deadline, Open: parsed.Open,
	})
	if err != nil {
		return nil, err
	}
	answer, err := a.showWorkflow(w, r)
	if created && err == nil {
		answer = createdAnswer{answer}
	}
	return answer, err
}

// readJobs reads a body with jobs.
func (a *api) readJobs(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := a.readBody(w, r)
	if err == nil {
		err = memory.AccountOf(r.Context()).TakeAlone(jobsMemory(body))
	}
	return body, err
}

func workflowJobs(parsed []wire.WorkflowJob) []workflow.Job {
	jobs := make([]workflow.Job, len(parsed))
	for i, one := range parsed {
		jobs[i] = workflow.Job{Queue: one.Queue, Push: one.Push, Name: one.Name, After: one.After}
	}
	return jobs
}

func (a *api) addToWorkflow(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readJobs(w, r)
	if err != nil {
		return nil, err
	}
	jobs, err := wire.ParseWorkflowJobs(body)
	if err != nil {
		return nil, err
	}
	if err := workflow.Add(r.Context(), a.client, r.PathValue("workflow"), workflowJobs(jobs)...); err != nil {
		return nil, err
	}
	return a.showWorkflow(w, r)
}

func (a *api) closeWorkflow(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.readOptionalBody(w, r, &struct{}{}, bodyNothing); err != nil {
		return nil, err
	}
	if err := a.operator.CloseWorkflow(r.Context(), auth.Who(r), r.PathValue("workflow")); err != nil {
		return nil, err
	}
	return a.showWorkflow(w, r)
}

func (a *api) cancelWorkflow(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.operator.CancelWorkflow(r.Context(), auth.Who(r), r.PathValue("workflow")); err != nil {
		return nil, err
	}
	return a.showWorkflow(w, r)
}
