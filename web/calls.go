package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

// A push with ?wait= answers when its payloads have ended: calls.

// Bounds of one push that waits.
const (
	MaxWait  = 5 * time.Minute
	MaxCalls = 1000 // jobs
	// bytesOfCall is what a call takes while it waits; results come on top when they are there.
	bytesOfCall = 4 << 10
)

// waiting is what the query says of the wait; no wait: 0.
type waiting struct{ wait, keep time.Duration }

func waitOf(query url.Values) (w waiting, err error) {
	if w.wait, err = duration(query, "wait", time.Millisecond, MaxWait); err != nil {
		return w, err
	}
	if w.keep, err = duration(query, "keep", time.Second, queue.MaxKeep); err != nil {
		return w, err
	}
	if w.keep > 0 && w.wait == 0 {
		return w, badField("keep", "is how long the reply of a push with wait is kept: say wait=10s, too")
	}
	return w, nil
}

// duration reads a query parameter, 0 if it is not there.
func duration(query url.Values, name string, least, most time.Duration) (time.Duration, error) {
	text := query.Get(name)
	if text == "" && !query.Has(name) {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, badField(name, "got %.40q, want a duration from %s to %s, as in 10s", text, least, most)
	}
	return d, nil
}

// call pushes jobs and waits for their ends, until the wait is over, the client has gone or the node
// ends: what has no end then is pending.
func (a *api) call(q *queue.Queue, r *http.Request, jobs []lowkiq.Push, w waiting) (any, error) {
	if len(jobs) > MaxCalls {
		return nil, badField("wait", "%d jobs, and one request waits for %d at most", len(jobs), MaxCalls)
	}
	if err := accountOf(r).take(int64(len(jobs)) * bytesOfCall); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), w.wait)
	defer cancel()
	if arrived, ok := r.Context().Value(arrivalKey{}).(arrival); ok && arrived.ending != nil {
		defer context.AfterFunc(arrived.ending, cancel)()
	}
	calls, err := a.client.Calls(ctx, q.Name, w.keepFor(), jobs...)
	if err != nil {
		return nil, err
	}
	if err := outage(pushesOf(calls)); err != nil {
		return nil, err
	}
	answers := Ended(jobs, calls)
	for i := range answers { // a result for which the request has no memory stays where it is
		if account := accountOf(r); account.take(copiesOfBody*int64(len(answers[i].Result))) != nil {
			answers[i].Result, answers[i].ResultKept = nil, true
		}
	}
	return Pushed{answers}, nil
}

// pushesOf are the pushes of calls.
func pushesOf(calls []queue.Called) []queue.Result {
	results := make([]queue.Result, len(calls))
	for i := range calls {
		if calls[i].Reply.State == "" {
			results[i].Err = calls[i].Err
		}
	}
	return results
}

// Ended is the answer to calls.
func Ended(jobs []lowkiq.Push, calls []queue.Called) []PushResult {
	pushes := pushesOf(calls)
	answers := pushResults(jobs, pushes)
	for i := range calls {
		if pushes[i].Err == nil {
			answers[i].tell(&calls[i].Reply, calls[i].Err)
		}
	}
	return answers
}

// keepFor is how long replies are kept.
func (w waiting) keepFor() time.Duration {
	if w.keep > 0 {
		return w.keep
	}
	return w.wait + queue.DefaultKeep
}

// tell adds how a call has ended.
func (p *PushResult) tell(reply *lowkiq.Reply, err error) {
	p.State, p.Token, p.Error = reply.State, reply.Token, reply.Error
	if err != nil { // it cannot be decoded here
		p.Error = err.Error()
	}
	if reply.Result != nil {
		p.Result = wire.AppendPayload(nil, reply.Result)
	}
}

// reply answers how a call has ended.
func (a *api) reply(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	if err := accountOf(r).take(copiesOfBody * lowkiq.MaxResultBytes); err != nil {
		return nil, err
	}
	reply, err := a.client.Reply(r.Context(), q.Name, id, r.PathValue("token"))
	switch {
	case errors.Is(err, lowkiq.ErrNoReply):
		return nil, NewProblem(http.StatusNotFound, "%v", err)
	case err != nil:
		return nil, err
	}
	answer := Reply{JobID: JobIDOf(id), State: reply.State, Error: reply.Error}
	if reply.Result != nil {
		answer.Result = json.RawMessage(wire.AppendPayload(nil, reply.Result))
	}
	return answer, nil
}
