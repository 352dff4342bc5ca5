package dashboard

import (
	"cmp"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web/auth"
)

// errorsBody is the page of a queue's errors by kind.
type errorsBody struct {
	Queue  string
	Tabs   tabs
	Places []errorPlace
	Recent []queue.Attempt
	Now    time.Time
	Back   string
}

// errorPlace is the errors of one state.
type errorPlace struct {
	Title string
	Path  string // of the list
	State string // the list's state, if it has several
	Time  string // heading of the time
	None  string // stands for an empty kind
	queue.ErrorGroups
	Action *action // nil: not by this visitor
}

// asked is the kind as a query and a form name it: an empty one would mean any.
func asked(kind string) string { return cmp.Or(kind, queue.NoKind) }

// recentAttempts is how many attempts the page lists.
const recentAttempts = 30

func (d *Dashboard) errorsPage(r *http.Request) (view, error) {
	q, err := d.queue(r)
	if err != nil {
		return view{}, err
	}
	b := errorsBody{Queue: q.Name, Tabs: tabs{q.Name, "errors"}, Back: r.URL.RequestURI()}
	for _, place := range []struct {
		state                       queue.State
		title, path, of, time, none string
		action                      string
	}{
		{queue.Failed, "Failed", "jobs", "failed", "Latest due", "no error", "run-failed"},
		{queue.Waiting, "Blocked", "blocked", "", "Newest", "no error", "unblock-all"},
		{queue.Dead, "In the morgue", "morgue", "", "Newest", "no error: buried by hand", "requeue-all"},
	} {
		groups, err := q.Errors(r.Context(), place.state)
		if err != nil {
			return view{}, err
		}
		one := errorPlace{place.title, place.path, place.of, place.time, place.none, groups, nil}
		if auth.MayChange(r) {
			one.Action = groupButton(place.action)
		}
		b.Places = append(b.Places, one)
	}
	if b.Recent, err = q.RecentAttempts(r.Context(), recentAttempts); err != nil {
		return view{}, err
	}
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "errors", Title: "Errors of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
}

// groupButton is an action on all, for the jobs of one kind of error.
func groupButton(name string) *action {
	a := buttons(name)[0]
	own := *a.Action
	own.Label = "Requeue this group"
	if name == "run-failed" {
		own.Label = "Run this group now"
	}
	a.Action = &own
	return &a
}
