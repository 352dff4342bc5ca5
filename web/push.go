package web

import (
	"errors"
	"net/http"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

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
