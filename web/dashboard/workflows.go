package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

const (
	workflowsPath = "/workflows"
	workflowPath  = "/workflow" // of a workflow; the id is a parameter, because it may be ".."
	workflowsRows = 50          // workflows of a page, more or less
)

// workflowLink returns the path of the page of a workflow.
func workflowLink(id string) string { return workflowPath + encodeQuery("id", id) }

// workflowRow is a workflow as pages show it.
type workflowRow struct{ workflow.Status }

// Link returns the path of the workflow's page.
func (w workflowRow) Link() string { return workflowLink(w.ID) }

// Class returns the class of the state's tag.
func (w workflowRow) Class() string {
	switch w.State {
	case workflow.StateDone:
		return "good"
	case workflow.StateDead, workflow.StateLate:
		return "bad"
	case workflow.StateCancelled:
		return "warn"
	}
	return ""
}

// Word says what the state means.
func (w workflowRow) Word() string {
	switch w.State {
	case workflow.StateStored:
		return "No node has handled its start yet."
	case workflow.StateDone:
		return "All jobs are done."
	case workflow.StateDead:
		return "Jobs are dead, and nothing else of it can run. If they are requeued and succeed, it goes on."
	case workflow.StateLate:
		return "Its deadline has passed. Its jobs go on."
	case workflow.StateCancelled:
		return "It ended without a push. Its jobs were left alone, and jobs that waited for others were dropped."
	}
	if w.Open {
		return "Jobs may be added until it is closed."
	}
	return "It waits for the end of its jobs."
}

// workflowBar is a part of the picture of a workflow's jobs.
type workflowBar struct {
	Name        string // the class, too
	Jobs        int
	From, Width float64 // in hundredths of the picture
}

// Bars returns the parts of the picture. A part with a job has at least a hundredth of it.
func (w workflowRow) Bars() []workflowBar {
	bars := []workflowBar{{Name: "done", Jobs: w.Done}, {Name: "running", Jobs: w.Running()}, {Name: "waiting", Jobs: w.Waiting}, {Name: "dead", Jobs: w.Dead}}
	if w.Dropped > 0 {
		bars = append(bars, workflowBar{Name: "dropped", Jobs: w.Dropped})
	}
	all, rest := 0, 100
	for _, b := range bars {
		if all += b.Jobs; b.Jobs > 0 {
			rest--
		}
	}
	at := 0.0
	for i := range bars {
		b := &bars[i]
		if b.From = at; b.Jobs > 0 {
			b.Width = 1 + float64(rest)*float64(b.Jobs)/float64(all)
		}
		at += b.Width
	}
	return bars
}

// Picture says in words what the picture shows.
func (w workflowRow) Picture() string {
	var parts []string
	for _, b := range w.Bars() {
		parts = append(parts, fmt.Sprintf("%s %s", formatCount(b.Jobs), b.Name))
	}
	return formatCountOf(w.Total, "job", "jobs") + ": " + strings.Join(parts, ", ")
}

// workflowsBody is the page of all workflows.
type workflowsBody struct {
	State       workflow.State // of the rows; "" for all
	States      []workflow.State
	Rows        []workflowRow
	First, Next string
	Now         time.Time
}

func (d *Dashboard) workflowsPage(r *http.Request) (view, error) {
	cursor, state := r.URL.Query().Get("cursor"), workflow.State(r.URL.Query().Get("state"))
	all, next, err := workflow.List(r.Context(), d.client, state, cursor, workflowsRows)
	if err != nil {
		return view{}, err
	}
	b := workflowsBody{State: state, States: workflow.ListedStates()}
	for _, one := range all {
		b.Rows = append(b.Rows, workflowRow{one})
	}
	if cursor != "" {
		b.First = workflowsPath + encodeQuery("state", string(state))
	}
	if next != "" {
		b.Next = workflowsPath + encodeQuery("state", string(state), "cursor", next)
	}
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "workflows", Title: "Workflows", Nav: workflowsPath, Again: true, Body: b}, nil
}

// memberRow is a job of a workflow as a page shows it.
type memberRow struct{ workflow.Member }

// Link returns the path of the job's page, "" if its id is not known.
func (m memberRow) Link() string {
	if m.Queue == "" {
		return ""
	}
	return jobLink(m.Queue, m.ID)
}

func memberRows(all []workflow.Member) (rows []memberRow) {
	for _, m := range all {
		rows = append(rows, memberRow{m})
	}
	return rows
}

// DeadRows returns the dead jobs that the page lists.
func (w workflowRow) DeadRows() []memberRow { return memberRows(w.DeadJobs) }

// WaitingRows returns the waiting jobs that the page lists.
func (w workflowRow) WaitingRows() []memberRow { return memberRows(w.WaitingJobs) }

// workflowBody is the page of a workflow.
type workflowBody struct {
	workflowRow
	Cancels   bool // a cancel was asked for, and no node has handled it yet
	MayClose  bool
	MayCancel bool
	API       string
	Now       time.Time
}

func (d *Dashboard) workflowPage(r *http.Request) (view, error) {
	id, err := askedID(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	s, err := workflow.Get(r.Context(), d.client, id)
	if err != nil {
		return view{}, explainUnknown(err, id)
	}
	b := workflowBody{workflowRow: workflowRow{s}, API: "/api/v1/workflows/" + url.PathEscape(id)}
	goesOn := s.Ended.IsZero()
	b.Cancels = goesOn && r.URL.Query().Get("asked") == "cancel"
	b.MayClose, b.MayCancel = auth.MayChange(r) && goesOn && s.Open, auth.MayChange(r) && goesOn && !b.Cancels
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "workflow", Title: id, Nav: workflowsPath, Again: goesOn, Body: b}, nil
}

// explainUnknown returns an error that says how long a workflow is kept, if there is none.
func explainUnknown(err error, id string) error {
	if errors.Is(err, workflow.ErrUnknown) {
		return web.NewProblem(http.StatusNotFound, "There is no workflow %s. A workflow is kept for a week after its end.", showID(id))
	}
	return err
}

// changeWorkflow closes or cancels a workflow.
func (d *Dashboard) changeWorkflow(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		form, err := readForm(w, r)
		if err != nil {
			return view{}, err
		}
		id, err := askedID(form)
		if err != nil {
			return view{}, err
		}
		back := workflowLink(id)
		switch form.Get("do") {
		case "close":
			err = d.operator.CloseWorkflow(r.Context(), auth.Who(r), id)
		case "cancel":
			err = d.operator.CancelWorkflow(r.Context(), auth.Who(r), id)
			back += "&asked=cancel"
		default:
			return view{}, web.NewProblem(http.StatusBadRequest, "do: got %.40q, must be close or cancel.", form.Get("do"))
		}
		return view{Redirect: back}, explainUnknown(err, id)
	})(w, r)
}
