package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// buttonsOf returns the actions of these names.
func buttonsOf(names ...string) (all []*actions.Action) {
	for _, name := range names {
		all = append(all, actions.Named(name))
	}
	return all
}

// buttonsFor returns the actions on a job of a state. "" stands for any waiting job that is not blocked.
func buttonsFor(state browse.State) (some []*actions.Action) {
	for _, a := range actions.All() {
		if a.NamesIDs() && slices.Contains(a.Jobs.States, state) {
			some = append(some, a)
		}
	}
	return some
}

// buttonRow has the buttons of a form. A menu holds those that destroy something.
type buttonRow struct {
	Plain, Destroying []*actions.Action
	Of                string // the target, if the page has several such rows
}

func buttonsIn(all []*actions.Action, of string) buttonRow {
	row := buttonRow{Of: of}
	for _, a := range all {
		if a.Destroys {
			row.Destroying = append(row.Destroying, a)
		} else {
			row.Plain = append(row.Plain, a)
		}
	}
	return row
}

// request is an action that a form asks for, with its target.
type request struct {
	*actions.Action
	Queue  string
	Node   string
	Entry  string // name of a recurring entry
	Kind   string // of the errors, for an action on all jobs
	IDs    []string
	Back   string // where the person came from
	Cursor string // where an action on all jobs goes on
	SoFar  int    // jobs changed by the steps before

	queue *protocol.Queue
}

// OnJobs reports whether the action changes jobs.
func (q request) OnJobs() bool { return q.Action.Jobs != nil }

// Limits of a form.
const (
	formBytes    = 1 << 20
	requestedIDs = 1000
)

// readForm reads the form of a request. It bounds the form, and the memory for it counts as for any other body.
func readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	switch err := r.ParseForm(); {
	case web.IsBusy(err):
		return nil, web.NewProblem(http.StatusServiceUnavailable, "Nothing was changed: %v.", err)
	case err != nil:
		return nil, web.NewProblem(http.StatusBadRequest, "The form cannot be read: %v.", err)
	}
	return r.PostForm, nil
}

// readRequest reads a form and checks all its fields. It changes nothing. Both forms of an action go through it, so the
// second form is not trusted to have come from the question. The link back is cut down to a path of this node.
func (d *Dashboard) readRequest(w http.ResponseWriter, r *http.Request) (q request, err error) {
	form, err := readForm(w, r)
	if err != nil {
		return q, err
	}
	name, keys := form.Get("do"), form["key"]
	if one := form.Get("one"); one != "" { // the button of a row carries its action and its job
		action, key, _ := strings.Cut(one, ":")
		name, keys = action, []string{key}
	}
	q = request{Queue: form.Get("queue"), Node: form.Get("node"), Entry: form.Get("entry"), Kind: form.Get("kind"), Back: auth.LocalPath(form.Get("back")), Cursor: form.Get("cursor")}
	if q.Action = actions.Named(name); q.Action == nil || q.Label == "" {
		return q, web.NewProblem(http.StatusBadRequest, "do: %.40q is no action of these pages.", name)
	}
	q.SoFar, _ = strconv.Atoi(form.Get("sofar"))
	if q.NamesIDs() {
		if q.IDs, err = idsOf(keys); err != nil {
			return q, err
		}
	}
	switch q.On {
	case actions.OnNode:
		err = protocol.CheckName("node", q.Node)
	case actions.OnEntry:
		err = protocol.CheckName("entry", q.Entry)
	default:
		if err = protocol.CheckName("queue", q.Queue); err == nil {
			q.queue, err = d.client.Queue(r.Context(), q.Queue)
			return q, err
		}
		err = fmt.Errorf("queue: %w", err)
	}
	if err != nil {
		return q, web.NewProblem(http.StatusBadRequest, "%v.", err)
	}
	return q, nil
}

// idsOf returns the ids that a form names by their keys, each a single time.
func idsOf(keys []string) (ids []string, err error) {
	if len(keys) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "No job is selected. Go back and select at least one.")
	}
	if len(keys) > requestedIDs {
		return nil, web.NewProblem(http.StatusBadRequest, "%d jobs are selected, at most %d are allowed.", len(keys), requestedIDs)
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

// Keys returns the ids as a form carries them.
func (q request) Keys() []string {
	keys := make([]string, len(q.IDs))
	for i, id := range q.IDs {
		keys[i] = keyOf(id)
	}
	return keys
}

// resultPath is the path of the page with the result of an action.
const resultPath = "/result"

// NoKind reports whether jobs without an error are meant.
func (q request) NoKind() bool { return q.Kind == browse.NoKind }

// confirmBody is the page that asks whether a request is meant.
type confirmBody struct {
	request
	Question string
	Jobs     int      // number of jobs that it would change, or of shards for a drain, counted now
	AtLeast  bool     // there may be more
	Missing  int      // ids that are no longer there
	Nothing  bool     // there is nothing to do
	Alone    bool     // no other node could take the shards of the node
	Shown    []string // of the ids
}

// shownIDs bounds the ids that a confirmation lists.
const shownIDs = 20

// confirmRequest asks whether a request is meant. The counts of the question are those of the moment. The action itself
// takes the jobs that are there when it runs, and its result says how many it has changed.
func (d *Dashboard) confirmRequest(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		q, err := d.readRequest(w, r)
		if err != nil {
			return view{}, err
		}
		b := confirmBody{request: q, Shown: q.IDs[:min(len(q.IDs), shownIDs)]}
		if err := d.countTargets(r.Context(), &b); err != nil {
			return view{}, err
		}
		b.wordQuestion()
		return view{Page: "confirm", Title: b.Question, Nav: b.Back, Queue: b.Queue, Body: b}, nil
	})(w, r)
}

// countTargets counts the targets of a request as they are now.
func (d *Dashboard) countTargets(ctx context.Context, b *confirmBody) (err error) {
	switch {
	case b.On == actions.OnEntry:
		return d.askRecurring(ctx, b)
	case b.On == actions.OnNode:
		known, err := d.cfg.Cluster.Status(ctx)
		b.Alone = b.Action == actions.Drain && err == nil && !slices.ContainsFunc(known.Nodes, func(n status.Node) bool { return n.Name != b.Node && n.State == status.Live && n.Static == "" })
		for _, n := range known.Nodes {
			if n.Name == b.Node && n.State != status.Gone {
				b.Jobs += n.Shards
			}
		}
		return err
	case b.NamesIDs():
		b.Jobs, err = browse.Of(b.queue).Targets(ctx, b.Action.Jobs, b.IDs...)
		return err
	case b.Kind != "" && b.OnJobs():
		// If an action has several states, the jobs of the last state have errors.
		states := b.Action.Jobs.States
		groups, err := browse.Of(b.queue).Errors(ctx, states[len(states)-1])
		for _, g := range groups.Groups {
			if kindParam(g.Kind) == b.Kind {
				b.Jobs = g.Jobs
			}
		}
		b.AtLeast = !groups.All
		return err
	}
	stats, err := b.queue.Stats(ctx)
	if !b.OnJobs() {
		b.Jobs = stats.Jobs.Total() - stats.Jobs.InFlight
		return err
	}
	for _, state := range b.Action.Jobs.States {
		b.Jobs += browse.Count(stats, state)
	}
	return err
}

// wordQuestion words the question.
func (b *confirmBody) wordQuestion() {
	jobs, wait := formatCountOf(b.Jobs, "job", "jobs"), "wait"
	if b.Jobs == 1 {
		wait = "waits"
	}
	if b.AtLeast {
		jobs = "at least " + jobs
	}
	switch {
	case b.On == actions.OnEntry: // askRecurring has worded it
	case b.Action == actions.Drain:
		b.Question = "Drain " + b.Node + " and move " + formatCountOf(b.Jobs, "shard", "shards") + "?"
	case b.On == actions.OnNode:
		b.Question = b.Label + " of " + b.Node + ", which owns " + formatCountOf(b.Jobs, "shard", "shards") + "?"
	case b.On == actions.OnQueue:
		b.Question = b.Label + " queue " + b.Queue + ", where " + jobs + " " + wait + "?"
	default:
		b.Question = b.Label + ": " + jobs + " of queue " + b.Queue + "?"
		b.Nothing = b.Jobs == 0 && !b.AtLeast
		if b.NamesIDs() {
			b.Missing = len(b.IDs) - b.Jobs
		}
	}
}

// result says how a request went.
type result struct {
	request
	Instance string // that got the request to drain
	MayBegin string // instances that have not noticed a pause
	Drained  string // how far the node has drained
	Changed  int    // jobs
	Skipped  int    // jobs that were gone when their turn came
	Left     int    // jobs of the list that are still to be examined; Cursor is where they begin
	Trouble  string // why it failed, for people
}

// Total returns the number of jobs that all steps together have changed.
func (r result) Total() int { return r.SoFar + r.Changed }

// Bounds of a request that acts on all jobs. When they are reached, the answer says how many are left.
const (
	stepsTime  = 2 * time.Second // no further step is begun after it
	actionTime = 30 * time.Second
)

// performRequest performs the action of a form. After the last step it redirects the browser to the page with
// the result, which may be reloaded. Otherwise the answer says how far the action came and offers to go on. The
// form of that answer carries the cursor of the next step. It does no harm to send that form again, because
// changed jobs are no longer among the jobs of the action.
func (d *Dashboard) performRequest(w http.ResponseWriter, r *http.Request) {
	q, err := d.readRequest(w, r)
	if err != nil {
		d.writeError(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTime)
	defer cancel()
	res, err := d.askOperator(ctx, auth.Who(r), q)
	if err != nil {
		res.Trouble = d.explainError(err)
	}
	if err != nil || res.Cursor != "" {
		d.writePage(w, r, res.toView())
		return
	}
	auth.Redirect(w, r, resultPath+encodeQuery("done", q.Name, "queue", q.Queue, "node", q.Node, "entry", q.Entry, "instance", res.Instance, "may_begin", res.MayBegin, "drained", res.Drained,
		"changed", strconv.Itoa(res.Total()), "skipped", strconv.Itoa(res.Skipped), "back", res.Back))
}

// askOperator performs a request, and returns the result for the page. The operator records the change with its
// sender, as it does for the API and the command line.
func (d *Dashboard) askOperator(ctx context.Context, by changes.Who, q request) (result, error) {
	ask := actions.Request{Action: q.Action, By: by, Queue: q.queue, Target: cmp.Or(q.Node, q.Entry), IDs: q.IDs, For: stepsTime}
	if q.OnJobs() && !q.NamesIDs() {
		ask.Query = browse.Query{State: q.Action.Jobs.States[0], Kind: q.Kind, Cursor: q.Cursor}
		if q.Kind != "" {
			ask.Described, _ = json.Marshal(map[string]string{"kind": q.Kind}) // plain strings always marshal
		}
	}
	done, err := d.operator.Do(ctx, ask)
	res := result{request: q, Instance: done.Instance, MayBegin: strings.Join(done.MayBegin, ", "), Changed: done.Changed, Skipped: done.Skipped, Left: done.Left}
	res.Cursor = done.Next
	switch {
	case err != nil:
	case q.On == actions.OnNode:
		res.Drained = drainedText(q.Action == actions.Drain, done.Noticed, done.Shards)
	case done.Pushed != nil:
		err = done.Pushed.Err
	case q.On == actions.OnEntry && q.Destroys && strings.HasPrefix(q.Back, recurringPath):
		res.Back = recurringPath // its page is gone
	}
	return res, err
}

// drainedText says how far an instance has come that was asked to drain, or to own shards again.
func drainedText(on, noticed bool, shards int) string {
	owns := formatCountOf(shards, "shard", "shards")
	switch {
	case !noticed:
		return "Its lease does not confirm the request, and it owns " + owns + ". Ask again."
	case on && shards > 0:
		return "It still owns " + owns + ". Batches in flight end first, and another node must handle their queues."
	case on:
		return "It has none left."
	}
	return "It may own some again."
}

// Pauses reports whether it pauses a queue.
func (r result) Pauses() bool { return r.Action == actions.Pause }

func (r result) toView() view {
	return view{Page: "result", Title: "Result", Nav: r.Back, Queue: r.Queue, Body: r}
}

// resultPage shows the result in the parameters of its address. It changes nothing and offers no action, so a
// forged address can only show wrong numbers.
func (d *Dashboard) resultPage(r *http.Request) (view, error) {
	v := r.URL.Query()
	a := actions.Named(v.Get("done"))
	if a == nil || a.Label == "" {
		return view{}, web.NewProblem(http.StatusNotFound, "done: %.40q is no action of these pages.", v.Get("done"))
	}
	res := result{request: request{Action: a, Queue: v.Get("queue"), Node: v.Get("node"), Entry: v.Get("entry"), Back: auth.LocalPath(v.Get("back"))}, Instance: v.Get("instance"), MayBegin: v.Get("may_begin"), Drained: v.Get("drained")}
	res.Changed, _ = strconv.Atoi(v.Get("changed"))
	res.Skipped, _ = strconv.Atoi(v.Get("skipped"))
	return res.toView(), nil
}
