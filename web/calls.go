package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/wire"
)

// A push with ?wait= is a call. It is answered when its payloads have ended.
//
// The wait decides only when the answer comes. The jobs are stored as by any other push, and run even if the
// client goes or the wait is over. Redis then keeps each reply for the time keep. Whoever has the token of the
// answer can read the reply, from any node.

// Bounds of a push that waits.
const (
	MaxWait  = 5 * time.Minute
	MaxCalls = 1000 // jobs
)

// waiting has the wait and the keep of a query, 0 if there are none.
type waiting struct{ wait, keep time.Duration }

func waitOf(query url.Values) (w waiting, err error) {
	if w.wait, err = parseDuration(query, "wait", time.Millisecond, MaxWait); err != nil {
		return w, err
	}
	if w.keep, err = parseDuration(query, "keep", time.Second, protocol.MaxKeep); err != nil {
		return w, err
	}
	if w.keep > 0 && w.wait == 0 {
		return w, badField("keep", "it is the time for which the reply of a push with wait is kept; add wait=10s")
	}
	return w, nil
}

// parseDuration reads a query parameter. It returns 0 if there is none.
func parseDuration(query url.Values, name string, minimum, maximum time.Duration) (time.Duration, error) {
	text := query.Get(name)
	if text == "" && !query.Has(name) {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minimum || d > maximum {
		return 0, badField(name, "got %.40q, must be a duration from %s to %s, as in 10s", text, minimum, maximum)
	}
	return d, nil
}

// pushAndWait pushes jobs and waits for their ends, until the wait is over, the client has gone or the node
// ends. Jobs without an end are pending then.
func (a *api) pushAndWait(q *protocol.Queue, w http.ResponseWriter, r *http.Request, jobs []lowkiq.Push, waits waiting) (any, error) {
	if len(jobs) > MaxCalls {
		return nil, badField("wait", "%d jobs; a request waits for at most %d", len(jobs), MaxCalls)
	}
	ctx, cancel := context.WithTimeout(r.Context(), waits.wait)
	defer cancel()
	if arrived, ok := r.Context().Value(arrivalKey{}).(arrival); ok && arrived.ending != nil {
		defer context.AfterFunc(arrived.ending, cancel)()
	}
	calls, err := a.client.Calls(ctx, q.Name, waits.keepFor(), jobs...)
	if err != nil {
		return nil, err
	}
	if err := findOutage(pushesOf(calls)); err != nil {
		return nil, err
	}
	writeEnded(w, jobs, calls)
	return nil, nil
}

// writeEnded writes the answer to calls, a Pushed, call by call. The memory of the request has room for a single copy of the results.
func writeEnded(w http.ResponseWriter, jobs []lowkiq.Push, calls []protocol.Called) {
	w.Header().Set("Content-Type", "application/json")
	out, text := bufio.NewWriter(w), new(bytes.Buffer)
	enc := json.NewEncoder(text)
	enc.SetEscapeHTML(false)
	separator := `{"results":[`
	for i := range calls {
		_ = enc.Encode(CallResults(jobs[i:i+1], calls[i:i+1])[0]) // none of its fields can fail
		calls[i].Reply.Result = nil
		_, _ = out.WriteString(separator) // an error means that the client has gone
		_, _ = out.Write(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
		text.Reset()
		separator = ","
	}
	_, _ = out.WriteString("]}\n")
	_ = out.Flush()
}

// pushesOf returns the results of the pushes of calls. A call whose payload was not stored has no state.
func pushesOf(calls []protocol.Called) []protocol.Result {
	results := make([]protocol.Result, len(calls))
	for i := range calls {
		if calls[i].Reply.State == "" {
			results[i].Err = calls[i].Err
		}
	}
	return results
}

// CallResults returns the answer to calls.
func CallResults(jobs []lowkiq.Push, calls []protocol.Called) []PushResult {
	pushes := pushesOf(calls)
	answers := pushResults(jobs, pushes)
	for i := range calls {
		if pushes[i].Err == nil {
			answers[i].setReply(&calls[i].Reply, calls[i].Err)
			answers[i].ResultKept = calls[i].Kept
		}
	}
	return answers
}

// keepFor returns how long replies are kept after the end of their payloads. By default that is the wait
// and DefaultKeep.
func (w waiting) keepFor() time.Duration {
	if w.keep > 0 {
		return w.keep
	}
	return w.wait + protocol.DefaultKeep
}

// setReply adds the end of a call.
func (p *PushResult) setReply(reply *lowkiq.Reply, err error) {
	p.State, p.Token, p.Error = reply.State, reply.Token, reply.Error
	if err != nil { // the result cannot be decoded here
		p.Error = err.Error()
	}
	if reply.Result != nil {
		p.Result = wire.AppendPayload(nil, reply.Result)
	}
}

// showReply answers with the end of a call. The token is a secret of 128 random bits, which only the answer to
// the push has. A wrong token, the token of another id, and a reply that is no longer kept all get the answer
// 404, so a guess reveals nothing.
func (a *api) showReply(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
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
