// Package actions answers one question: what may people do to queues, jobs, nodes, recurring entries and workflows, and who has done it?
//
// [All] returns the table of actions. The API's routes, the buttons of the dashboard, the help of subcommands and the lines of the list
// of changes are made from its rows. An [Operator] performs the actions, and writes each change into that list.
package actions

import (
	"context"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/reshard"
)

// Target is what an action changes.
type Target string

// The targets of actions.
const (
	OnQueue Target = "queue"
	OnJobs  Target = "jobs" // the named jobs of a queue, or all that a query finds
	OnJob   Target = "job"
	OnNode  Target = "node"
	OnEntry Target = "entry" // of the recurring entries
	// OnWorkflow is an id of the queue of workflows.
	OnWorkflow Target = "workflow"
)

// Action is an action of people on a target.
type Action struct {
	Name     string // in forms, logs and the list of changes
	On       Target
	Path     string // of the API's route, below its target; "" if it has none, "/" if it has that of its target
	Command  string // the subcommand with this help, as in "queues pause"; "" if there is none
	Brief    string // a line for lists of routes and subcommands
	About    string // what happens, and what does not
	Label    string // of a button; "" if the pages have a form for it
	Done     string // what happened to the target
	Destroys bool   // it cannot be undone

	Jobs *browse.Action // the row of the table of actions on jobs; nil on other targets

	entry func(*recurring.Book, context.Context, string) error      // changes a recurring entry
	undo  bool                                                      // the value of undo for the method do
	do    func(*Operator, context.Context, *Request, *Result) error // nil if the Operator has a method of its own for it
}

// The actions that have a place of their own in routes or pages.
var (
	Pause = &Action{Name: "pause", On: OnQueue, Path: "pause", Command: "queues pause", do: (*Operator).pause,
		Brief: "stop handling a queue; it still accepts pushes", Label: "Pause", Done: "is paused.",
		About: "No node begins a job of the queue until it is resumed. The queue still accepts pushes, and jobs in flight are finished."}
	Resume = &Action{Name: "resume", On: OnQueue, Path: "resume", Command: "queues resume", do: (*Operator).resume,
		Brief: "let a paused queue go on", Label: "Resume", Done: "goes on. Nodes notice with the next renewal of their leases, within a second or two.",
		About: "Nodes begin jobs of the queue again."}
	DeleteQueue = &Action{Name: "delete queue", On: OnQueue, Path: "delete", Command: "queues delete", Destroys: true,
		Brief: "delete a retired queue, which no node handles"}
	Reshard = &Action{Name: reshard.ActionBegin, On: OnQueue, Path: "reshard", Command: "queues reshard",
		Brief: "change the number of shards of a queue while it runs"}
	CancelReshard = &Action{Name: reshard.ActionCancel, On: OnQueue,
		Brief: "cancel a reshard before its jobs move"}
	DropOutgoing = &Action{Name: "drop outgoing", On: OnQueue, Path: "outgoing/drop", Destroys: true,
		Brief: "drop follow-ups that wait to be delivered, the oldest first"}
	ChangeRules = &Action{Name: "rules", On: OnQueue, Path: "rules",
		Brief: "change rules on all nodes, for a time or until they are unset"}
	Hold = &Action{Name: "hold", On: OnQueue, Path: "holds", Command: "hold",
		Brief: "keep an id, or ids with a prefix, from handlers"}
	Unhold = &Action{Name: "unhold", On: OnQueue,
		Brief: "undo a hold"}
	Track = &Action{Name: "track", On: OnJob, Path: "track", Command: "track",
		Brief: "keep every run of an id in the journal"}
	Untrack = &Action{Name: "untrack", On: OnJob,
		Brief: "keep the runs of an id as the rule journal says"}
	Cancel = &Action{Name: "cancel", On: OnJob, Path: "cancel", Command: "cancel",
		Brief: "end the run of an id and tell its handler to stop"}
	Drain = &Action{Name: "drain", On: OnNode, Path: "drain", Command: "drain", do: (*Operator).drain,
		Brief: "empty a node; undo lets it take shards again", Label: "Drain", Done: "was asked to give its shards away.",
		About: "The node finishes what is in flight and gives its shards to the others. It stays up, empty, until this is undone or its process ends."}
	Undrain = &Action{Name: "undrain", On: OnNode, undo: true, do: (*Operator).drain,
		Brief: "let a node take shards again", Label: "Undo drain", Done: "was asked to own shards again.",
		About: "The node may own shards again."}
	AddEntry = &Action{Name: "add recurring", On: OnEntry, Path: "/", Command: "recurring add",
		Brief: "add a recurring entry"}
	EditEntry = &Action{Name: "edit recurring", On: OnEntry, Path: "edit", Command: "recurring edit",
		Brief: "change a recurring entry; an entry of a file until it is reset"}
	CloseWorkflow  = &Action{Name: "close workflow", On: OnWorkflow}
	CancelWorkflow = &Action{Name: "cancel workflow", On: OnWorkflow, Destroys: true}
)

var table = append([]*Action{Pause, Resume, DeleteQueue, Reshard, CancelReshard, DropOutgoing, ChangeRules, Hold, Unhold, Track, Untrack, Cancel, Drain, Undrain, AddEntry, EditEntry, CloseWorkflow, CancelWorkflow,
	{Name: "pause recurring", On: OnEntry, Path: "pause", Command: "recurring pause", entry: (*recurring.Book).Pause, do: (*Operator).changeEntry,
		Brief: "skip the ticks of an entry", Label: "Pause", Done: "is paused.",
		About: "Its ticks are skipped until it is resumed; they are not caught up. It stays paused when nodes restart."},
	{Name: "resume recurring", On: OnEntry, Path: "resume", Command: "recurring resume", entry: (*recurring.Book).Resume, do: (*Operator).changeEntry,
		Brief: "resume an entry with its next tick", Label: "Resume", Done: "goes on with its next tick.",
		About: "It is pushed again from its next tick on. Skipped ticks are not caught up."},
	{Name: "run recurring", On: OnEntry, Path: "run", Command: "recurring run", do: (*Operator).runEntry,
		Brief: "push the job of an entry now, independently of its ticks", Label: "Run now", Done: "was pushed.",
		About: "Its job is pushed once more, and its tick is now. Its other ticks stay."},
	{Name: "reset recurring", On: OnEntry, Path: "reset", Command: "recurring reset", entry: (*recurring.Book).Reset, do: (*Operator).changeEntry,
		Brief: "reset an entry to its file", Label: "Reset", Done: "is as its file says.",
		About: "Changes at run time are undone. The entry is as in the file of the node that started last. A pause stays."},
	{Name: "remove recurring", On: OnEntry, Path: "remove", Command: "recurring remove", entry: (*recurring.Book).Remove, do: (*Operator).changeEntry,
		Brief: "remove an entry; an entry of a file can only be paused", Label: "Remove", Done: "is removed.",
		About: "It is no longer pushed. Pushed jobs stay.", Destroys: true},
}, onJobs()...)

// All returns the table of actions.
func All() []*Action { return table }

func onJobs() (rows []*Action) {
	for _, a := range browse.Actions() {
		rows = append(rows, &Action{Name: a.Name, On: OnJobs, Path: a.Path, Command: strings.ReplaceAll(a.Path, "/", " "), Brief: a.Brief, About: a.About,
			Label: a.Label, Done: a.Done, Destroys: a.Destroys, Jobs: a, do: (*Operator).changeJobs})
	}
	return rows
}

// Named returns the action of a name, nil if there is none.
func Named(name string) *Action {
	return findAction(func(a *Action) bool { return a.Name == name })
}

// OfCommand returns the action that a subcommand does, nil if it does none.
func OfCommand(command string) *Action {
	return findAction(func(a *Action) bool { return command != "" && a.Command == command })
}

func findAction(is func(*Action) bool) *Action {
	if i := slices.IndexFunc(table, is); i >= 0 {
		return table[i]
	}
	return nil
}

// NamesIDs reports whether the action changes jobs that are named.
func (a *Action) NamesIDs() bool { return a.Jobs != nil && !a.Jobs.All }
