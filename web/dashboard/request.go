package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// action is something a person may do, and a button: an action on jobs, or a switch of a queue or
// a node.
type action struct {
	*browse.Action
	paused *bool  // of a switch of a queue: what it sets
	drain  *bool  // of a switch of a node
	recurs recurs // of what is done to something that recurs
}

func switches() []action {
	yes, no := true, false
	return []action{
		{paused: &yes, Action: &browse.Action{Name: "pause", Label: "Pause", Done: "is paused.",
			About: "No node takes jobs of this queue until it is resumed. Pushes are taken all the while; what is in flight is finished."}},
		{paused: &no, Action: &browse.Action{Name: "resume", Label: "Resume", Done: "goes on. Nodes see it with their next lease renewal, within a second or two.",
			About: "Nodes take jobs of this queue again."}},
		{drain: &yes, Action: &browse.Action{Name: "drain", Label: "Drain", Done: "heard it, and gives its shards away.",
			About: "The node finishes what is in flight and gives its shards to the others. It stays up, empty, until this is undone or its process ends."}},
		{drain: &no, Action: &browse.Action{Name: "undrain", Label: "Undo drain", Done: "heard it, and may own shards again.",
			About: "The node may own shards again."}},
	}
}

func actions() []action {
	all := append(switches(), recurringActions()...)
	for _, a := range browse.Actions() {
		all = append(all, action{Action: a})
	}
	return all
}

// actionNamed finds an action.
func actionNamed(name string) (action, bool) {
	all := actions()
	i := slices.IndexFunc(all, func(a action) bool { return a.Name == name })
	if i < 0 {
		return action{Action: &browse.Action{}}, false
	}
	return all[i], true
}

// buttons are the actions of these names.
func buttons(names ...string) (all []action) {
	for _, name := range names {
		a, _ := actionNamed(name)
		all = append(all, a)
	}
	return all
}

// buttonsFor are the actions on a job of a state; "" is any that waits, but for blocked ones.
func buttonsFor(state browse.State) (some []action) {
	for _, a := range browse.Actions() {
		if !a.All && slices.Contains(a.States, state) {
			some = append(some, action{Action: a})
		}
	}
	return some
}

// OnJobs reports whether it is about jobs.
func (a action) OnJobs() bool { return a.paused == nil && a.drain == nil && a.recurs == nil }

// Pauses reports whether it pauses a queue.
func (a action) Pauses() bool { return a.paused != nil && *a.paused }

// onIDs reports whether it is about jobs that are named.
func (a action) onIDs() bool { return a.OnJobs() && !a.All }

// request is what a form asks for: an action, and what to do it to.
type request struct {
	action
	Queue  string
	Node   string
	Entry  string // of what recurs
	Kind   string // of the errors, for an action on all jobs
	IDs    []string
	Back   string // where the person came from
	Cursor string // where an action on all jobs goes on
	SoFar  int    // jobs changed by the steps before

	queue *queue.Queue
}

// Limits of a form.
const (
	formBytes    = 1 << 20
	requestedIDs = 1000
)

// request reads a form. It changes nothing.
func (d *Dashboard) request(w http.ResponseWriter, r *http.Request) (q request, err error) {
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if err := r.ParseForm(); web.Busy(err) {
		return q, web.NewProblem(http.StatusServiceUnavailable, "Nothing was changed: %v.", err)
	} else if err != nil {
		return q, web.NewProblem(http.StatusBadRequest, "The form cannot be read: %v.", err)
	}
	form := r.PostForm
	name, keys := form.Get("do"), form["key"]
	if one := form.Get("one"); one != "" { // the button of a row: its action and its job
		action, key, _ := strings.Cut(one, ":")
		name, keys = action, []string{key}
	}
	q = request{Queue: form.Get("queue"), Node: form.Get("node"), Entry: form.Get("entry"), Kind: form.Get("kind"), Back: auth.LocalPath(form.Get("back")), Cursor: form.Get("cursor")}
	var ok bool
	if q.action, ok = actionNamed(name); !ok {
		return q, web.NewProblem(http.StatusBadRequest, "do: %.40q is nothing that can be done here.", name)
	}
	q.SoFar, _ = strconv.Atoi(form.Get("sofar"))
	if q.onIDs() {
		if q.IDs, err = idsOf(keys); err != nil {
			return q, err
		}
	}
	if q.drain != nil {
		if err := queue.CheckName("node", q.Node); err != nil {
			return q, web.NewProblem(http.StatusBadRequest, "%v.", err)
		}
		return q, nil
	}
	if q.recurs != nil {
		if err := queue.CheckName("entry", q.Entry); err != nil {
			return q, web.NewProblem(http.StatusBadRequest, "%v.", err)
		}
		return q, nil
	}
	if err := queue.CheckName("queue", q.Queue); err != nil {
		return q, web.NewProblem(http.StatusBadRequest, "queue: %v.", err)
	}
	q.queue, err = d.client.Queue(r.Context(), q.Queue)
	return q, err
}

// idsOf are the ids that a form names by their keys, each once.
func idsOf(keys []string) (ids []string, err error) {
	if len(keys) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "No job is selected: go back and tick one at least.")
	}
	if len(keys) > requestedIDs {
		return nil, web.NewProblem(http.StatusBadRequest, "%d jobs are selected, at most %d can be.", len(keys), requestedIDs)
	}
	for _, key := range keys {
		id, err := idOf(key)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Keys are the ids as a form carries them.
func (q request) Keys() []string {
	keys := make([]string, len(q.IDs))
	for i, id := range q.IDs {
		keys[i] = keyOf(id)
	}
	return keys
}

// resultPath is the page that says what was done.
const resultPath = "/result"

// NoKind reports whether jobs without an error are meant.
func (q request) NoKind() bool { return q.Kind == browse.NoKind }

// confirmBody is the page that asks whether a request is meant.
type confirmBody struct {
	request
	Question string
	Jobs     int      // that it concerns, counted now; of a drain: shards
	AtLeast  bool     // there may be more
	Missing  int      // ids that are no longer there
	Nothing  bool     // there is nothing to do
	Alone    bool     // no other node could take the shards of the one to be drained
	Shown    []string // of the ids
}

// shownIDs is how many ids a confirmation lists.
const shownIDs = 20

func (d *Dashboard) confirm(w http.ResponseWriter, r *http.Request) {
	d.page(func(r *http.Request) (view, error) {
		q, err := d.request(w, r)
		if err != nil {
			return view{}, err
		}
		b := confirmBody{request: q, Shown: q.IDs[:min(len(q.IDs), shownIDs)]}
		if err := d.count(r.Context(), &b); err != nil {
			return view{}, err
		}
		b.ask()
		return view{Page: "confirm", Title: b.Question, Nav: b.Back, Queue: b.Queue, Body: b}, nil
	})(w, r)
}

// count counts now what a request concerns.
func (d *Dashboard) count(ctx context.Context, b *confirmBody) (err error) {
	switch {
	case b.recurs != nil:
		return d.askRecurring(ctx, b)
	case b.drain != nil:
		known, err := d.node.Cluster().Status(ctx)
		b.Alone = *b.drain && err == nil && !slices.ContainsFunc(known.Nodes, func(n status.Node) bool { return n.Name != b.Node && n.State == status.Live })
		for _, n := range known.Nodes {
			if n.Name == b.Node && n.State != status.Gone {
				b.Jobs += n.Shards
			}
		}
		return err
	case b.onIDs():
		b.Jobs, err = browse.Of(b.queue).Targets(ctx, b.Action, b.IDs...)
		return err
	case b.Kind != "" && len(b.States) > 0:
		// Of an action on several states, the last is the one whose jobs have errors.
		groups, err := browse.Of(b.queue).Errors(ctx, b.States[len(b.States)-1])
		for _, g := range groups.Groups {
			if asked(g.Kind) == b.Kind {
				b.Jobs = g.Jobs
			}
		}
		b.AtLeast = !groups.All
		return err
	}
	stats, err := b.queue.Stats(ctx)
	for _, state := range b.States {
		b.Jobs += browse.Count(stats, state)
	}
	if b.paused != nil {
		b.Jobs = stats.Jobs.Total() - stats.Jobs.InFlight
	}
	return err
}

// ask words the question.
func (b *confirmBody) ask() {
	jobs, wait := plural(b.Jobs, "job", "jobs"), "wait"
	if b.Jobs == 1 {
		wait = "waits"
	}
	if b.AtLeast {
		jobs = "at least " + jobs
	}
	switch {
	case b.recurs != nil: // it is there
	case b.drain != nil && *b.drain:
		b.Question = "Drain " + b.Node + " and move " + plural(b.Jobs, "shard", "shards") + "?"
	case b.drain != nil:
		b.Question = b.Label + " of " + b.Node + ", which owns " + plural(b.Jobs, "shard", "shards") + "?"
	case b.paused != nil:
		b.Question = b.Label + " queue " + b.Queue + ", where " + jobs + " " + wait + "?"
	default:
		b.Question = b.Label + ": " + jobs + " of queue " + b.Queue + "?"
		b.Nothing = b.Jobs == 0 && !b.AtLeast
		if b.onIDs() {
			b.Missing = len(b.IDs) - b.Jobs
		}
	}
}

// result is how a request went.
type result struct {
	request
	Instance string // that has got the request to drain
	MayBegin string // instances that have not noticed a pause
	Changed  int    // jobs
	Skipped  int    // jobs that were gone when their turn came
	Left     int    // jobs of the list that have not been looked at; Cursor is where they begin
	Trouble  string // why it did not go through, for people
}

// Total is what all steps together changed.
func (r result) Total() int { return r.SoFar + r.Changed }

// Bounds of one request that acts on all jobs: then it says what is left.
const (
	stepsTime  = 2 * time.Second // no further step is begun after it
	actionTime = 30 * time.Second
)

// perform does what a form asks for. If it is done, the browser is sent to a page that says so,
// which may be reloaded. If not, the answer says how far it got, and offers to go on: to send the
// form again does no harm then.
func (d *Dashboard) perform(w http.ResponseWriter, r *http.Request) {
	q, err := d.request(w, r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTime)
	defer cancel()
	res, err := d.do(ctx, q)
	d.cfg.Log.Info("done by hand", "action", q.Name, "queue", q.Queue, "node", q.Node, "entry", q.Entry, "changed", res.Changed, "left", res.Left, "err", err, auth.Sender(r))
	if err == nil || res.Changed > 0 {
		web.WriteDown(d.node, d.cfg.Log, r, changes.Line{Action: q.Name, Queue: q.Queue, Target: cmp.Or(q.Node, q.Entry), IDs: q.IDs, Count: res.Changed})
	}
	if err != nil {
		res.Trouble = d.explain(err)
	}
	if err != nil || res.Cursor != "" {
		d.show(w, r, res.view())
		return
	}
	http.Redirect(w, r, resultPath+query("done", q.Name, "queue", q.Queue, "node", q.Node, "entry", q.Entry, "instance", res.Instance, "may_begin", res.MayBegin,
		"changed", strconv.Itoa(res.Total()), "skipped", strconv.Itoa(res.Skipped), "back", res.Back), http.StatusSeeOther)
}

func (d *Dashboard) do(ctx context.Context, q request) (res result, err error) {
	res.request = q
	switch {
	case q.recurs != nil:
		err = q.recurs(recurring.Of(d.client), ctx, q.Entry)
		if err == nil && q.Destroys && strings.HasPrefix(q.Back, recurringPath) {
			res.Back = recurringPath // its page is gone
		}
	case q.drain != nil:
		res.Instance, err = d.node.Cluster().Drain(ctx, q.Node, *q.drain)
	case q.paused != nil && *q.paused:
		res.MayBegin, err = d.pause(ctx, q.Queue)
	case q.paused != nil:
		err = d.client.Registry().Resume(ctx, q.Queue)
	case q.onIDs():
		res.Changed, err = browse.Of(q.queue).Apply(ctx, q.Action, q.IDs...)
		res.Skipped = len(q.IDs) - res.Changed
	default:
		err = res.bulk(ctx)
	}
	return res, err
}

// pause pauses a queue, and says which instances have not noticed in time.
func (d *Dashboard) pause(ctx context.Context, name string) (mayBegin string, err error) {
	if err := d.client.Registry().Pause(ctx, name); err != nil {
		return "", err
	}
	late, err := status.AwaitPause(ctx, d.node.Cluster(), name)
	return strings.Join(late, ", "), err
}

// bulk works through a list until it ends or the time of one request is over.
func (r *result) bulk(ctx context.Context) error {
	for began := time.Now(); ; {
		step, err := browse.Of(r.queue).Bulk(ctx, r.Action, browse.Query{State: r.States[0], Kind: r.Kind, Cursor: r.Cursor})
		r.Changed, r.Skipped, r.Left, r.Cursor = r.Changed+step.Changed, r.Skipped+step.Skipped, step.Left, step.Next
		if step.Next == "" || err != nil || time.Since(began) > stepsTime {
			return err
		}
	}
}

func (r result) view() view {
	return view{Page: "result", Title: "Result", Nav: r.Back, Queue: r.Queue, Body: r}
}

// resultPage says what was done, as its address has it: it does nothing, and offers nothing to do.
func (d *Dashboard) resultPage(r *http.Request) (view, error) {
	v := r.URL.Query()
	a, ok := actionNamed(v.Get("done"))
	if !ok {
		return view{}, web.NewProblem(http.StatusNotFound, "done: %.40q is nothing that can be done here.", v.Get("done"))
	}
	res := result{request: request{action: a, Queue: v.Get("queue"), Node: v.Get("node"), Entry: v.Get("entry"), Back: auth.LocalPath(v.Get("back"))}, Instance: v.Get("instance"), MayBegin: v.Get("may_begin")}
	res.Changed, _ = strconv.Atoi(v.Get("changed"))
	res.Skipped, _ = strconv.Atoi(v.Get("skipped"))
	return res.view(), nil
}
