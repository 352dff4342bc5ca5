package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// recurringRow is an entry as pages show it.
type recurringRow struct {
	recurring.Entry
	Actions []*actions.Action // that are offered
}

// Word returns a word for the trouble of the entry, "" if it has none. Class goes with it.
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

// Class returns the class of the word.
func (r recurringRow) Class() string {
	if r.Paused {
		return "warn"
	}
	return "bad"
}

// Link returns the path of the entry's page.
func (r recurringRow) Link() string { return recurringPath + "/" + url.PathEscape(r.Name) }

// PayloadText returns the payload as it is.
func (r recurringRow) PayloadText() string { return string(r.Payload) }

// Headers returns the headers of a push, by name.
func (r recurringRow) Headers() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		list = append(list, name+": "+r.Header[name])
	}
	return list
}

const recurringPath = "/recurring"

// recurringForm has the texts that a person fills in, by the names of the fields of a Spec.
type recurringForm struct {
	Name string
	Text map[string]string
}

// recurringInput is a field of the form.
type recurringInput struct {
	recurring.Field
	Text string
}

// Inputs returns the fields of the form.
func (f recurringForm) Inputs() (all []recurringInput) {
	for _, field := range recurring.Fields() {
		if field.IsText() {
			all = append(all, recurringInput{field, f.Text[field.Name]})
		}
	}
	return all
}

// Label returns the name of the input for people.
func (i recurringInput) Label() string { return strings.ToUpper(i.Name[:1]) + i.Name[1:] }

func formOfSpec(e *recurring.Entry) recurringForm {
	form := recurringForm{e.Name, map[string]string{}}
	for _, field := range recurring.Fields() {
		form.Text[field.Name] = field.Text(&e.Spec)
	}
	return form
}

// toSpec returns the Spec of a form. Fields that are not in the form stay as they were.
func (f recurringForm) toSpec(was recurring.Spec) (recurring.Spec, error) {
	s := was
	for _, field := range recurring.Fields() {
		if field.IsText() {
			if err := field.SetText(&s, f.Text[field.Name]); err != nil {
				return s, err
			}
		}
	}
	if s.Missed != recurring.All {
		s.Backlog = 0 // it belongs to the rule all
	}
	return s, nil
}

// recurringBody is the page of all recurring entries, or of a single entry.
type recurringBody struct {
	Rows      []recurringRow
	One       *recurringRow // on the page of a single entry
	Next      []time.Time
	Form      recurringForm
	Queues    []string // that are registered
	Trouble   string   // why the form was refused
	MayChange bool
	Now       time.Time
	Back      string
}

// rowOf returns an entry with the actions that are possible for it. An unreadable entry can be neither run nor paused.
// An entry of a file cannot be removed here, because it would come back with the file.
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
	row.Actions = buttonsOf(names...)
	return row
}

func (d *Dashboard) recurringPage(r *http.Request) (view, error) {
	return d.recurringView(r, recurringForm{Text: map[string]string{"queue": r.URL.Query().Get("queue")}}, "")
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

// oneRecurringView returns the page of an entry. If a form was refused, the page shows it again.
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

// recurringShown fills in the fields that both pages have.
func (d *Dashboard) recurringShown(r *http.Request, b recurringBody, v view) (view, error) {
	b.MayChange = auth.MayChange(r)
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

// addRecurring and editRecurring submit the forms of these pages.
func (d *Dashboard) addRecurring(w http.ResponseWriter, r *http.Request) {
	d.setRecurring(w, r, func(r *http.Request, form recurringForm) error {
		spec, err := form.toSpec(recurring.Spec{})
		if err == nil {
			_, err = d.operator.AddEntry(r.Context(), auth.Who(r), form.Name, spec)
		}
		return err
	}, d.recurringView)
}

func (d *Dashboard) editRecurring(w http.ResponseWriter, r *http.Request) {
	d.setRecurring(w, r, func(r *http.Request, form recurringForm) error {
		_, err := d.operator.EditEntry(r.Context(), auth.Who(r), form.Name, func(spec *recurring.Spec) (err error) {
			*spec, err = form.toSpec(*spec)
			return err
		})
		return err
	}, func(r *http.Request, form recurringForm, trouble string) (view, error) {
		return d.oneRecurringView(r, &form, trouble)
	})
}

// setRecurring reads and submits a form. If the form is refused, the page shows it again with the reason and with what
// the person has typed. Other errors, such as a Redis that does not answer, get the page of an error.
func (d *Dashboard) setRecurring(w http.ResponseWriter, r *http.Request, set func(*http.Request, recurringForm) error,
	refused func(*http.Request, recurringForm, string) (view, error)) {
	d.handlePage(func(r *http.Request) (view, error) {
		if _, err := readForm(w, r); err != nil {
			return view{}, err
		}
		form := recurringForm{cmp.Or(r.PathValue("entry"), strings.TrimSpace(r.PostForm.Get("name"))), map[string]string{}}
		for _, field := range recurring.Fields() {
			form.Text[field.Name] = strings.TrimSpace(r.PostForm.Get(field.Name))
		}
		form.Text["id"] = r.PostForm.Get("id")
		if err := set(r, form); err != nil {
			p := web.ProblemOf(err)
			if p.Status >= http.StatusInternalServerError || errors.Is(err, recurring.ErrUnknown) {
				return view{}, err
			}
			v, err := refused(r, form, p.Detail)
			v.Status = p.Status
			return v, err
		}
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
