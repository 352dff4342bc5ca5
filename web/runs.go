package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/wire"
)

// Run is a handler call for an id. Times are unix seconds, by Redis's clock.
type Run struct {
	JobID
	Verdict    browse.Verdict  `json:"verdict"`
	Attempt    int             `json:"attempt"`     // since the job was last done, from 1
	RetryCount int             `json:"retry_count"` // of the job after the run; -1 if it has not failed
	Shard      int             `json:"shard"`
	Due        float64         `json:"due"`             // when the job was due
	Popped     float64         `json:"popped"`          // when the shard's owner popped it
	Began      *float64        `json:"began,omitempty"` // when its handler was called; absent if it is unknown, as after crashes
	Ended      float64         `json:"ended"`
	Node       string          `json:"node"`
	Instance   string          `json:"instance"`
	Error      string          `json:"error,omitempty"`  // the most useful line of the error, at most 200 bytes
	Log        string          `json:"log,omitempty"`    // the last kilobyte of its handler's notes
	Result     json.RawMessage `json:"result,omitempty"` // its handler's answer of at most 1 KiB, in the form of a payload
}

// Runs has runs of a queue or of an id.
type Runs struct {
	Runs []Run `json:"runs"`
	// Cursor is the value of the parameter after for runs that are written later.
	Cursor int64 `json:"cursor"`
	// Oldest says how far back runs were searched, in unix seconds. It is absent if there are no older runs.
	Oldest *float64 `json:"oldest,omitempty"`
	// Changes are the changes by people that name the id, newest first, from the last 2,000 changes of the cluster. Only histories of ids have them.
	Changes []Change `json:"changes,omitempty"`
}

// unixSeconds returns a time in the form of the API, seconds since 1970.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// RunOf returns a run in the form of the API.
func RunOf(r *browse.Run) Run {
	run := Run{
		JobID: JobIDOf(r.ID), Verdict: r.Verdict, Attempt: r.Attempt(), RetryCount: r.RetryCount, Shard: r.Shard,
		Due: unixSeconds(r.Due), Popped: unixSeconds(r.Popped), Ended: unixSeconds(r.Ended), Node: identity.NodeOf(r.Instance), Instance: r.Instance,
		Error: r.Error, Log: r.Log,
	}
	if !r.Began.IsZero() {
		run.Began = new(unixSeconds(r.Began))
	}
	if r.Result != nil {
		run.Result = wire.AppendPayload(nil, r.Result)
	}
	return run
}

func runsOf(found browse.Runs) Runs {
	answer := Runs{Runs: make([]Run, len(found.List)), Cursor: found.Cursor}
	for i := range found.List {
		answer.Runs[i] = RunOf(&found.List[i])
	}
	if !found.Oldest.IsZero() {
		answer.Oldest = new(unixSeconds(found.Oldest))
	}
	return answer
}

// listRunsOfJob lists the runs of an id, the newest first.
func (a *api) listRunsOfJob(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query := browse.RunQuery{ID: r.PathValue("id")}
	if err := readLimit(r.URL.Query(), maxLimit, &query.Limit); err != nil {
		return nil, err
	}
	found, err := browse.Of(q).Runs(r.Context(), query)
	if err != nil {
		return nil, err
	}
	answer := runsOf(found)
	lines, _, err := changes.In(a.client.DB()).Read(r.Context(), changes.Query{Queue: q.Name, ID: query.ID, Look: 2000})
	answer.Changes = ChangesOf(lines)
	return answer, err
}

// listRuns lists runs of a queue, the newest first. With the parameter after it lists the runs behind a cursor, the oldest first.
func (a *api) listRuns(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	query, err := a.runQuery(r, values)
	if err != nil {
		return nil, err
	}
	var found browse.Runs
	if values.Has("after") {
		cursor, err := strconv.ParseInt(values.Get("after"), 10, 64)
		if err != nil || cursor < 0 {
			return nil, badField("after", "got %.40q, must be the cursor of an answer, or 0", values.Get("after"))
		}
		found, err = browse.Of(q).RunsAfter(r.Context(), cursor, query)
		if err != nil {
			return nil, err
		}
	} else if found, err = browse.Of(q).Runs(r.Context(), query); err != nil {
		return nil, err
	}
	return runsOf(found), nil
}

// runQuery reads the parameters that choose runs.
func (a *api) runQuery(r *http.Request, values url.Values) (query browse.RunQuery, err error) {
	query.Node, query.Contains = values.Get("node"), values.Get("contains")
	for _, text := range values["verdict"] {
		for word := range strings.SplitSeq(text, ",") {
			verdict := browse.Verdict(word)
			if verdict.Letter() == "" {
				return query, badField("verdict", "got %.40q, must be some of %s, with commas between them", word, joinWords(browse.Verdicts()))
			}
			query.Verdicts = append(query.Verdicts, verdict)
		}
	}
	if query.Since, err = a.parseSince(r.Context(), values.Get("since")); err != nil {
		return query, err
	}
	return query, readLimit(values, maxLimit, &query.Limit)
}

// parseSince reads a time, or a duration that is subtracted from now. A duration counts from Redis's
// clock, as the stored times do. "" is the zero time.
func (a *api) parseSince(ctx context.Context, text string) (since time.Time, err error) {
	if text == "" {
		return since, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		now, err := a.client.Time(ctx)
		return now.Add(-ago), err
	}
	if since, err = ParseTime(text); err != nil {
		return since, badField("since", "got %.40q, must be a time like 2026-01-02T15:04:05Z, unix seconds, or a duration before now like 90m", text)
	}
	return since, nil
}
