package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/wire"
)

// Run is one handler call for one id. Times are unix seconds, by Redis's clock.
type Run struct {
	JobID
	Verdict    browse.Verdict  `json:"verdict"`
	Attempt    int             `json:"attempt"` // since the job was last done, from 1
	RetryCount int             `json:"retry_count"`
	Shard      int             `json:"shard"`
	Due        float64         `json:"due"`
	Popped     float64         `json:"popped"`
	Began      *float64        `json:"began,omitempty"` // nil where nobody knows, as of crashes
	Ended      float64         `json:"ended"`
	Node       string          `json:"node"`
	Instance   string          `json:"instance"`
	Error      string          `json:"error,omitempty"`
	Log        string          `json:"log,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
}

// Runs are some of a queue's runs, or of an id's.
type Runs struct {
	Runs []Run `json:"runs"`
	// Cursor is for the parameter after: what is written from now on comes behind it.
	Cursor int64 `json:"cursor"`
	// Oldest is how far back was looked, in unix seconds: there may be older runs. nil: there are none that were asked for.
	Oldest *float64 `json:"oldest,omitempty"`
	// Changes are what people did to the id, of its history: the last one first, of those among the cluster's last 2,000 changes that name it.
	Changes []Change `json:"changes,omitempty"`
}

// unix is a time as the API has it.
func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// RunOf is a run as the API shows it.
func RunOf(r *browse.Run) Run {
	run := Run{
		JobID: JobIDOf(r.ID), Verdict: r.Verdict, Attempt: r.Attempt(), RetryCount: r.RetryCount, Shard: r.Shard,
		Due: unix(r.Due), Popped: unix(r.Popped), Ended: unix(r.Ended), Node: identity.NodeOf(r.Instance), Instance: r.Instance,
		Error: r.Error, Log: r.Log,
	}
	if !r.Began.IsZero() {
		run.Began = new(unix(r.Began))
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
		answer.Oldest = new(unix(found.Oldest))
	}
	return answer
}

var (
	historyQuery = []string{"limit"}
	journalQuery = []string{"verdict", "node", "contains", "since", "after", "limit"}
)

// runsMemory is what the journal's lines of one answer take at most, with what is made of them.
const runsMemory = 8 << 20

// history lists the runs of one id, the newest first.
func (a *api) history(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query := browse.RunQuery{ID: r.PathValue("id")}
	if err := readLimit(r.URL.Query(), maxLimit, &query.Limit); err != nil {
		return nil, err
	}
	if err := accountOf(r).take(runsMemory); err != nil {
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

// journal lists runs of a queue: the newest first, or with after those behind a cursor, the oldest first.
func (a *api) journal(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	values := r.URL.Query()
	query, err := a.runQuery(r, values)
	if err != nil {
		return nil, err
	}
	if err := accountOf(r).take(runsMemory); err != nil {
		return nil, err
	}
	var found browse.Runs
	if values.Has("after") {
		cursor, err := strconv.ParseInt(values.Get("after"), 10, 64)
		if err != nil || cursor < 0 {
			return nil, badField("after", "got %.40q, want the cursor of an answer, or 0", values.Get("after"))
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

// runQuery reads which runs are wanted.
func (a *api) runQuery(r *http.Request, values url.Values) (query browse.RunQuery, err error) {
	query.Node, query.Contains = values.Get("node"), values.Get("contains")
	for _, text := range values["verdict"] {
		for word := range strings.SplitSeq(text, ",") {
			verdict := browse.Verdict(word)
			if verdict.Letter() == "" {
				return query, badField("verdict", "got %.40q, want some of %s, with commas between them", word, words(browse.Verdicts()))
			}
			query.Verdicts = append(query.Verdicts, verdict)
		}
	}
	if query.Since, err = a.since(r.Context(), values.Get("since")); err != nil {
		return query, err
	}
	return query, readLimit(values, maxLimit, &query.Limit)
}

// since reads a time, or how long ago it was; "" is the zero time.
func (a *api) since(ctx context.Context, text string) (since time.Time, err error) {
	if text == "" {
		return since, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		now, err := a.client.Time(ctx)
		return now.Add(-ago), err
	}
	if since, err = ParseTime(text); err != nil {
		return since, badField("since", "got %.40q, want a time like 2026-01-02T15:04:05Z, unix seconds, or how long ago: 90m", text)
	}
	return since, nil
}
