package web

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// Recurring is something that is pushed again and again. Times are unix seconds, by Redis's clock.
type Recurring struct {
	Name     string            `json:"name"`
	Schedule string            `json:"schedule"` // in words
	Cron     string            `json:"cron,omitempty"`
	Zone     string            `json:"zone,omitempty"`
	Every    string            `json:"every,omitempty"` // as 30s
	Offset   string            `json:"offset,omitempty"`
	Jitter   string            `json:"jitter,omitempty"`
	Queue    string            `json:"queue"`
	ID       string            `json:"id"`
	Payload  json.RawMessage   `json:"payload,omitempty"`
	Header   map[string]string `json:"header,omitempty"`
	Missed   recurring.Missed  `json:"missed"`
	Backlog  int               `json:"backlog,omitempty"`

	Origin      recurring.Origin `json:"origin"`
	Edited      bool             `json:"edited"` // at run time, of an entry of a file
	Paused      bool             `json:"paused"`
	Next        *float64         `json:"next,omitempty"`      // when it is pushed next
	Last        *float64         `json:"last,omitempty"`      // the tick that was last pushed, left out or refused
	PushedAt    *float64         `json:"pushed_at,omitempty"` // when that was
	MissedTicks int64            `json:"missed_ticks"`        // left out or refused
	Error       string           `json:"error,omitempty"`     // why the last tick was refused, or the entry cannot be read
	Late        float64          `json:"late_s"`              // for how long its tick has been due
}

// AllRecurring is all that recurs, by name.
type AllRecurring struct {
	Recurring []Recurring `json:"recurring"`
}

// Upcoming are the next times at which something is pushed, in unix seconds.
type Upcoming struct {
	Name  string    `json:"name"`
	Times []float64 `json:"times"`
}

// Removed answers the removal of what recurs.
type Removed struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
}

// RecurringOf is an entry as the API shows it.
func RecurringOf(e recurring.Entry) Recurring {
	duration := func(d recurring.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	r := Recurring{
		Name: e.Name, Schedule: e.Schedule, Cron: e.Cron, Zone: e.Zone, Every: duration(e.Every), Offset: duration(e.Offset), Jitter: duration(e.Jitter),
		Queue: e.Queue, ID: e.ID, Payload: e.Payload, Header: e.Header, Missed: e.Spec.Missed, Backlog: e.Backlog,
		Origin: e.Origin, Edited: e.Edited, Paused: e.Paused, MissedTicks: e.Missed, Error: e.Error, Late: e.Late,
	}
	if e.Next != nil {
		r.Next = new(unix(*e.Next))
	}
	if e.Last != nil {
		r.Last, r.PushedAt = new(unix(*e.Last)), new(unix(*e.Pushed))
	}
	return r
}

// recurs writes a change of an entry down, and answers with the entry as it is now.
func (a *api) recurs(r *http.Request, action string) (any, error) {
	name := r.PathValue("entry")
	e, err := recurring.Of(a.client).Entry(r.Context(), name)
	line := changes.Line{Action: action, Target: name}
	if err == nil {
		line.Queue = e.Queue
		line.New, _ = json.Marshal(e.Spec) // it was read from JSON
	}
	WriteDown(a.node, a.cfg.Log, r, line)
	return RecurringOf(e), err
}

const wantSpec = `an entry such as {"cron":"0 6 * * 1-5","zone":"Europe/Berlin","queue":"reports","payload":{"day":"{tick}"}}, or {"every":"30s","queue":"sync"}`

func (a *api) recurringRoutes() []route {
	rows := []route{
		{pattern: "GET /api/v1/recurring", about: "all that recurs", path: "/api/v1/recurring", serve: a.allRecurring},
		{pattern: "GET {entry}", about: "one thing that recurs", path: "", serve: func(_ http.ResponseWriter, r *http.Request) (any, error) { return a.oneRecurring(r) }},
		{pattern: "GET {entry}/next", about: "the next times at which it is pushed", query: []string{"limit"}, path: "/next?limit=3", serve: a.upcoming},
		{pattern: "POST {entry}", about: "add something that recurs", path: "", body: `{"every":"30s","queue":"orders","payload":{"at":"{tick}"}}`, serve: a.addRecurring},
		{pattern: "POST {entry}/edit", about: "change some of its fields, of one from a file until it is reset", path: "/edit", body: `{"every":"1m"}`, serve: a.editRecurring},
		{pattern: "POST {entry}/pause", about: "let its ticks go by", path: "/pause", serve: a.changeRecurring("pause recurring", (*recurring.Book).Pause)},
		{pattern: "POST {entry}/resume", about: "go on with its next tick", path: "/resume", serve: a.changeRecurring("resume recurring", (*recurring.Book).Resume)},
		{pattern: "POST {entry}/reset", about: "make it what its file says", path: "/reset", serve: a.changeRecurring("reset recurring", (*recurring.Book).Reset)},
		{pattern: "POST {entry}/run", about: "push its job now, whatever its ticks are", path: "/run", serve: a.runRecurring},
		{pattern: "POST {entry}/remove", about: "remove it; one from a file cannot be removed, only paused", path: "/remove", serve: a.removeRecurring},
	}
	for i := range rows[1:] {
		rt := &rows[1+i]
		method := rt.method()
		rt.pattern = method + " /api/v1/recurring/" + rt.pattern[len(method)+1:]
		rt.path = "/api/v1/recurring/report" + rt.path
	}
	return rows
}

func (a *api) allRecurring(_ http.ResponseWriter, r *http.Request) (any, error) {
	entries, err := recurring.Of(a.client).List(r.Context())
	if err != nil {
		return nil, err
	}
	all := make([]Recurring, len(entries))
	for i := range entries {
		all[i] = RecurringOf(entries[i])
	}
	return AllRecurring{all}, nil
}

func (a *api) oneRecurring(r *http.Request) (any, error) {
	e, err := recurring.Of(a.client).Entry(r.Context(), r.PathValue("entry"))
	if err != nil {
		return nil, err
	}
	return RecurringOf(e), nil
}

func (a *api) upcoming(_ http.ResponseWriter, r *http.Request) (any, error) {
	n, name := 10, r.PathValue("entry")
	if r.URL.Query().Has("limit") {
		if err := readLimit(r.URL.Query(), maxLimit, &n); err != nil {
			return nil, err
		}
	}
	times, err := recurring.Of(a.client).Upcoming(r.Context(), name, n)
	if err != nil {
		return nil, err
	}
	answer := Upcoming{name, make([]float64, len(times))}
	for i, t := range times {
		answer.Times[i] = unix(t)
	}
	return answer, nil
}

// changeRecurring is a change without a body, which answers with the entry.
func (a *api) changeRecurring(action string, change func(b *recurring.Book, ctx context.Context, name string) error) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if err := a.optional(w, r, &struct{}{}, wantNothing); err != nil {
			return nil, err
		}
		if err := change(recurring.Of(a.client), r.Context(), r.PathValue("entry")); err != nil {
			return nil, err
		}
		return a.recurs(r, action)
	}
}

func (a *api) addRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	var spec recurring.Spec
	if err := decodeBody(body, &spec, wantSpec); err != nil {
		return nil, err
	}
	if err := recurring.Of(a.client).Add(r.Context(), r.PathValue("entry"), spec); err != nil {
		return nil, err
	}
	return a.recurs(r, "add recurring")
}

func (a *api) editRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	edit := func(spec *recurring.Spec) error { return EditRecurring(spec, body) }
	if err := edit(&recurring.Spec{}); err != nil { // what is no JSON is so whatever the entry is
		return nil, err
	}
	if err := recurring.Of(a.client).Edit(r.Context(), r.PathValue("entry"), edit); err != nil {
		return nil, err
	}
	return a.recurs(r, "edit recurring")
}

// EditRecurring replaces the fields of an entry that a JSON object has. Who sets cron has it come by cron and no
// longer by an interval, and the other way round.
func EditRecurring(spec *recurring.Spec, body []byte) error {
	var said recurring.Spec
	if err := decodeBody(body, &said, wantSpec+"; fields that are left out stay as they are"); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return err
	}
	has := func(name string) bool { _, there := fields[name]; return there }
	switch {
	case has("cron") && said.Cron != "":
		spec.Every, spec.Offset = 0, 0
	case has("every") && said.Every != 0:
		spec.Cron, spec.Zone = "", ""
	}
	if has("missed") && said.Missed != recurring.All {
		spec.Backlog = 0
	}
	for name, set := range map[string]func(){
		"cron": func() { spec.Cron = said.Cron }, "zone": func() { spec.Zone = said.Zone }, "every": func() { spec.Every = said.Every },
		"offset": func() { spec.Offset = said.Offset }, "jitter": func() { spec.Jitter = said.Jitter }, "queue": func() { spec.Queue = said.Queue },
		"id": func() { spec.ID = said.ID }, "payload": func() { spec.Payload = slices.Clone(said.Payload) }, "header": func() { spec.Header = said.Header },
		"missed": func() { spec.Missed = said.Missed }, "backlog": func() { spec.Backlog = said.Backlog },
	} {
		if has(name) {
			set()
		}
	}
	return nil
}

func (a *api) runRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.optional(w, r, &struct{}{}, wantNothing); err != nil {
		return nil, err
	}
	book, name := recurring.Of(a.client), r.PathValue("entry")
	e, err := book.Entry(r.Context(), name)
	if err != nil {
		return nil, err
	}
	result, err := book.Run(r.Context(), name)
	if err != nil {
		return nil, err
	}
	WriteDown(a.node, a.cfg.Log, r, changes.Line{Action: "run recurring", Queue: e.Queue, Target: name, IDs: []string{e.ID}})
	return Pushed{pushResults([]lowkiq.Push{{ID: e.ID}}, []queue.Result{result})}, nil
}

func (a *api) removeRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.optional(w, r, &struct{}{}, wantNothing); err != nil {
		return nil, err
	}
	name := r.PathValue("entry")
	e, err := recurring.Of(a.client).Entry(r.Context(), name)
	if err == nil {
		err = recurring.Of(a.client).Remove(r.Context(), name)
	}
	if err != nil {
		return nil, err
	}
	line := changes.Line{Action: "remove recurring", Queue: e.Queue, Target: name}
	line.Old, _ = json.Marshal(e.Spec) // it was read from JSON
	WriteDown(a.node, a.cfg.Log, r, line)
	return Removed{name, true}, nil
}
