package browse

import (
	"context"
	"slices"
)

// Action is something that people do to jobs, either to jobs that they name or to all jobs that a
// query finds. The routes of the API, the buttons of the pages and the subcommands are made from
// the table [Actions].
type Action struct {
	Name     string  // in forms and logs
	Path     string  // of the API's route, below the route of the queue; "" if there is no route
	All      bool    // it takes no ids and applies to all jobs of its states
	States   []State // states of the jobs that it applies to; the first is the default
	Brief    string  // one line for lists of routes and subcommands
	Label    string  // of a button
	Done     string  // what happened to "3 jobs"
	About    string  // what the action does, and what it leaves alone
	Destroys bool    // it cannot be undone

	blocked  bool // named ids may be blocked as well
	takesOut bool // ready jobs leave the line
	apply    func(j *Jobs, ctx context.Context, in State, ids ...string) (int, error)
}

// The actions on jobs that are named or found by a query.
var (
	RunNow = &Action{Name: "run-now", Path: "jobs/run-now", States: []State{Anywhere, StateScheduled, StateRetry}, apply: runNow,
		Brief: "make waiting jobs due now", Label: "Run now", Done: "made due now",
		About: "They become due now, and run as soon as a handler takes them."}
	Kill = &Action{Name: "kill", Path: "jobs/kill", States: anyWaiting, apply: (*Jobs).Bury, blocked: true, takesOut: true,
		Brief: "send waiting jobs to the morgue", Label: "Kill", Done: "sent to the morgue",
		About: "Waiting payloads go to the morgue; they can be requeued from there. Payloads in flight are left alone."}
	Delete = &Action{Name: "delete", Path: "jobs/delete", States: anyWaiting, apply: (*Jobs).Delete, blocked: true, takesOut: true, Destroys: true,
		Brief: "delete waiting jobs", Label: "Delete", Done: "deleted",
		About: "Waiting payloads are deleted for good. Payloads in flight are left alone."}
	RequeueBlocked = &Action{Name: "unblock", Path: "blocked/requeue", States: []State{StateBlocked}, apply: (*Jobs).Requeue,
		Brief: "unblock blocked ids", Label: "Requeue", Done: "requeued",
		About: "They are unblocked, fresh and due now, with all their payloads."}
	BuryOldest = &Action{Name: "skip", Path: "blocked/skip", States: []State{StateBlocked}, apply: (*Jobs).BuryOldest,
		Brief: "bury the oldest payload of blocked ids and go on", Label: "Skip oldest", Done: "skipped and going on",
		About: "The oldest payload of each goes to the morgue, the rest is fresh and due now."}
	BuryBlocked = &Action{Name: "bury", Path: "blocked/bury", States: []State{StateBlocked}, apply: (*Jobs).Bury,
		Brief: "send blocked ids to the morgue", Label: "Bury", Done: "buried",
		About: "All their payloads go to the morgue; they can be requeued from there."}
	Requeue = &Action{Name: "requeue", Path: "morgue/requeue", States: []State{StateMorgue}, apply: (*Jobs).Requeue,
		Brief: "bring jobs back from the morgue", Label: "Requeue", Done: "requeued",
		About: "They come back from the morgue, fresh and due now."}
	DeleteBuried = &Action{Name: "delete-dead", Path: "morgue/delete", States: []State{StateMorgue}, apply: (*Jobs).Delete, Destroys: true,
		Brief: "delete buried jobs", Label: "Delete", Done: "deleted",
		About: "Their payloads in the morgue are deleted for good."}
)

// anyWaiting lists the states of waiting jobs, except for blocked jobs, which have actions of their
// own.
var anyWaiting = []State{Anywhere, StateReady, StateScheduled, StateRetry, StateFailed, StateHeld}

// Actions returns all actions.
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
		onAll(Delete, "delete-failed", "delete-all-failed", failed, "delete every failed job",
			"Delete all failed", "Every job that failed, whether its next attempt is due or not, is deleted for good."),
		onAll(RequeueBlocked, "unblock-all", "", blocked, "unblock every blocked id",
			"Requeue all", "The blocked ids are unblocked, fresh and due now, with all their payloads."),
		onAll(Requeue, "requeue-all", "", dead, "bring every job back from the morgue",
			"Requeue all", "They come back from the morgue, fresh and due now."),
		onAll(DeleteBuried, "delete-all-dead", "", dead, "delete every buried job",
			"Delete all", "The morgue's payloads are deleted for good."),
	}
}

// appliesTo reports whether the action applies to a named id in this state.
func (a *Action) appliesTo(state State) bool {
	return state != "" && (slices.Contains(a.States, state) || a.blocked && state == StateBlocked)
}

// Apply applies an action to ids and returns how many ids it changed.
func (j *Jobs) Apply(ctx context.Context, a *Action, ids ...string) (int, error) {
	return a.apply(j, ctx, a.States[0], ids...)
}

// Targets counts the ids that an action applies to now. It changes nothing. An id in flight counts
// if payloads were pushed during its flight and the action applies to these.
func (j *Jobs) Targets(ctx context.Context, a *Action, ids ...string) (n int, err error) {
	in := Anywhere
	if a.States[0] == StateMorgue {
		in = StateMorgue // an id in the morgue may wait as well
	}
	jobs, err := j.Find(ctx, in, ids...)
	if err != nil {
		return 0, err
	}
	for _, job := range jobs {
		if a.appliesTo(job.State) || job.State == StateInFlight && job.Parked > 0 && a.appliesTo(StateReady) {
			n++
		}
	}
	return n, nil
}

func runNow(j *Jobs, ctx context.Context, _ State, ids ...string) (int, error) {
	return j.RunNow(ctx, ids...)
}
