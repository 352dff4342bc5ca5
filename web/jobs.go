package web

import (
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
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/wire"
)

// list is a route that lists jobs.
func (a *api) list(lists Lists) serveFunc {
	return a.ofQueue(func(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		query, err := lists.Query(r.URL.Query())
		if err != nil {
			return nil, err
		}
		if err := accountOf(r).take(int64(query.Limit) * bytesOfRow); err != nil {
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

// jobs lists jobs, or shows one if the query names it.
func (a *api) jobs(w http.ResponseWriter, r *http.Request) (any, error) {
	id, ok, err := askedID(r.URL.Query())
	switch {
	case err != nil:
		return nil, err
	case ok:
		return a.showJob(id)(w, r)
	}
	return a.list(jobLists)(w, r)
}

func (a *api) oneJob(w http.ResponseWriter, r *http.Request) (any, error) {
	return a.showJob(r.PathValue("id"))(w, r)
}

func (a *api) showJob(id string) serveFunc {
	return a.ofQueue(func(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
		if err := accountOf(r).take(bytesOfOne); err != nil {
			return nil, err
		}
		job, ok, err := browse.Of(q).Job(r.Context(), id)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, noJob(q, id)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(appendListed(nil, job), '\n'))
		return nil, nil
	})
}

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

// appendPaged appends a job of a page, and how much there is of what the page has cut.
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
		job.PerformAt = time.Time{} // it is the time of the burial, see below
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
		dst = strconv.AppendFloat(dst, float64(listed.Since.UnixMicro())/1e6, 'f', -1, 64)
		if p := listed.Progress; p != nil {
			if text, err := json.Marshal(Progress{p.Share, p.Log, float64(p.At.UnixMicro()) / 1e6}); err == nil {
				dst = append(append(dst, `,"progress":`...), text...)
			}
		}
	case browse.StateMorgue:
		dst = append(dst, `,"buried_at":`...)
		dst = strconv.AppendFloat(dst, float64(listed.PerformAt.UnixMicro())/1e6, 'f', -1, 64)
	}
	return append(dst, '}')
}

// errorGroups groups the errors of a state. One call looks at the newest 5,000 jobs at most.
func (a *api) errorGroups(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query, err := failing.Query(r.URL.Query())
	if err != nil {
		return nil, err
	}
	found, err := browse.Of(q).Errors(r.Context(), query.State)
	if err != nil {
		return nil, err
	}
	groups := make([]ErrorGroup, len(found.Groups))
	for i, g := range found.Groups {
		groups[i] = ErrorGroup{g.Kind, g.Jobs, g.Payloads, float64(g.Newest.UnixMicro()) / 1e6, JobIDOf(g.Example), g.Error}
	}
	return Errors{query.State, groups, found.Examined, found.All}, nil
}

// failing are the states whose jobs have an error.
var failing = Lists{States: []browse.State{browse.StateFailed, browse.StateRetry, browse.StateBlocked, browse.StateMorgue}, Orders: []browse.Order{browse.ByDue}}

// push stores the jobs of the body: all are read before the first is sent. It answers
// per job, but for a push of which Redis is known to have taken nothing.
func (a *api) push(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	if err := accountOf(r).take(jobsMemory(body)); err != nil {
		return nil, err
	}
	jobs, err := wire.ParseJobs(body)
	if err != nil {
		return nil, err
	}
	traced(jobs, traceOf(r.Header))
	if err := accountOf(r).take(headersMemory(jobs)); err != nil {
		return nil, err
	}
	waits, err := waitOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if waits.wait > 0 {
		return a.call(q, r, jobs, waits)
	}
	results, err := q.Push(r.Context(), jobs...)
	if err != nil && len(results) == 0 {
		return nil, err
	}
	if err := outage(results); err != nil {
		return nil, err
	}
	return Pushed{pushResults(jobs, results)}, nil
}

// traceParent is W3C Trace Context's: version, trace, span, flags; of a later version there may be
// more. ff is no version, and zeros are no trace and no span.
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

// traced gives jobs without a trace of their own that of the request, where there is room for it: a
// job must not be refused for what its pusher did not say.
func traced(jobs []lowkiq.Push, trace map[string]string) {
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

// maxTraceState is what a tracestate has at most to be handed on, bytes (W3C Trace Context, 3.3.1.5).
const maxTraceState = 512

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

func pushResults(jobs []lowkiq.Push, results []queue.Result) []PushResult {
	answers := make([]PushResult, len(results))
	for i := range results {
		err := results[i].Err
		answers[i] = PushResult{JobID: JobIDOf(jobs[i].ID), OK: err == nil, Merged: results[i].Merged}
		if err != nil {
			answers[i].Error, answers[i].Retry = err.Error(), queue.Transient(err)
		}
	}
	return answers
}
