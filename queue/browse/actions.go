package browse

import (
	"context"
	"slices"
)

// Action is what people do to jobs: to those that are named, or to all that a query finds. The
// API's routes, the buttons of the pages and the subcommands are made of the table [Actions].
type Action struct {
	Name     string  // in forms and logs
	Path     string  // of the API's route, below that of the queue; "" = there is none
	All      bool    // it takes no ids: it is about all jobs of its states
	States   []State // whose jobs it takes; the first is meant where none is named
	Brief    string  // one line for lists of routes and subcommands
	Label    string  // of a button
	Done     string  // what happened to "3 jobs"
	About    string  // what happens, and what does not
	Destroys bool    // it cannot be undone

	blocked bool // ids that are named may be blocked as well
	apply   func(j *Jobs, ctx context.Context, in State, ids ...string) (int, error)
}

// The actions on jobs that are named, or found by a query.
var (
	RunNow = &Action{Name: "run-now", Path: "jobs/run-now", States: []State{"", StateScheduled, StateRetry}, apply: runNow,
		Brief: "make waiting jobs due now", Label: "Run now", Done: "made due now",
		About: "They become due now, and run as soon as a handler takes them."}
	Kill = &Action{Name: "kill", Path: "jobs/kill", States: anyWaiting, apply: (*Jobs).Bury, blocked: true,
		Brief: "send waiting jobs to the morgue", Label: "Kill", Done: "sent to the morgue",
		About: "What waits goes to the morgue; it can be requeued from there. What is in flight is left alone."}
	Delete = &Action{Name: "delete", Path: "jobs/delete", States: anyWaiting, apply: (*Jobs).Delete, blocked: true, Destroys: true,
		Brief: "forget waiting jobs", Label: "Delete", Done: "deleted",
		About: "What waits is forgotten for good. What is in flight is left alone."}
	RequeueBlocked = &Action{Name: "unblock", Path: "blocked/requeue", States: []State{StateBlocked}, apply: (*Jobs).Requeue,
		Brief: "let blocked ids go on", Label: "Requeue", Done: "requeued",
		About: "They go on, fresh and due now, with all that waits for them."}
	BuryOldest = &Action{Name: "skip", Path: "blocked/skip", States: []State{StateBlocked}, apply: (*Jobs).BuryOldest,
		Brief: "bury the oldest payload of blocked ids and go on", Label: "Skip oldest", Done: "skipped and going on",
		About: "The oldest payload of each goes to the morgue, the rest is fresh and due now."}
	BuryBlocked = &Action{Name: "bury", Path: "blocked/bury", States: []State{StateBlocked}, apply: (*Jobs).Bury,
		Brief: "send blocked ids to the morgue", Label: "Bury", Done: "buried",
		About: "All that waits for them goes to the morgue; it can be requeued from there."}
	Requeue = &Action{Name: "requeue", Path: "morgue/requeue", States: []State{StateMorgue}, apply: (*Jobs).Requeue,
		Brief: "bring jobs back from the morgue", Label: "Requeue", Done: "requeued",
		About: "They come back from the morgue, fresh and due now."}
	DeleteBuried = &Action{Name: "delete-dead", Path: "morgue/delete", States: []State{StateMorgue}, apply: (*Jobs).Delete, Destroys: true,
		Brief: "forget buried jobs", Label: "Delete", Done: "deleted",
		About: "What the morgue has of them is forgotten for good."}
)

// anyWaiting are the states of jobs that wait, but for blocked ones, which have actions of their
// own.
var anyWaiting = []State{"", StateReady, StateScheduled, StateRetry, StateFailed, StateHeld}

// Actions are all there is.
func Actions() []*Action {
	onAll := func(some *Action, name, path string, states []State, brief, label, about string) *Action {
		of := *some
		of.Name, of.Path, of.All, of.States, of.Brief, of.Label, of.About, of.blocked = name, path, true, states, brief, label, about, false
		return &of
	}
	failed, blocked, dead := []State{StateFailed}, []State{StateBlocked}, []State{StateMorgue}
	return []*Action{RunNow, Kill, Delete, RequeueBlocked, BuryOldest, BuryBlocked, Requeue, DeleteBuried,
		onAll(RunNow, "run-all", "run-all-now", RunNow.States, "make every scheduled and failed job due now",
			"Run all now", "Every scheduled and every failed job becomes due now."),
		onAll(RunNow, "run-scheduled", "", []State{StateScheduled}, "make every scheduled job due now",
			"Run all scheduled now", "The scheduled jobs become due now."),
		onAll(RunNow, "run-failed", "", []State{StateRetry}, "make every failed job due now",
			"Run all failed now", "The failed jobs become due now."),
		onAll(Kill, "kill-failed", "kill-all-failed", failed, "send every failed job to the morgue",
			"Kill all failed", "Every job that failed, whether its next attempt is due or not, goes to the morgue; it can be requeued from there."),
		onAll(Delete, "delete-failed", "delete-all-failed", failed, "forget every failed job",
			"Delete all failed", "Every job that failed, whether its next attempt is due or not, is forgotten for good."),
		onAll(RequeueBlocked, "unblock-all", "", blocked, "let every blocked id go on",
			"Requeue all", "The blocked ids go on, fresh and due now, with all that waits for them."),
		onAll(Requeue, "requeue-all", "", dead, "bring every job back from the morgue",
			"Requeue all", "They come back from the morgue, fresh and due now."),
		onAll(DeleteBuried, "delete-all-dead", "", dead, "forget every buried job",
			"Delete all", "The morgue's payloads are forgotten for good."),
	}
}

// takes reports whether the action applies to an id that is named and in this state.
func (a *Action) takes(state State) bool {
	return state != "" && (slices.Contains(a.States, state) || a.blocked && state == StateBlocked)
}

// Apply does an action to ids, and says how many it changed.
func (j *Jobs) Apply(ctx context.Context, a *Action, ids ...string) (int, error) {
	return a.apply(j, ctx, a.States[0], ids...)
}

// Targets counts the ids to which an action applies now, and changes nothing. Of an id in flight
// that is what was pushed meanwhile, as for the action.
func (j *Jobs) Targets(ctx context.Context, a *Action, ids ...string) (n int, err error) {
	in := State("")
	if a.States[0] == StateMorgue {
		in = StateMorgue // an id there may wait as well
	}
	jobs, err := j.Find(ctx, in, ids...)
	if err != nil {
		return 0, err
	}
	for _, job := range jobs {
		if a.takes(job.State) || job.State == StateInFlight && job.Parked > 0 && a.takes(StateReady) {
			n++
		}
	}
	return n, nil
}

func runNow(j *Jobs, ctx context.Context, _ State, ids ...string) (int, error) {
	return j.RunNow(ctx, ids...)
}
