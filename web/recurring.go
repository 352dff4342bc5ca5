package web

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Recurring is a recurring entry. Times are unix seconds, by Redis's clock.
type Recurring struct {
	Name     string `json:"name"`
	Schedule string `json:"schedule"` // in words
	recurring.Spec

	Origin      recurring.Origin `json:"origin"`
	Edited      bool             `json:"edited"` // whether an entry of a file was changed at run time
	Paused      bool             `json:"paused"`
	Next        *float64         `json:"next,omitempty"`      // its next tick
	Last        *float64         `json:"last,omitempty"`      // the tick that was last pushed, left out or refused
	PushedAt    *float64         `json:"pushed_at,omitempty"` // when the last tick was pushed, left out or refused
	MissedTicks int64            `json:"missed_ticks"`        // ticks that were left out or refused
	Error       string           `json:"error,omitempty"`     // why the last tick was refused, or the entry cannot be read
	Late        float64          `json:"late_s"`              // time since its tick became due
}

// AllRecurring has all recurring entries, by name.
type AllRecurring struct {
	Recurring []Recurring `json:"recurring"`
}

// Upcoming has the next ticks of a recurring entry, in unix seconds.
type Upcoming struct {
	Name  string    `json:"name"`
	Times []float64 `json:"times"`
}

// Removed answers the removal of a recurring entry.
type Removed struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
}

// RecurringOf returns an entry in the form of the API.
func RecurringOf(e recurring.Entry) Recurring {
	r := Recurring{Name: e.Name, Schedule: e.Schedule, Spec: e.Spec, Origin: e.Origin, Edited: e.Edited, Paused: e.Paused,
		MissedTicks: e.Missed, Error: e.Error, Late: e.Late}
	if e.Next != nil {
		r.Next = new(unixSeconds(*e.Next))
	}
	if e.Last != nil {
		r.Last, r.PushedAt = new(unixSeconds(*e.Last)), new(unixSeconds(*e.Pushed))
	}
	return r
}

const bodySpec = `an entry like {"cron":"0 6 * * 1-5","zone":"Europe/Berlin","queue":"reports","payload":{"day":"{tick}"}}, ` +
	`or {"every":"30s","queue":"sync"}`

func (a *api) recurringRoutes() []route {
	rows := []route{
		{name: "allRecurring", pattern: "GET /api/v1/recurring", about: "all recurring entries", path: "/api/v1/recurring",
			gives: AllRecurring{}, serve: a.listRecurring},
		{name: "oneRecurring", pattern: "GET /api/v1/recurring/{entry}", about: "one recurring entry", path: "/api/v1/recurring/report",
			gives: Recurring{}, fails: []int{404}, serve: a.showRecurring},
		{name: "upcoming", pattern: "GET /api/v1/recurring/{entry}/next", about: "the next times at which it is pushed", query: nextQuery,
			path: "/api/v1/recurring/report/next?limit=3", gives: Upcoming{}, fails: []int{404}, serve: a.listUpcoming},
		routeOf(actions.AddEntry, route{
			more: "409: there is an entry of this name. Its first tick is the next tick from now on. Its queue must be registered.",
			body: `{"every":"30s","queue":"orders","payload":{"at":"{tick}"}}`, takes: recurring.Spec{}, gives: Recurring{}, fails: []int{404, 409}, serve: a.addRecurring}),
		routeOf(actions.EditEntry, route{
			more: "Fields that are left out stay as they are. A cron takes the place of every, and the other way round. Its next tick is after now.",
			body: `{"every":"1m"}`, takes: partial{recurring.Spec{}}, gives: Recurring{}, fails: []int{404, 409}, serve: a.editRecurring}),
	}
	answers := map[string]any{"run recurring": Pushed{}, "remove recurring": Removed{}}
	for _, action := range actions.All() {
		if action.On == actions.OnEntry && action != actions.AddEntry && action != actions.EditEntry {
			rows = append(rows, routeOf(action, route{takes: nothing{}, optional: true, gives: cmp.Or(answers[action.Name], any(Recurring{})), fails: []int{404, 409},
				serve: a.changeRecurring(action)}))
		}
	}
	return rows
}

func (a *api) listRecurring(_ http.ResponseWriter, r *http.Request) (any, error) {
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

func (a *api) showRecurring(_ http.ResponseWriter, r *http.Request) (any, error) {
	e, err := recurring.Of(a.client).Entry(r.Context(), r.PathValue("entry"))
	if err != nil {
		return nil, err
	}
	return RecurringOf(e), nil
}

func (a *api) listUpcoming(_ http.ResponseWriter, r *http.Request) (any, error) {
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
		answer.Times[i] = unixSeconds(t)
	}
	return answer, nil
}

// changeRecurring returns the route of an action on a recurring entry. The action takes no body.
func (a *api) changeRecurring(action *actions.Action) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if err := a.readOptionalBody(w, r, &struct{}{}, bodyNothing); err != nil {
			return nil, err
		}
		name := r.PathValue("entry")
		done, err := a.operator.Do(r.Context(), actions.Request{Action: action, By: auth.Who(r), Target: name})
		switch {
		case err != nil:
			return nil, err
		case action.Destroys:
			return Removed{name, true}, nil
		case done.Pushed != nil:
			return Pushed{pushResults([]lowkiq.Push{{ID: done.Entry.ID}}, []protocol.Result{*done.Pushed})}, nil
		}
		return RecurringOf(done.Entry), nil
	}
}

func (a *api) addRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	spec, _, err := decodeSpec(body, bodySpec)
	if err != nil {
		return nil, err
	}
	e, err := a.operator.AddEntry(r.Context(), auth.Who(r), r.PathValue("entry"), spec)
	return RecurringOf(e), err
}

// editRecurring changes the fields of an entry that the body has. The edit is applied to the entry as Redis has
// it at that moment, so two edits of different fields are both kept.
func (a *api) editRecurring(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	edit := func(spec *recurring.Spec) error { return EditRecurring(spec, body) }
	if err := edit(&recurring.Spec{}); err != nil { // refuse malformed JSON before the entry is read
		return nil, err
	}
	e, err := a.operator.EditEntry(r.Context(), auth.Who(r), r.PathValue("entry"), edit)
	return RecurringOf(e), err
}

// decodeSpec reads an entry, and returns the names of the fields that the body has. shape is that of decodeBody.
func decodeSpec(body []byte, shape string) (spec recurring.Spec, given []string, err error) {
	if err := decodeBody(body, &spec, shape); err != nil {
		return spec, nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return spec, nil, err
	}
	for name := range fields {
		i := slices.IndexFunc(recurring.Fields(), func(f recurring.Field) bool { return f.Name == name })
		if i < 0 { // encoding/json accepts names with other capitals as well
			return spec, nil, badField(name, "unknown field; the body must be %s", bodySpec)
		}
		if f := recurring.Fields()[i]; f.Range != "" && f.Text(&spec) == "" && string(fields[name]) != "null" {
			return spec, nil, badField(name, "got %s, must be %s", fields[name], f.Range)
		}
	}
	return spec, slices.Collect(maps.Keys(fields)), nil
}

// EditRecurring replaces the fields of an entry that a JSON object has.
func EditRecurring(spec *recurring.Spec, body []byte) error {
	said, given, err := decodeSpec(body, bodySpec+"; fields that are left out stay as they are")
	if err != nil {
		return err
	}
	said.Payload = slices.Clone(said.Payload)
	spec.Take(&said, given...)
	return nil
}
