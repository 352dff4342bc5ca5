package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// recurs is what a button does to something that recurs.
type recurs func(b *recurring.Book, ctx context.Context, name string) error

// recurringActions are those buttons.
func recurringActions() []action {
	run := func(b *recurring.Book, ctx context.Context, name string) error {
		result, err := b.Run(ctx, name)
		return cmp.Or(err, result.Err)
	}
	return []action{
		{recurs: (*recurring.Book).Pause, Action: &browse.Action{Name: "pause recurring", Label: "Pause", Done: "is paused.",
			About: "Its ticks go by until it is resumed; those are not caught up. It stays paused when nodes start anew."}},
		{recurs: (*recurring.Book).Resume, Action: &browse.Action{Name: "resume recurring", Label: "Resume", Done: "goes on with its next tick.",
			About: "It is pushed again from its next tick on."}},
		{recurs: run, Action: &browse.Action{Name: "run recurring", Label: "Run now", Done: "was pushed.",
			About: "Its job is pushed once more, now. Its ticks come as they would."}},
		{recurs: (*recurring.Book).Reset, Action: &browse.Action{Name: "reset recurring", Label: "Reset", Done: "is as its file says.",
			About: "What was changed at run time ends: it is as the file of the node that started last has it. A pause stays."}},
		{recurs: (*recurring.Book).Remove, Action: &browse.Action{Name: "remove recurring", Label: "Remove", Done: "is removed.", Destroys: true,
			About: "It is pushed no more. What was pushed stays."}},
	}
}

// recurringRow is an entry as pages show it.
type recurringRow struct {
	recurring.Entry
	Actions []action // that are offered
}

// Word is for how it is, if it is not as it should be; Class goes with it.
func (r recurringRow) Word() string {
	switch {
	case r.Schedule == "":
		return "unreadable"
	case r.Paused:
		return "paused"
	case r.Late >= 1:
		return "late"
	case r.Error != "":
		return "refused"
	}
	return ""
}

// Class is that of the word.
func (r recurringRow) Class() string {
	if r.Paused {
		return "warn"
	}
	return "bad"
}

// Link is the page of the entry.
func (r recurringRow) Link() string { return recurringPath + "/" + url.PathEscape(r.Name) }

// PayloadText is the payload as it is.
func (r recurringRow) PayloadText() string { return string(r.Payload) }

// Headers are those of a push, by name.
func (r recurringRow) Headers() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		list = append(list, name+": "+r.Header[name])
	}
	return list
}

const recurringPath = "/recurring"

// recurringForm is what a person fills in.
type recurringForm struct{ Name, Cron, Zone, Every, Offset, Jitter, Queue, ID, Payload, Missed string }

func formOfSpec(e *recurring.Entry) recurringForm {
	text := func(d recurring.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return recurringForm{e.Name, e.Cron, e.Zone, text(e.Every), text(e.Offset), text(e.Jitter), e.Queue, e.ID, string(e.Payload), string(e.Spec.Missed)}
}

// spec is what a form says. What it has no field for stays as it was.
func (f recurringForm) spec(was recurring.Spec) (recurring.Spec, error) {
	s := recurring.Spec{Cron: f.Cron, Zone: f.Zone, Queue: f.Queue, ID: f.ID, Missed: recurring.Missed(f.Missed), Header: was.Header}
	if s.Missed == recurring.All {
		s.Backlog = was.Backlog
	}
	for _, of := range []struct {
		name, text string
		to         *recurring.Duration
	}{{"every", f.Every, &s.Every}, {"offset", f.Offset, &s.Offset}, {"jitter", f.Jitter, &s.Jitter}} {
		if of.text == "" {
			continue
		}
		if err := of.to.UnmarshalText([]byte(of.text)); err != nil {
			return s, web.NewProblem(http.StatusBadRequest, "%s: %v", of.name, err)
		}
	}
	if f.Payload != "" {
		s.Payload = json.RawMessage(f.Payload)
	}
	return s, nil
}

// recurringBody is the page of all that recurs, or of one entry.
type recurringBody struct {
	Rows      []recurringRow
	One       *recurringRow // of the page of one
	Next      []time.Time
	Form      recurringForm
	Missed    []recurring.Missed
	Queues    []string // that are registered
	Trouble   string   // why what the form said was not done
	MayChange bool
	Now       time.Time
	Back      string
}

func (d *Dashboard) rowOf(e recurring.Entry, mayChange, whole bool) recurringRow {
	row := recurringRow{Entry: e}
	if !mayChange {
		return row
	}
	var names []string
	if e.Schedule != "" {
		names = append(names, map[bool]string{true: "resume recurring", false: "pause recurring"}[e.Paused], "run recurring")
	}
	if e.Edited && whole {
		names = append(names, "reset recurring")
	}
	if e.Origin == recurring.AtRunTime {
		names = append(names, "remove recurring")
	}
	row.Actions = buttons(names...)
	return row
}

func (d *Dashboard) recurringPage(r *http.Request) (view, error) {
	return d.recurringView(r, recurringForm{Missed: string(recurring.One), Queue: r.URL.Query().Get("queue")}, "")
}

func (d *Dashboard) recurringView(r *http.Request, form recurringForm, trouble string) (view, error) {
	all, err := recurring.Of(d.client).List(r.Context())
	if err != nil {
		return view{}, err
	}
	b := recurringBody{Form: form, Trouble: trouble, Back: recurringPath}
	for _, e := range all {
		b.Rows = append(b.Rows, d.rowOf(e, auth.MayChange(r), false))
	}
	return d.recurringShown(r, b, view{Page: "recurring", Title: "Recurring", Again: trouble == ""})
}

func (d *Dashboard) oneRecurringPage(r *http.Request) (view, error) {
	return d.oneRecurringView(r, nil, "")
}

// oneRecurringView is the page of one entry; with what a form said that was refused, if there is some.
func (d *Dashboard) oneRecurringView(r *http.Request, form *recurringForm, trouble string) (view, error) {
	name, book := r.PathValue("entry"), recurring.Of(d.client)
	e, err := book.Entry(r.Context(), name)
	if err != nil {
		return view{}, err
	}
	row := d.rowOf(e, auth.MayChange(r), true)
	b := recurringBody{One: &row, Form: formOfSpec(&e), Trouble: trouble, Back: row.Link()}
	if form != nil {
		b.Form = *form
		b.Form.Name = name
	}
	if e.Schedule != "" {
		if b.Next, err = book.Upcoming(r.Context(), name, 10); err != nil {
			return view{}, err
		}
	}
	return d.recurringShown(r, b, view{Page: "entry", Title: name})
}

// recurringShown fills in what both pages have.
func (d *Dashboard) recurringShown(r *http.Request, b recurringBody, v view) (view, error) {
	b.Missed, b.MayChange = []recurring.Missed{recurring.One, recurring.None, recurring.All}, auth.MayChange(r)
	registered, err := d.client.Registry().Entries(r.Context())
	if err != nil {
		return view{}, err
	}
	b.Queues = slices.Sorted(maps.Keys(registered))
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	v.Nav, v.Body = recurringPath, b
	return v, nil
}

// addRecurring and editRecurring do what the forms of these pages say.
func (d *Dashboard) addRecurring(w http.ResponseWriter, r *http.Request) {
	d.setRecurring(w, r, func(r *http.Request, form recurringForm) error {
		spec, err := form.spec(recurring.Spec{})
		if err != nil {
			return err
		}
		return recurring.Of(d.client).Add(r.Context(), form.Name, spec)
	}, "add recurring", func(r *http.Request, form recurringForm, trouble string) (view, error) {
		return d.recurringView(r, form, trouble)
	})
}

func (d *Dashboard) editRecurring(w http.ResponseWriter, r *http.Request) {
	d.setRecurring(w, r, func(r *http.Request, form recurringForm) error {
		return recurring.Of(d.client).Edit(r.Context(), form.Name, func(spec *recurring.Spec) error {
			edited, err := form.spec(*spec)
			*spec = edited
			return err
		})
	}, "edit recurring", func(r *http.Request, form recurringForm, trouble string) (view, error) {
		return d.oneRecurringView(r, &form, trouble)
	})
}

// setRecurring reads a form, does what it says, and writes it down; what is refused is shown again.
func (d *Dashboard) setRecurring(w http.ResponseWriter, r *http.Request, set func(*http.Request, recurringForm) error, action string, refused func(*http.Request, recurringForm, string) (view, error)) {
	d.page(func(r *http.Request) (view, error) {
		r.Body = http.MaxBytesReader(w, r.Body, formBytes)
		if err := r.ParseForm(); web.Busy(err) {
			return view{}, web.NewProblem(http.StatusServiceUnavailable, "Nothing was changed: %v.", err)
		} else if err != nil {
			return view{}, web.NewProblem(http.StatusBadRequest, "The form cannot be read: %v.", err)
		}
		get := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
		form := recurringForm{
			Name: cmp.Or(r.PathValue("entry"), get("name")), Cron: get("cron"), Zone: get("zone"), Every: get("every"), Offset: get("offset"), Jitter: get("jitter"),
			Queue: get("queue"), ID: r.PostForm.Get("id"), Payload: get("payload"), Missed: get("missed"),
		}
		if err := set(r, form); err != nil {
			p := web.ProblemOf(err)
			if p.Status >= http.StatusInternalServerError || errors.Is(err, recurring.ErrUnknown) {
				return view{}, err
			}
			v, err := refused(r, form, p.Detail)
			v.Status = p.Status
			return v, err
		}
		line := changes.Line{Action: action, Queue: form.Queue, Target: form.Name}
		if e, err := recurring.Of(d.client).Entry(r.Context(), form.Name); err == nil {
			line.New, _ = json.Marshal(e.Spec) // it was read from JSON
		}
		web.WriteDown(d.node, d.cfg.Log, r, line)
		return view{Redirect: recurringPath + "/" + url.PathEscape(form.Name)}, nil
	})(w, r)
}

// askRecurring words the question about an entry.
func (d *Dashboard) askRecurring(ctx context.Context, b *confirmBody) error {
	e, err := recurring.Of(d.client).Entry(ctx, b.Entry)
	if err != nil {
		return err
	}
	b.Question = fmt.Sprintf("%s %s?", b.Label, b.Entry)
	if e.Schedule != "" {
		b.Question = fmt.Sprintf("%s %s (%s)?", b.Label, b.Entry, e.Schedule)
	}
	return nil
}
