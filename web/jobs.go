package web

import (
	"errors"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

// list is a route that lists jobs.
func (a *api) list(lists Lists) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.queue(r)
		if err != nil {
			return err
		}
		query, err := lists.Query(r.URL.Query())
		if err != nil {
			return err
		}
		if err := accountOf(r).take(int64(query.Limit) * bytesOfRow); err != nil {
			return err
		}
		page, err := q.Page(r.Context(), query)
		if err != nil {
			return err
		}
		writePage(w, page)
		return nil
	}
}

// jobs lists jobs, or shows one if the query names it.
func (a *api) jobs(w http.ResponseWriter, r *http.Request) error {
	id, ok, err := askedID(r.URL.Query())
	if err != nil {
		return err
	}
	if ok {
		return a.showJob(w, r, id)
	}
	return a.list(jobLists)(w, r)
}

func (a *api) oneJob(w http.ResponseWriter, r *http.Request) error {
	return a.showJob(w, r, r.PathValue("id"))
}

func (a *api) showJob(w http.ResponseWriter, r *http.Request, id string) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	if err := accountOf(r).take(bytesOfOne); err != nil {
		return err
	}
	job, ok, err := q.Job(r.Context(), id)
	if err != nil {
		return err
	}
	if !ok {
		return noJob(q, id)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(appendListed(nil, job), '\n'))
	return nil
}

func writePage(w http.ResponseWriter, page queue.Page) {
	body := append(make([]byte, 0, 4096), `{"jobs":[`...)
	for i, job := range page.Jobs {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendPaged(body, job)
	}
	body = append(body, `],"more":`...)
	body = strconv.AppendBool(body, page.Next != "")
	body = append(body, `,"next":"`...)
	body = append(body, page.Next...) // base64
	body = append(body, `","examined":`...)
	body = strconv.AppendInt(body, int64(page.Examined), 10)
	body = append(body, `,"ordered":`...)
	body = append(strconv.AppendBool(body, page.Ordered), "}\n"...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// appendPaged appends a job of a page, and how much there is of what the page has cut.
func appendPaged(dst []byte, job queue.Listed) []byte {
	dst = appendListed(dst, job)
	dst = append(dst[:len(dst)-1], `,"payload_count":`...)
	dst = strconv.AppendInt(dst, int64(job.Count), 10)
	dst = append(dst, `,"payload_bytes":`...)
	dst = strconv.AppendInt(dst, int64(job.Bytes), 10)
	dst = append(dst, `,"cut":`...)
	return append(strconv.AppendBool(dst, job.Cut), '}')
}

// appendListed appends a job as package wire writes it, and where it is.
func appendListed(dst []byte, listed queue.Listed) []byte {
	job := listed.Job
	if listed.State == queue.Dead {
		job.PerformAt = time.Time{} // it is the time of the burial, see below
	}
	dst = wire.AppendJob(dst, &job)
	dst = append(dst[:len(dst)-1], `,"state":"`...)
	dst = append(dst, listed.State...)
	dst = append(dst, `","shard":`...)
	dst = strconv.AppendInt(dst, int64(listed.Shard), 10)
	switch listed.State {
	case queue.InFlight:
		dst = append(dst, `,"flight":`...)
		dst = strconv.AppendInt(dst, listed.Flight, 10)
		dst = append(dst, `,"parked":`...)
		dst = strconv.AppendInt(dst, int64(listed.Parked), 10)
		dst = append(dst, `,"since":`...)
		dst = strconv.AppendFloat(dst, float64(listed.Since.UnixMicro())/1e6, 'f', -1, 64)
	case queue.Dead:
		dst = append(dst, `,"buried_at":`...)
		dst = strconv.AppendFloat(dst, float64(listed.PerformAt.UnixMicro())/1e6, 'f', -1, 64)
	}
	return append(dst, '}')
}

// ErrorGroup is the jobs whose last errors are of one kind.
type ErrorGroup struct {
	Kind     string  `json:"kind"` // what lists and actions take as their kind
	Jobs     int     `json:"jobs"`
	Payloads int     `json:"payloads"`
	Newest   float64 `json:"newest"` // unix seconds: of blocked and buried jobs the time of the newest, of failed ones the latest due time
	Example  jobID   `json:"example"`
	Error    string  `json:"error"` // of the example
}

// Errors are the kinds of errors of a queue's jobs in one state, most jobs first.
type Errors struct {
	State    queue.State  `json:"state"`
	Groups   []ErrorGroup `json:"groups"`
	Examined int          `json:"examined"` // how many jobs were looked at, the newest ones
	All      bool         `json:"all"`      // there are no others
}

// errorGroups groups the errors of a state. One call looks at the newest 5,000 jobs at most.
func (a *api) errorGroups(w http.ResponseWriter, r *http.Request) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	query, err := failing.Query(r.URL.Query())
	if err != nil {
		return err
	}
	found, err := q.Errors(r.Context(), query.State)
	if err != nil {
		return err
	}
	groups := make([]ErrorGroup, len(found.Groups))
	for i, g := range found.Groups {
		groups[i] = ErrorGroup{g.Kind, g.Jobs, g.Payloads, float64(g.Newest.UnixMicro()) / 1e6, jobIDOf(g.Example), g.Error}
	}
	return writeJSON(w, Errors{query.State, groups, found.Examined, found.All})
}

// failing are the states whose jobs have an error.
var failing = Lists{States: []queue.State{queue.Failed, queue.Retrying, queue.Waiting, queue.Dead}, Orders: []queue.Order{queue.ByDue}}

// pushResult is the answer to one pushed job.
type pushResult struct {
	jobID
	OK     bool   `json:"ok"`
	Merged bool   `json:"merged"` // an equal payload was waiting already
	Error  string `json:"error,omitempty"`
	// Retry: the job was not sent, or it is unknown whether it was stored; pushing it
	// again is safe and may work. Without it, the job was refused for what it is.
	Retry bool `json:"retry,omitempty"`
}

// jobID is an id in JSON: a string, or base64 where it is not UTF-8.
type jobID struct {
	Text   *string `json:"id,omitempty"`
	Base64 []byte  `json:"id_base64,omitempty"`
}

func jobIDOf(id string) jobID {
	if utf8.ValidString(id) {
		return jobID{Text: &id}
	}
	return jobID{Base64: []byte(id)}
}

// push stores the jobs of the body: all are read before the first is sent. It answers
// per job, but for a push of which Redis is known to have taken nothing.
func (a *api) push(w http.ResponseWriter, r *http.Request) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	body, err := a.body(w, r)
	if err != nil {
		return err
	}
	if err := accountOf(r).take(jobsMemory(body)); err != nil {
		return err
	}
	jobs, err := wire.ParseJobs(body)
	if err != nil {
		return err
	}
	results, err := q.Push(r.Context(), jobs...)
	if err != nil && len(results) == 0 {
		return err
	}
	if err := outage(results); err != nil {
		return err
	}
	return writeJSON(w, struct {
		Results []pushResult `json:"results"`
	}{pushResults(jobs, results)})
}

// outage returns why nothing was stored, if that was Redis's fault, or the queue was deleted.
func outage(results []queue.Result) (fault error) {
	for i := range results {
		switch err := results[i].Err; {
		case err == nil:
			return nil
		case fault == nil && (queue.Transient(err) || errors.Is(err, lowkiq.ErrUnknownQueue)):
			fault = err
		}
	}
	return fault
}

func pushResults(jobs []lowkiq.Push, results []queue.Result) []pushResult {
	answers := make([]pushResult, len(results))
	for i := range results {
		err := results[i].Err
		answers[i] = pushResult{jobID: jobIDOf(jobs[i].ID), OK: err == nil, Merged: results[i].Merged}
		if err != nil {
			answers[i].Error, answers[i].Retry = err.Error(), queue.Transient(err)
		}
	}
	return answers
}
