package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// order is what a form asks for: a deed, and what to do it to.
type order struct {
	deed
	Queue  *queue.Queue
	Node   string
	Kind   string // of the errors, for a deed on a list
	IDs    []string
	Back   string // where the person came from
	Cursor string // where a deed on a list goes on
	SoFar  int    // jobs changed by the steps before
}

// Limits of a form.
const (
	formBytes  = 1 << 20
	orderedIDs = 1000
)

// order reads a form. It changes nothing.
func (d *Dashboard) order(w http.ResponseWriter, r *http.Request) (order, error) {
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if err := r.ParseForm(); web.Busy(err) {
		return order{}, refuse(http.StatusServiceUnavailable, "Nothing was changed: %v.", err)
	} else if err != nil {
		return order{}, refuse(http.StatusBadRequest, "The form cannot be read: %v.", err)
	}
	form := r.PostForm
	name, keys := form.Get("do"), form["key"]
	if one := form.Get("one"); one != "" { // the button of a row: its deed and its job
		deed, key, _ := strings.Cut(one, ":")
		name, keys = deed, []string{key}
	}
	o := order{Node: form.Get("node"), Kind: form.Get("kind"), Back: backTo(form.Get("back")), Cursor: form.Get("cursor")}
	var ok bool
	if o.deed, ok = deedNamed(name); !ok {
		return o, refuse(http.StatusBadRequest, "do: %.40q is nothing that can be done here.", name)
	}
	o.SoFar, _ = strconv.Atoi(form.Get("sofar"))
	if err := o.readIDs(keys); err != nil {
		return o, err
	}
	return o, d.target(r.Context(), &o, form.Get("queue"))
}

// backTo is a path of this site, whatever a form says.
func backTo(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n") {
		return "/"
	}
	return path
}

func (o *order) readIDs(keys []string) error {
	if o.some == nil {
		return nil
	}
	if len(keys) == 0 {
		return refuse(http.StatusBadRequest, "No job is selected: go back and tick one at least.")
	}
	if len(keys) > orderedIDs {
		return refuse(http.StatusBadRequest, "%d jobs are selected, at most %d can be.", len(keys), orderedIDs)
	}
	for _, key := range keys {
		id, err := idOf(key)
		if err != nil {
			return err
		}
		if !slices.Contains(o.IDs, id) {
			o.IDs = append(o.IDs, id)
		}
	}
	return nil
}

// target finds what the order is about.
func (d *Dashboard) target(ctx context.Context, o *order, queueName string) (err error) {
	if o.drain != nil {
		if err := queue.CheckName("node", o.Node); err != nil {
			return refuse(http.StatusBadRequest, "%v.", err)
		}
		return nil
	}
	if err := queue.CheckName("queue", queueName); err != nil {
		return refuse(http.StatusBadRequest, "queue: %v.", err)
	}
	o.Queue, err = d.cfg.Client.Queue(ctx, queueName)
	return err
}

// Keys are the ids as a form carries them.
func (o order) Keys() []string {
	keys := make([]string, len(o.IDs))
	for i, id := range o.IDs {
		keys[i] = keyOf(id)
	}
	return keys
}

// NoKind reports whether jobs without an error are meant.
func (o order) NoKind() bool { return o.Kind == queue.NoKind }

// confirmBody is the page that asks whether an order is meant.
type confirmBody struct {
	order
	Question string
	About    string
	Label    string
	Danger   bool
	Deed     string
	Name     string // of the queue
	Jobs     int    // that it concerns, counted now
	AtLeast  bool   // there may be more
	Nothing  string // why there is nothing to do; "" = there is
	Shown    []string
}

// shownIDs is how many ids a confirmation lists.
const shownIDs = 20

func (d *Dashboard) confirm(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		o, err := d.order(w, r)
		if err != nil {
			return view{}, err
		}
		b := confirmBody{order: o, About: o.about, Label: o.label, Danger: o.danger, Deed: o.name, Shown: o.IDs[:min(len(o.IDs), shownIDs)]}
		if o.Queue != nil {
			b.Name = o.Queue.Name
		}
		if err := d.count(r.Context(), &b); err != nil {
			return view{}, err
		}
		b.ask()
		return view{Page: "confirm", Title: b.Question, Nav: o.Back, Queue: b.Name, Body: b}, nil
	})(w, r)
}

// count counts now what an order concerns.
func (d *Dashboard) count(ctx context.Context, b *confirmBody) (err error) {
	switch {
	case b.drain != nil:
		status, err := d.cfg.Status(ctx)
		for _, n := range status.Nodes {
			if n.Name == b.Node && n.State != web.Gone {
				b.Jobs += n.Shards
			}
		}
		return err
	case b.some != nil:
		b.Jobs, err = present(ctx, b.order)
		return err
	case b.Kind != "":
		b.Jobs, b.AtLeast, err = ofKind(ctx, b.order)
		return err
	}
	stats, err := b.Queue.Stats(ctx)
	b.Jobs = inStates(stats, b.states)
	if b.paused != nil {
		b.Jobs = stats.Jobs.Total() - stats.Jobs.InFlight
	}
	return err
}

// present counts the ids that are where the deed looks for them.
func present(ctx context.Context, o order) (n int, err error) {
	in := queue.State("")
	if slices.Contains(o.states, queue.Dead) {
		in = queue.Dead // an id there may wait as well
	}
	jobs, err := o.Queue.Jobs(ctx, in, o.IDs...)
	for _, job := range jobs {
		parked := job.State == queue.InFlight && job.Parked > 0 && slices.Contains(o.states, queue.Ready)
		if parked || slices.Contains(o.states, job.State) {
			n++
		}
	}
	return n, err
}

func ofKind(ctx context.Context, o order) (n int, atLeast bool, err error) {
	groups, err := o.Queue.Errors(ctx, o.states[0])
	for _, g := range groups.Groups {
		if asked(g.Kind) == o.Kind {
			n = g.Jobs
		}
	}
	return n, !groups.All, err
}

func inStates(s queue.Stats, states []queue.State) (n int) {
	by := map[queue.State]int{
		queue.Ready: s.Jobs.Ready, queue.Scheduled: s.Jobs.Scheduled, queue.Retrying: s.Jobs.Retry, queue.Failed: s.Jobs.Failed,
		queue.Waiting: s.Jobs.Blocked, queue.Dead: s.MorgueIDs,
	}
	for _, state := range states {
		n += by[state]
	}
	return n
}

// ask words the question.
func (b *confirmBody) ask() {
	jobs := plural(b.Jobs, "job", "jobs")
	if b.AtLeast {
		jobs = "at least " + jobs
	}
	switch {
	case b.drain != nil:
		b.Question = b.label + " of " + b.Node + ", which owns " + plural(b.Jobs, "shard", "shards") + "?"
		if *b.drain {
			b.Question = "Drain " + b.Node + " and move " + plural(b.Jobs, "shard", "shards") + "?"
		}
	case b.paused != nil:
		b.Question = b.label + " queue " + b.Name + ", where " + jobs + " wait?"
		if b.Jobs == 1 {
			b.Question = b.label + " queue " + b.Name + ", where 1 job waits?"
		}
	default:
		b.Question = b.label + ": " + jobs + " of queue " + b.Name + "?"
		b.refuseNothing()
	}
}

func (b *confirmBody) refuseNothing() {
	switch missing := len(b.IDs) - b.Jobs; {
	case b.Jobs == 0 && !b.AtLeast:
		b.Nothing = "There is nothing to do: no such job is there now."
	case b.some != nil && missing > 0:
		b.About += " Of the " + count(len(b.IDs)) + " that were selected, " + count(missing) + " are no longer there."
	}
}
