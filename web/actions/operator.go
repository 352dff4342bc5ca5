package actions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/status"
)

// Node is the node that people ask.
type Node interface {
	Name() string
	Client() *queue.Client
	// Rules returns the rules of a queue in the node's configuration, by key. They are nil if the node does not handle the queue.
	Rules(queue string) map[string]rules.Base
}

// Operator performs actions for people. It is safe for concurrent use.
type Operator struct {
	node    Node
	client  *protocol.Client
	cluster status.Cluster
	log     *slog.Logger
}

// New returns the operator of a node.
func New(node Node, cluster status.Cluster, log *slog.Logger) *Operator {
	return &Operator{node, node.Client().Protocol(), cluster, log}
}

// FieldError is the error of a wrong argument.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

func badField(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// Request asks for an action of the table.
type Request struct {
	*Action
	By     changes.Who     // the sender; the operator adds its node
	Queue  *protocol.Queue // of actions on a queue or its jobs
	Target string          // the name of the node or the recurring entry
	IDs    []string        // the jobs; nil for all that Query finds
	Query  browse.Query
	// Described says which jobs Query means, in the words of the sender, for the list of changes.
	Described json.RawMessage
	// For is how long further steps of a query may begin. The first step always runs.
	For time.Duration
}

// Result says how an action went. After an error it says how far it came.
type Result struct {
	browse.Step                  // of an action on jobs
	MayBegin    []string         // instances that have not noticed a pause in time
	Instance    string           // that was asked to drain or to own shards again
	Noticed     bool             // the lease of that instance says so
	Shards      int              // that it owns, by its lease
	Entry       recurring.Entry  // as it is after the action, unless that removes it
	Pushed      *protocol.Result // of a run of an entry; its error is that of the push
}

// Do performs an action.
func (o *Operator) Do(ctx context.Context, r Request) (res Result, err error) {
	if r.do == nil {
		return res, fmt.Errorf("%s is not done by its name alone", r.Name)
	}
	err = r.do(o, ctx, &r, &res)
	return res, err
}

func (r *Request) newLine() changes.Line {
	line := changes.Line{Who: r.By, Action: r.Name, Target: r.Target, IDs: r.IDs}
	if r.Queue != nil {
		line.Queue = r.Queue.Name
	}
	return line
}

// recordTimeout bounds the time for a line that is written after its change.
const recordTimeout = 5 * time.Second

// record writes a change into the log, and into the cluster's list of changes. The change is made, so an error of the list is only
// logged.
func (o *Operator) record(ctx context.Context, line changes.Line) {
	line.Who = o.withNode(line.Who)
	o.logChange(line)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := changes.In(o.client.DB()).Add(ctx, line); err != nil {
		o.log.Warn("a change is not in the list of changes", "action", line.Action, "queue", line.Queue, "err", err)
	}
}

// withNode adds the node that was asked to a sender.
func (o *Operator) withNode(who changes.Who) changes.Who {
	who.Node = o.node.Name()
	return who
}

// logChange writes a change into the log. Changes of rules are in the list of changes already, as their script writes both.
func (o *Operator) logChange(line changes.Line, more ...any) {
	o.log.Info("changed by hand", append([]any{"action", line.Action, "queue", line.Queue, "target", line.Target, "ids", line.IDs[:min(len(line.IDs), maxLoggedIDs)],
		"jobs", line.Count, "by", line.Who.String(), "address", line.Address}, more...)...)
}

// maxLoggedIDs bounds the ids in a line of the log.
const maxLoggedIDs = 10

// pause returns when no node begins a job of the queue any more, or names those that may.
func (o *Operator) pause(ctx context.Context, r *Request, res *Result) (err error) {
	if err := o.client.Registry().Pause(ctx, r.Queue.Name); err != nil {
		return err
	}
	o.record(ctx, r.newLine())
	res.MayBegin, err = status.AwaitPause(ctx, o.cluster, r.Queue.Name)
	return err
}

func (o *Operator) resume(ctx context.Context, r *Request, _ *Result) error {
	err := o.client.Registry().Resume(ctx, r.Queue.Name)
	if err == nil {
		o.record(ctx, r.newLine())
	}
	return err
}

// drain waits until the node has no shard left, and after an undo until it has noticed.
func (o *Operator) drain(ctx context.Context, r *Request, res *Result) (err error) {
	on := !r.undo
	if res.Instance, err = o.cluster.Drain(ctx, r.Target, on); err != nil {
		return err
	}
	o.record(ctx, r.newLine())
	now, noticed, err := status.AwaitDrain(ctx, o.cluster, res.Instance, on)
	res.Noticed, res.Shards = noticed, now.Shards
	return err
}

// changeJobs acts on the jobs that are named, or step by step on all that the query finds.
func (o *Operator) changeJobs(ctx context.Context, r *Request, res *Result) (err error) {
	jobs := browse.Of(r.Queue)
	switch {
	case r.IDs == nil:
		err = res.bulk(ctx, jobs, r)
	case r.Query.DryRun:
		res.Changed, err = jobs.Targets(ctx, r.Jobs, r.IDs...)
		res.Skipped = len(r.IDs) - res.Changed
	default:
		res.Changed, err = jobs.Apply(ctx, r.Jobs, r.IDs...)
		res.Skipped = len(r.IDs) - res.Changed
	}
	if res.Changed > 0 && !r.Query.DryRun {
		line := r.newLine()
		line.Count, line.New = res.Changed, r.Described
		o.record(ctx, line)
	}
	return err
}

func (res *Result) bulk(ctx context.Context, jobs *browse.Jobs, r *Request) error {
	for began := time.Now(); ; {
		step, err := jobs.Bulk(ctx, r.Jobs, r.Query)
		res.Changed, res.Skipped, res.Left, res.Next = res.Changed+step.Changed, res.Skipped+step.Skipped, step.Left, step.Next
		if r.Query.Cursor = step.Next; step.Next == "" || err != nil || time.Since(began) >= r.For {
			return err
		}
	}
}

// DeleteQueue deletes a queue that no node handles. With force it need not be empty. A dry run counts the jobs of the queue, and
// returns [remove.ErrNotEmpty] beside the counts if only force would delete it.
func (o *Operator) DeleteQueue(ctx context.Context, by changes.Who, name string, force, dryRun bool) (remove.Deleted, error) {
	d := remove.Deletion{Force: force, Handled: func(ctx context.Context) ([]string, error) {
		handled, err := o.cluster.Handled(ctx)
		return handled.By(name), err
	}}
	if dryRun {
		return remove.Deletable(ctx, o.client, name, d)
	}
	had, err := remove.Delete(ctx, o.client, name, d)
	if err == nil && !had.Before {
		o.record(ctx, changes.Line{Who: by, Action: DeleteQueue.Name, Queue: name, Count: had.Jobs + had.Morgue})
	}
	return had, err
}

// DropOutgoing removes the first n follow-ups of a queue that wait to be delivered, and returns how many it has removed.
// The line of the change has their number by target queue.
func (o *Operator) DropOutgoing(ctx context.Context, by changes.Who, q *protocol.Queue, n int) (dropped int, err error) {
	targets, err := q.DropOutgoing(ctx, n)
	for _, count := range targets {
		dropped += count
	}
	if dropped > 0 {
		old, _ := json.Marshal(targets) // a map of numbers
		o.record(ctx, changes.Line{Who: by, Action: DropOutgoing.Name, Queue: q.Name, Count: dropped, Old: old})
	}
	return dropped, err
}

// CloseWorkflow says that no more jobs will be added to a workflow.
func (o *Operator) CloseWorkflow(ctx context.Context, by changes.Who, id string) error {
	return o.changeWorkflow(ctx, by, CloseWorkflow, workflow.Close, id)
}

// CancelWorkflow ends a workflow without a push.
func (o *Operator) CancelWorkflow(ctx context.Context, by changes.Who, id string) error {
	return o.changeWorkflow(ctx, by, CancelWorkflow, workflow.Cancel, id)
}

func (o *Operator) changeWorkflow(ctx context.Context, by changes.Who, a *Action, do func(context.Context, *protocol.Client, string) (bool, error), id string) error {
	isNew, err := do(ctx, o.client, id)
	if isNew {
		o.record(ctx, changes.Line{Who: by, Action: a.Name, Queue: protocol.Workflows, IDs: []string{id}})
	}
	return err
}

// AddEntry adds a recurring entry, and returns it.
func (o *Operator) AddEntry(ctx context.Context, by changes.Who, name string, spec recurring.Spec) (recurring.Entry, error) {
	if err := recurring.Of(o.client).Add(ctx, name, spec); err != nil {
		return recurring.Entry{}, err
	}
	return o.recordEntry(ctx, changes.Line{Who: by, Action: AddEntry.Name, Target: name})
}

// EditEntry lets edit change a recurring entry, and returns the changed entry.
func (o *Operator) EditEntry(ctx context.Context, by changes.Who, name string, edit func(*recurring.Spec) error) (recurring.Entry, error) {
	if err := recurring.Of(o.client).Edit(ctx, name, edit); err != nil {
		return recurring.Entry{}, err
	}
	return o.recordEntry(ctx, changes.Line{Who: by, Action: EditEntry.Name, Target: name})
}

// recordEntry records a change of an entry with the changed entry, and returns that.
func (o *Operator) recordEntry(ctx context.Context, line changes.Line) (recurring.Entry, error) {
	e, err := recurring.Of(o.client).Entry(ctx, line.Target)
	if err == nil {
		line.Queue = e.Queue
		line.New, _ = json.Marshal(e.Spec) // it was read from JSON
	}
	o.record(ctx, line)
	return e, err
}

// changeEntry changes a recurring entry. The line of a removal has the removed entry.
func (o *Operator) changeEntry(ctx context.Context, r *Request, res *Result) error {
	book, line := recurring.Of(o.client), r.newLine()
	before, err := book.Entry(ctx, r.Target)
	if err != nil {
		return err
	}
	if err := r.entry(book, ctx, r.Target); err != nil {
		return err
	}
	if !r.Destroys {
		res.Entry, err = o.recordEntry(ctx, line)
		return err
	}
	line.Queue = before.Queue
	line.Old, _ = json.Marshal(before.Spec) // it was read from JSON
	o.record(ctx, line)
	return nil
}

// runEntry pushes the job of an entry.
func (o *Operator) runEntry(ctx context.Context, r *Request, res *Result) (err error) {
	book := recurring.Of(o.client)
	if res.Entry, err = book.Entry(ctx, r.Target); err != nil {
		return err
	}
	pushed, err := book.Run(ctx, r.Target)
	if err != nil {
		return err
	}
	if res.Pushed = &pushed; pushed.Err != nil {
		return nil
	}
	line := r.newLine()
	line.Queue, line.IDs = res.Entry.Queue, []string{res.Entry.ID}
	o.record(ctx, line)
	return nil
}

// Cancel ends the run of an id. If the id is to be held then, the hold is in force when Cancel returns.
func (o *Operator) Cancel(ctx context.Context, by changes.Who, q *protocol.Queue, id string, then protocol.Then, why string) error {
	by = o.withNode(by)
	undo, err := o.prepareCancel(ctx, by, q, id, then, why)
	if err != nil {
		return err
	}
	if err := o.cluster.Cancel(ctx, q, id, protocol.Cancellation{Then: then, By: by.String(), Why: why}); err != nil {
		return errors.Join(err, undo())
	}
	line := changes.Line{Who: by, Action: Cancel.Name, Queue: q.Name, IDs: []string{id}, Why: why}
	line.New, _ = json.Marshal(map[string]protocol.Then{"then": then}) // plain strings always marshal
	o.record(ctx, line)
	return nil
}
