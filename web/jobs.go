package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/wire"
)

// listJobs returns a route that lists jobs. Each request examines a bounded number of jobs, however long the list
// is, so a page may have few jobs or none although more follow.
func (a *api) listJobs(lists Lists) serveFunc {
	return a.ofQueue(func(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		query, err := lists.Query(r.URL.Query())
		if err != nil {
			return nil, err
		}
		page, err := browse.Of(q).Page(r.Context(), query)
		if err != nil {
			return nil, err
		}
		writePage(w, page)
		return nil, nil
	})
}

// listOrShowJobs lists jobs, or shows the job that the query names.
func (a *api) listOrShowJobs(w http.ResponseWriter, r *http.Request) (any, error) {
	id, ok, err := askedID(r.URL.Query())
	switch {
	case err != nil:
		return nil, err
	case ok:
		return a.showJob(id)(w, r)
	}
	return a.listJobs(jobLists)(w, r)
}

func (a *api) showJobOfPath(w http.ResponseWriter, r *http.Request) (any, error) {
	return a.showJob(r.PathValue("id"))(w, r)
}

func (a *api) showJob(id string) serveFunc {
	return a.ofQueue(func(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		job, ok, err := browse.Of(q).Job(r.Context(), id)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, a.noJob(r.Context(), q, id)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(appendListed(make([]byte, 0, lengthOf(job)), job), '\n'))
		return nil, nil
	})
}

// noJob returns the error about an id without a job.
func (a *api) noJob(ctx context.Context, q *protocol.Queue, id string) error {
	workflows, err := a.client.FindQueue(ctx, protocol.Workflows)
	if err != nil {
		return err
	}
	return NewProblem(http.StatusNotFound, "queue %q has no job %q: %s", q.Name, id, status.WhyAbsent(workflows != nil))
}

// lengthOf estimates the length of a job's JSON with its payloads in base64.
func lengthOf(job browse.Listed) int {
	n := 1024 + 2*len(job.Error)
	for _, p := range job.Payloads {
		n += 64 + len(p.Header) + base64.StdEncoding.EncodedLen(len(p.Data))
	}
	return n
}

// writePage writes a page by hand, because encoding/json would rewrite payloads. A JSON payload appears
// as it was pushed.
func writePage(w http.ResponseWriter, page browse.Page) {
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
	body = strconv.AppendBool(body, page.Ordered)
	if page.Through > 0 {
		body = append(body, `,"through":`...)
		body = strconv.AppendFloat(body, page.Through, 'f', 4, 64)
	}
	body = append(body, "}\n"...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// appendPaged appends a job of a page, with the full size of the parts that the page has cut.
func appendPaged(dst []byte, job browse.Listed) []byte {
	dst = appendListed(dst, job)
	dst = append(dst[:len(dst)-1], `,"payload_count":`...)
	dst = strconv.AppendInt(dst, int64(job.Count), 10)
	dst = append(dst, `,"payload_bytes":`...)
	dst = strconv.AppendInt(dst, int64(job.Bytes), 10)
	dst = append(dst, `,"cut":`...)
	return append(strconv.AppendBool(dst, job.Cut), '}')
}

// appendListed appends a job as package wire writes it, and where it is.
func appendListed(dst []byte, listed browse.Listed) []byte {
	job := listed.Job
	if listed.State == browse.StateMorgue {
		job.PerformAt = time.Time{} // PerformAt is the time of the burial, see below
	}
	dst = wire.AppendJob(dst, &job)
	dst = append(dst[:len(dst)-1], `,"state":"`...)
	dst = append(dst, listed.State...)
	dst = append(dst, `","shard":`...)
	dst = strconv.AppendInt(dst, int64(listed.Shard), 10)
	switch listed.State {
	case browse.StateInFlight:
		dst = append(dst, `,"flight":`...)
		dst = strconv.AppendInt(dst, listed.Flight, 10)
		dst = append(dst, `,"parked":`...)
		dst = strconv.AppendInt(dst, int64(listed.Parked), 10)
		dst = append(dst, `,"since":`...)
		dst = strconv.AppendFloat(dst, unixSeconds(listed.Since), 'f', -1, 64)
		if p := listed.Progress; p != nil {
			if text, err := json.Marshal(Progress{p.Share, p.Log, unixSeconds(p.At)}); err == nil {
				dst = append(append(dst, `,"progress":`...), text...)
			}
		}
	case browse.StateMorgue:
		dst = append(dst, `,"buried_at":`...)
		dst = strconv.AppendFloat(dst, unixSeconds(listed.PerformAt), 'f', -1, 64)
	}
	return append(dst, '}')
}

// errorGroups groups the errors of a state. A request examines at most the newest 5,000 jobs.
func (a *api) errorGroups(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query, err := errorLists.Query(r.URL.Query())
	if err != nil {
		return nil, err
	}
	found, err := browse.Of(q).Errors(r.Context(), query.State)
	if err != nil {
		return nil, err
	}
	groups := make([]ErrorGroup, len(found.Groups))
	for i, g := range found.Groups {
		groups[i] = ErrorGroup{g.Kind, g.Jobs, g.Payloads, unixSeconds(g.Newest), JobIDOf(g.Example), g.Error}
	}
	return Errors{query.State, groups, found.Examined, found.All}, nil
}

// errorLists are the states whose jobs have an error.
var errorLists = Lists{States: []browse.State{browse.StateFailed, browse.StateRetry, browse.StateBlocked, browse.StateMorgue}, Orders: []browse.Order{browse.ByDue}}

// pushJobs stores the jobs of the body. It reads all of them before it sends the first. It answers per job,
// unless it is certain that Redis has stored none of them. A job whose outcome is unknown is answered with
// retry, so that the client pushes it again.
func (a *api) pushJobs(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	if err := protocol.CheckNotReserved(q.Name); err != nil {
		return nil, err
	}
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	if err := memory.AccountOf(r.Context()).TakeAlone(jobsMemory(body)); err != nil {
		return nil, err
	}
	jobs, err := wire.ParseJobs(body)
	if err != nil {
		return nil, err
	}
	addTrace(jobs, traceOf(r.Header))
	if err := memory.AccountOf(r.Context()).TakeAlone(headersMemory(jobs)); err != nil {
		return nil, err
	}
	waits, err := waitOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if waits.wait > 0 {
		return a.pushAndWait(q, w, r, jobs, waits)
	}
	results, err := q.Push(r.Context(), jobs...)
	if err != nil && len(results) == 0 {
		return nil, err
	}
	if err := findOutage(results); err != nil {
		return nil, err
	}
	return Pushed{pushResults(jobs, results)}, nil
}

// traceParent matches the header of W3C Trace Context, which has version, trace, span and flags. A later version
// may have more parts. The version ff and a trace or a span of zeros are invalid.
var (
	traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?$`)
	noTrace     = regexp.MustCompile(`^(ff-|00-.{53}|..-0{32}|..-.{32}-0{16})`)
)

// traceOf returns the trace of a request as headers of a job, nil if it has none.
func traceOf(request http.Header) map[string]string {
	parents := request.Values("Traceparent")
	if len(parents) != 1 || !traceParent.MatchString(parents[0]) || noTrace.MatchString(parents[0]) {
		return nil
	}
	trace := map[string]string{"traceparent": parents[0]}
	if state := strings.Join(request.Values("Tracestate"), ","); state != "" && len(state) <= maxTraceState && utf8.ValidString(state) {
		trace["tracestate"] = state
	}
	return trace
}

// addTrace adds the trace of the request to jobs without a trace of their own. It leaves out jobs that have no
// room for it, because a job must not be refused for a header that its sender did not give.
func addTrace(jobs []lowkiq.Push, trace map[string]string) {
	header, err := lowkiq.NewHeader(trace)
	if header == "" || err != nil {
		return
	}
	for i := range jobs {
		own := jobs[i].Header
		if own["traceparent"] != "" || own["tracestate"] != "" || len(jobs[i].Payload)+lowkiq.MaxHeaderBytes > lowkiq.MaxPayloadBytes {
			continue
		}
		if len(own) == 0 {
			jobs[i].Header = trace
			continue
		}
		both := maps.Clone(trace)
		maps.Copy(both, own)
		if _, err := lowkiq.NewHeader(both); err == nil {
			jobs[i].Header = both
		}
	}
}

// maxTraceState bounds a tracestate that is passed on, bytes (W3C Trace Context, 3.3.1.5).
const maxTraceState = 512

// findOutage returns the error that kept all jobs from being stored, if Redis failed or the queue was deleted.
// It returns nil if a job was stored.
func findOutage(results []protocol.Result) (fault error) {
	for i := range results {
		switch err := results[i].Err; {
		case err == nil:
			return nil
		case fault == nil && (protocol.Transient(err) || errors.Is(err, lowkiq.ErrUnknownQueue)):
			fault = err
		}
	}
	return fault
}

func pushResults(jobs []lowkiq.Push, results []protocol.Result) []PushResult {
	answers := make([]PushResult, len(results))
	for i := range results {
		err := results[i].Err
		answers[i] = PushResult{JobID: JobIDOf(jobs[i].ID), OK: err == nil, Merged: results[i].Merged}
		if err != nil {
			answers[i].Error, answers[i].Retry = err.Error(), protocol.Transient(err)
		}
	}
	return answers
}
