package dashboard

import (
	"context"
	"slices"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// deed is something a person may do: every button is one.
type deed struct {
	name   string
	label  string // of the button
	done   string // "3 jobs <done>"
	about  string // what happens, and what does not
	danger bool   // it cannot be undone

	// One of these says what it works on.
	some   func(*queue.Queue, context.Context, ...string) (int, error) // ids that are named
	all    queue.Action                                                // a list
	paused *bool                                                       // a queue
	drain  *bool                                                       // a node

	states []queue.State // where its jobs are; for all, "" stands for its default
}

func deeds() []deed {
	yes, no := true, false
	waits := []queue.State{queue.Ready, queue.Scheduled, queue.Retrying, queue.Waiting}
	dead, blocked, failed := []queue.State{queue.Dead}, []queue.State{queue.Waiting}, []queue.State{queue.Failed}
	return []deed{
		{name: "run-now", label: "Run now", done: "made due now", about: "They become due now, and run as soon as a handler takes them.",
			some: (*queue.Queue).RunNow, states: []queue.State{queue.Scheduled, queue.Retrying}},
		{name: "kill", label: "Kill", done: "sent to the morgue", about: "What waits goes to the morgue; it can be requeued from there. What is in flight is left alone.",
			some: inPlace((*queue.Queue).Kill, queue.Anywhere), states: waits},
		{name: "delete", label: "Delete", done: "deleted", about: "What waits is forgotten for good. What is in flight is left alone.", danger: true,
			some: inPlace((*queue.Queue).Delete, queue.Anywhere), states: waits},
		{name: "unblock", label: "Requeue", done: "requeued", about: "They go on, fresh and due now, with all that waits for them.",
			some: (*queue.Queue).Unblock, states: blocked},
		{name: "skip", label: "Skip oldest", done: "skipped and going on", about: "The oldest payload of each goes to the morgue, the rest is fresh and due now.",
			some: inPlace((*queue.Queue).KillOldest, queue.Blocked), states: blocked},
		{name: "bury", label: "Bury", done: "buried", about: "All that waits for them goes to the morgue; it can be requeued from there.",
			some: inPlace((*queue.Queue).Kill, queue.Blocked), states: blocked},
		{name: "requeue", label: "Requeue", done: "requeued", about: "They come back from the morgue, fresh and due now.",
			some: (*queue.Queue).Requeue, states: dead},
		{name: "delete-dead", label: "Delete", done: "deleted", about: "What the morgue has of them is forgotten for good.", danger: true,
			some: (*queue.Queue).DeleteDead, states: dead},

		{name: "run-all", label: "Run all now", done: "made due now", about: "Every scheduled and every failed job becomes due now.",
			all: queue.RunNow, states: []queue.State{queue.Scheduled, queue.Retrying}},
		{name: "run-failed", label: "Run all failed now", done: "made due now", about: "The failed jobs become due now.",
			all: queue.RunNow, states: []queue.State{queue.Retrying}},
		{name: "kill-failed", label: "Kill all failed", done: "sent to the morgue", about: "Every job that failed, whether its next attempt is due or not, goes to the morgue; it can be requeued from there.",
			all: queue.Kill, states: failed},
		{name: "delete-failed", label: "Delete all failed", done: "deleted", about: "Every job that failed, whether its next attempt is due or not, is forgotten for good.", danger: true,
			all: queue.Delete, states: failed},
		{name: "unblock-all", label: "Requeue all", done: "requeued", about: "The blocked ids go on, fresh and due now, with all that waits for them.",
			all: queue.Requeue, states: blocked},
		{name: "requeue-all", label: "Requeue all", done: "requeued", about: "They come back from the morgue, fresh and due now.",
			all: queue.Requeue, states: dead},
		{name: "delete-all-dead", label: "Delete all", done: "deleted", about: "The morgue's payloads are forgotten for good.", danger: true,
			all: queue.Delete, states: dead},

		{name: "pause", label: "Pause", about: "No node takes jobs of this queue until it is resumed. Pushes are taken all the while; what is in flight is finished.", paused: &yes},
		{name: "resume", label: "Resume", about: "Nodes take jobs of this queue again.", paused: &no},
		{name: "drain", label: "Drain", about: "The node finishes what is in flight and gives its shards to the others. It stays up, empty, until this is undone or its process ends.", drain: &yes},
		{name: "undrain", label: "Undo drain", about: "The node may own shards again.", drain: &no},
	}
}

// inPlace is an action on ids of one place.
func inPlace(act func(*queue.Queue, context.Context, queue.Place, ...string) (int, error), place queue.Place) func(*queue.Queue, context.Context, ...string) (int, error) {
	return func(q *queue.Queue, ctx context.Context, ids ...string) (int, error) {
		return act(q, ctx, place, ids...)
	}
}

// deedNamed finds a deed.
func deedNamed(name string) (deed, bool) {
	all := deeds()
	i := slices.IndexFunc(all, func(d deed) bool { return d.name == name })
	if i < 0 {
		return deed{}, false
	}
	return all[i], true
}

// query is the list that a deed on all works on.
func (d deed) query(kind string) queue.Query {
	q := queue.Query{Kind: kind}
	if len(d.states) == 1 {
		q.State = d.states[0]
	}
	return q
}

// button is a deed on a page.
type button struct {
	Deed, Label string
	Danger      bool
}

func buttonOf(name string) button {
	d, _ := deedNamed(name)
	return button{Deed: d.name, Label: d.label, Danger: d.danger}
}

func buttonsOf(names []string) []button {
	var all []button
	for _, name := range names {
		all = append(all, buttonOf(name))
	}
	return all
}

func queueButtons(f *figures) []button {
	first := "pause"
	if f.Entry.Paused {
		first = "resume"
	}
	return buttonsOf([]string{first, "run-all", "kill-failed", "delete-failed"})
}

func drainButton(n web.NodeStatus) *button {
	b := buttonOf("drain")
	if n.State == web.Draining {
		b = buttonOf("undrain")
	}
	return &b
}
