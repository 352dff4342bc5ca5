package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/migrate/movein"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/wire"
)

// command is the grammar of the command line.
type command struct {
	connect.Flags `embed:""`

	Queue string `required:"" short:"q" placeholder:"NAME" help:"Queue to move the jobs into. It must be registered, or in the configuration."`

	From    string      `required:"" env:"LOWKIQ_FROM" placeholder:"URL" help:"Redis of Ruby's Lowkiq: redis://, rediss:// or redis+sentinel://. LOWKIQ_FROM sets it as well. Give a password there, because ps shows flags to everybody."`
	Worker  string      `required:"" placeholder:"NAME" help:"Its queue_name: the name of the worker's class, unless it is set."`
	Shards  int         `required:"" placeholder:"N" help:"Its shards_count."`
	Payload movein.Form `short:"p" enum:",json,marshal" default:"" placeholder:"json|marshal" help:"json: plain data that Ruby dumped becomes JSON. marshal: bytes stay as Lowkiq.dump_payload made them. The first move needs it, and later commands remember it until all jobs are back."`

	DryRun         bool          `help:"Change nothing. Count the jobs, and list those that cannot be moved with the reasons."`
	WorkersStopped bool          `help:"Your promise that no worker of Ruby's Lowkiq works on the queue now or later."`
	Back           bool          `help:"Move back to Ruby's Lowkiq: moved jobs as they were, and jobs pushed to the paused queue since."`
	Keep           time.Duration `default:"168h" placeholder:"TIME" help:"How long the old Redis keeps moved jobs, so that --back can return them as they were (${default}). 0 keeps none."`
	DueNow         bool          `help:"Also move jobs that Ruby never runs, with a negative or infinite perform_in. They become due now."`
	Follow         bool          `help:"Continue while producers of Ruby's Lowkiq push, until no job has come for the time of --quiet, or until SIGINT or SIGTERM."`
	Quiet          time.Duration `default:"30s" placeholder:"TIME" help:"With --follow: end when no job has come for this long (${default})."`
	Patience       time.Duration `default:"30s" placeholder:"TIME" help:"How long to retry while one of the two Redis servers is away (${default})."`
	Output         string        `short:"o" enum:"table,json" default:"table" help:"table or json."`

	Version kong.VersionFlag `help:"Print the version."`

	Watch time.Duration `hidden:"" default:"5s" help:"How long to watch for a worker."`
}

// migrated is the summary of a migration.
type migrated struct {
	Found   movein.Report  `json:"found"`
	Moved   *movein.Counts `json:"moved,omitempty"` // nil after a dry run; after --back, the jobs that came back
	Skew    string         `json:"clock_skew"`      // how far the old Redis's clock is ahead of the new Redis's
	Left    []leftJob      `json:"left"`            // the first jobs that stay
	Orphans []orphan       `json:"orphans"`         // the first orphans that a dry run has found
	Twice   []wire.JobID   `json:"twice,omitempty"` // the first ids that were moved while in flight although a worker lives
}

// orphan is an id with payloads that no index has.
type orphan struct {
	wire.JobID
	Key      string `json:"key"` // the key before the id
	Payloads int    `json:"payloads"`
}

type leftJob struct {
	wire.JobID
	Morgue bool   `json:"morgue,omitempty"`
	Reason string `json:"reason"`
}

// maxListed is how many of the jobs that stay are listed.
const maxListed = 1000

// maxKeep is the maximum of --keep.
const maxKeep = 90 * 24 * time.Hour

// maxSkew is how far the clocks may differ while producers push. A job would be due too early or too late by that much.
const maxSkew = time.Second

// followEvery is the time between two moves with --follow.
const followEvery = time.Second

// checkFlags returns an error with the code exit.Usage if flags exclude each other or are out of range.
func (c *command) checkFlags() error {
	switch {
	case c.Shards < 1 || c.Shards > 1_000_000:
		return exit.Fail(exit.Usage, "--shards is %d; it must be the shards_count of the worker", c.Shards)
	case c.DryRun && c.Follow:
		return exit.Fail(exit.Usage, "--dry-run and --follow exclude each other")
	case !c.DryRun && !c.WorkersStopped:
		return exit.Fail(exit.Usage, "jobs that a worker is handling are moved as well and would run twice: stop all workers of Ruby's "+
			"Lowkiq and give --workers-stopped, or count with --dry-run")
	case c.Back && (c.Follow || c.DueNow):
		return exit.Fail(exit.Usage, "--back moves all jobs once, without --follow and --due-now")
	case c.Keep < 0 || c.Keep > maxKeep:
		return exit.Fail(exit.Usage, "--keep is %s; it must be between 0 and %s", c.Keep, maxKeep)
	case c.Quiet <= 0 || c.Patience <= 0:
		return exit.Fail(exit.Usage, "--quiet and --patience are %s and %s; both must be more than 0", c.Quiet, c.Patience)
	}
	return nil
}

// Run counts the jobs, then moves them.
func (c *command) Run(s *terminal.Streams, grammar *kong.Context) error {
	if err := c.checkFlags(); err != nil {
		return err
	}
	cfg, err := c.LoadConfig(grammar)
	if err != nil {
		return err
	}
	ctx, stop := signals.UntilInterrupted(signals.StopSignals()...)
	defer stop()
	client, err := connect.OpenClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	old, err := rubyqueue.Open(rubyqueue.Config{URL: c.From, Timeout: 10 * time.Second, Name: c.Worker, Shards: c.Shards})
	if err != nil {
		return exit.Fail(exit.Usage, "--from: %w", err)
	}
	defer old.Close()
	q, err := connect.FindQueue(ctx, client, cfg, c.Queue, 0)
	if errors.Is(err, lowkiq.ErrUnknownQueue) {
		return c.unknownQueue(ctx, client)
	}
	if err != nil {
		return err
	}
	m, err := c.newMover(ctx, old, q)
	if err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	m.To = client.Cluster() + "/" + q.Name
	run := &migration{command: c, Streams: s, mover: m, old: old, queue: q}
	err = run.run(ctx, client)
	return c.summarize(ctx, err, run)
}

// unknownQueue returns the error of a queue that is not known, with the names of those that are.
func (c *command) unknownQueue(ctx context.Context, client *protocol.Client) error {
	entries, err := client.Registry().Entries(ctx)
	if err != nil {
		return err
	}
	has := "it has no queue"
	if names := slices.Sorted(maps.Keys(entries)); len(names) > 0 {
		has = "it has " + suggest.List(names)
	}
	return exit.Fail(exit.Usage, "cluster %q has no queue %s: %s; name the queue and its shards in the file of --config to register it",
		client.Cluster(), c.Queue, has)
}

// newMover returns a Mover with the present limits of the new queue. A later change of the queue's rules does not reach it.
func (c *command) newMover(ctx context.Context, old *rubyqueue.Queue, q *protocol.Queue) (*movein.Mover, error) {
	rules, err := q.Storing(ctx)
	if err != nil {
		return nil, err
	}
	return &movein.Mover{
		Old: old, Shards: c.Shards, Form: c.Payload, DueNow: c.DueNow, Keep: c.Keep, KeepOpen: true,
		Limits:       movein.Limits{Payload: rules.PayloadBytes, Payloads: rules.Payloads, IDPayload: rules.IDPayload},
		Import:       movein.ImportInto(q),
		SealSource:   func(ctx context.Context, source string) error { return transfer.Seal(ctx, q, source) },
		ForgetSource: func(ctx context.Context, source string) error { return transfer.Forget(ctx, q, source) },
	}, nil
}

// migration is a run of the command.
type migration struct {
	*command
	*terminal.Streams
	mover *movein.Mover
	old   *rubyqueue.Queue
	queue *protocol.Queue
	sum   migrated
	bar   *terminal.Bar
	done  int

	looked bool // found is what there was
}

// run counts the jobs, and moves them unless this is a dry run.
func (r *migration) run(ctx context.Context, client *protocol.Client) error {
	r.sum.Left, r.sum.Orphans = []leftJob{}, []orphan{}
	r.mover.OnLeft = r.listLeft
	r.mover.OnProgress = func(n int) {
		r.done += n
		r.bar.Set(r.done)
	}
	if err := r.compareClocks(ctx, client); err != nil {
		return err
	}
	if err := r.mover.AgreeOnWay(ctx); err != nil {
		return err
	}
	if nodes, err := client.Leases().All(ctx); err == nil && len(nodes) == 0 && !r.Back {
		terminal.Fprintf(r.Err, "no node of cluster %q is up: what comes waits until one is; is --cluster right?\n", client.Cluster()) //nolint:errcheck // stderr
	}
	if !r.DryRun {
		if err := r.mover.MarkFlights(ctx); err != nil {
			return err
		}
	}
	seen, err := r.mover.WatchWorkers(ctx, r.Watch)
	if err != nil {
		return err
	}
	if err := r.awaitPause(ctx, client); err != nil {
		return err
	}
	if r.Back {
		return r.moveBack(ctx, client)
	}
	r.bar = terminal.NewBar(r.Err, -1, "looking")
	found, err := r.mover.Survey(ctx)
	r.bar.Clear()
	if err != nil {
		return err
	}
	r.sum.Found, r.looked = found, true
	if r.DryRun {
		err = r.listOrphans(ctx)
	}
	if err == nil {
		err = r.checkKnown(ctx)
	}
	if err != nil || r.DryRun {
		return err
	}
	r.sum.Moved = &movein.Counts{}
	r.done, r.bar = 0, terminal.NewBar(r.Err, int64(found.Jobs+found.Morgue), "moving")
	defer func() { r.bar.Clear() }()
	if !r.Follow {
		return r.moveOnce(ctx, seen)
	}
	return r.followProducers(ctx, seen)
}

// awaitPause waits until no node begins a job of a paused queue any more. Otherwise jobs that were pushed to the queue would
// run before older jobs that are still to be moved. A move back needs a paused queue.
func (r *migration) awaitPause(ctx context.Context, client *protocol.Client) error {
	if r.DryRun {
		return nil
	}
	entries, err := client.Registry().Entries(ctx)
	switch {
	case err != nil:
		return err
	case entries[r.queue.Name].Paused:
	case r.Back:
		return exit.Fail(exit.Failed, "the queue %s is not paused, so its workers may take what goes back: lowkiq-node queues pause %s",
			r.queue.Name, r.queue.Name)
	default:
		return nil
	}
	late, err := status.AwaitPause(ctx, noticed{client}, r.queue.Name)
	if err == nil && len(late) > 0 && ctx.Err() == nil {
		return status.StillMayBegin(r.queue.Name, late)
	}
	return err
}

// noticed reads from Redis which nodes have noticed a pause.
type noticed struct{ client *protocol.Client }

// MayBegin implements status.Pausing.
func (n noticed) MayBegin(ctx context.Context, name string) ([]string, error) {
	instances, err := n.client.Leases().All(ctx)
	return identity.MayBegin(name, instances), err
}

// moveBack moves the jobs of the paused queue back to Ruby.
func (r *migration) moveBack(ctx context.Context, client *protocol.Client) error {
	r.bar = terminal.NewBar(r.Err, -1, "looking")
	found, err := r.mover.SurveyBack(ctx, r.queue)
	r.bar.Clear()
	if err != nil {
		return err
	}
	r.sum.Found, r.looked = found, true
	if err := r.checkKnown(ctx); err != nil || r.DryRun {
		return err
	}
	r.sum.Moved = &movein.Counts{}
	r.done, r.bar = 0, terminal.NewBar(r.Err, int64(r.sum.Found.Jobs+r.sum.Found.Morgue), "moving back")
	defer func() { r.bar.Clear() }()
	return r.retryWhileAway(ctx, func() (movein.Counts, error) { return r.mover.MoveBack(ctx, r.queue) })
}

// checkKnown returns an error if the old Redis has no job and no trace of the queue, because a name or an address must be
// mistyped. An empty queue leaves traces: its counters, or the way of an earlier move.
func (r *migration) checkKnown(ctx context.Context) error {
	if n := r.sum.Found.Counts; !r.Back && n.Jobs+n.Morgue+n.Left+r.sum.Found.Orphans > 0 {
		return nil
	}
	known, err := r.old.IsKnown(ctx)
	if err != nil {
		return err
	}
	if n := r.sum.Found.Counts; known && r.Back && !r.mover.MovedBefore && n.Jobs+n.Morgue+n.Left == 0 {
		r.looked = false
		return exit.Fail(exit.Failed, "the queue %s has nothing, and nothing of %s was moved to it: are --cluster, --queue and --worker "+
			"right?", r.queue.Name, r.Worker)
	}
	if known {
		return nil
	}
	r.looked = false
	others, err := r.old.DescribeOthers(ctx)
	if err != nil {
		return err
	}
	return exit.Fail(exit.Failed, "the old Redis has no queue %s and no trace of one: %s; are --worker and the database of --from right?",
		r.Worker, others)
}

// compareClocks compares the clocks of both Redis servers.
func (r *migration) compareClocks(ctx context.Context, client *protocol.Client) error {
	before := time.Now()
	there, err := r.old.Time(ctx)
	if err != nil {
		if queue.Transient(err) || ctx.Err() != nil {
			return fmt.Errorf("--from: %w", err)
		}
		return exit.Fail(exit.Usage, "--from: %w", err) // its password or database
	}
	here, err := client.Time(ctx)
	if err != nil {
		return err
	}
	took := time.Since(before)
	skew := there.Sub(here) + took/2
	r.sum.Skew = skew.Round(time.Millisecond).String()
	if r.Follow && (skew > maxSkew+took || skew < -maxSkew-took) {
		return exit.Fail(exit.Failed, "the clocks of the two Redis differ by %s: set them right before producers change over", r.sum.Skew)
	}
	return nil
}

// listLeft lists a job that stays.
func (r *migration) listLeft(l movein.Left) {
	r.bar.Clear()
	where := ""
	if l.Morgue {
		where = ", in the morgue"
	}
	switch n := len(r.sum.Left); {
	case n < maxListed:
		r.sum.Left = append(r.sum.Left, leftJob{wire.NewJobID(l.ID), l.Morgue, l.Reason})
		terminal.Fprintf(r.Err, "stays: %q%s: %s\n", l.ID, where, l.Reason) //nolint:errcheck // stderr
	case n == maxListed:
		r.sum.Left = append(r.sum.Left[:n:n], r.sum.Left[n:]...)
	}
}

// listOrphans lists orphans. They stay and are not counted as jobs, because Ruby does not count them either.
func (r *migration) listOrphans(ctx context.Context) error {
	r.bar = terminal.NewBar(r.Err, -1, "looking for payloads that no index has")
	defer func() { r.bar.Clear() }()
	return r.old.FindOrphans(ctx, func(o rubyqueue.Orphan) {
		if r.sum.Found.Orphans++; r.sum.Found.Orphans > maxListed {
			return
		}
		r.bar.Clear()
		r.sum.Orphans = append(r.sum.Orphans, orphan{wire.NewJobID(o.ID), o.Key, o.Payloads})
		terminal.Fprintf(r.Err, "no index has: %q: %s in %s\n", o.ID, terminal.CountNoun(o.Payloads, "payload"), strings.TrimSuffix(o.Key, ":")) //nolint:errcheck // stderr
	})
}

// moveOnce moves all jobs, unless a worker came since seen.
func (r *migration) moveOnce(ctx context.Context, seen rubyqueue.Signs) error {
	if err := r.mover.CheckWorkers(ctx, seen); err != nil {
		return err
	}
	if err := r.moveAll(ctx); err != nil {
		return err
	}
	look := time.Duration(0)
	if r.sum.Moved.InFlight > 0 {
		look = r.Watch // a worker may have begun to restore these ids
	}
	if err := r.mover.KeepCheckingWorkers(ctx, seen, look); err != nil {
		return err
	}
	return r.retryWhileAway(ctx, func() (movein.Counts, error) { return movein.Counts{Left: r.mover.LeftCount()}, r.mover.EndRun(ctx) })
}

// moveAll moves all jobs.
func (r *migration) moveAll(ctx context.Context) error {
	return r.retryWhileAway(ctx, func() (movein.Counts, error) { return r.mover.Move(ctx) })
}

// retryWhileAway calls pass, and repeats it while the old or the new Redis is away, until the time of --patience is over.
func (r *migration) retryWhileAway(ctx context.Context, pass func() (movein.Counts, error)) error {
	backoff := sleep.Backoff{Limit: r.Patience, Away: func(err error) {
		r.bar.Clear()
		terminal.Fprintf(r.Err, "%s: a Redis is away, trying for %s: %v\n", program, r.Patience, err) //nolint:errcheck // stderr
	}}
	for {
		moved, err := pass()
		r.sum.Moved.Add(moved)
		if err == nil || !protocol.Transient(err) || ctx.Err() != nil {
			return err
		}
		if moved.Jobs+moved.Morgue > 0 {
			backoff.Reset()
		}
		if err := backoff.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// followProducers moves jobs until none has come for the time of --quiet, or until the command is interrupted. It always
// finishes a pass.
func (r *migration) followProducers(ctx context.Context, before rubyqueue.Signs) error {
	for last := time.Now(); ; {
		had := *r.sum.Moved
		if err := r.mover.CheckWorkers(context.WithoutCancel(ctx), before); err != nil {
			return err
		}
		if err := r.moveAll(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		if r.sum.Moved.Jobs+r.sum.Moved.Morgue > had.Jobs+had.Morgue {
			last = time.Now()
		}
		switch err := r.mover.CheckWorkers(context.WithoutCancel(ctx), before); {
		case err != nil:
			return err
		case time.Since(last) >= r.Quiet || sleep.For(ctx, followEvery) != nil:
			return r.mover.EndRun(context.WithoutCancel(ctx))
		}
	}
}

// summarize prints the summary and returns the error with its exit code.
func (c *command) summarize(ctx context.Context, err error, run *migration) error {
	if errors.Is(err, movein.ErrWorking) {
		run.listTwice()
	}
	if run.looked {
		if printed := run.printSummary(); printed != nil {
			return exit.Fail(exit.Failed, "stdout: %w", printed)
		}
	}
	const again = "what is under way is not lost: the same command goes on"
	switch {
	case err == nil && run.mover.LeftCount() == 0:
		return nil
	case err == nil:
		return exit.Quietly(exit.Failed) // each was listed
	case errors.Is(err, movein.ErrWorking):
		return exit.WithCode(exit.Failed, err)
	case errors.Is(err, movein.ErrWay):
		return exit.WithCode(exit.Usage, err)
	case ctx.Err() != nil && !c.Follow:
		return exit.Fail(exit.Interrupted, "interrupted; %s", again)
	case protocol.Transient(err), protocol.Denied(err):
		return exit.Fail(exit.Unreachable, "%w; %s", err, again)
	}
	return err
}

// listTwice lists the ids that a living worker may run as well.
func (r *migration) listTwice() {
	for _, id := range r.mover.MovedInFlight() {
		r.sum.Twice = append(r.sum.Twice, wire.NewJobID(id))
		terminal.Fprintf(r.Err, "may run twice: %q was in flight and is moved\n", id) //nolint:errcheck // stderr
	}
}

// printSummary prints the counts and advice, or with -o json the whole summary.
func (r *migration) printSummary() error {
	if r.Output == "json" {
		return json.NewEncoder(terminal.EscapingWriter{Writer: r.Out}).Encode(r.sum)
	}
	r.PrintTable("WHAT JOBS PAYLOADS IN-FLIGHT MORGUE STAY", func(row func(string, ...any)) {
		line := func(what string, n *movein.Counts) {
			row("%s\t%d\t%d\t%d\t%d\t%d", what, n.Jobs, n.Payloads, n.InFlight, n.Morgue, n.Left)
		}
		line("found", &r.sum.Found.Counts)
		if r.sum.Moved != nil {
			line("moved", r.sum.Moved)
		}
	})
	if r.Back {
		return r.Printf("found in the queue and moved back to Ruby's Lowkiq; clocks: the old Redis's is %s from the new one's\n", r.sum.Skew)
	}
	if n := r.sum.Found.Counts; n.Jobs+n.Morgue == 0 {
		r.Printf("%s is empty; what it has left in the old Redis says that it was there\n", r.Worker) //nolint:errcheck // stdout
	}
	if n := r.sum.Found.Strays; n > 0 {
		r.Printf("%s in the set of a shard that is not theirs with %d shards: they are moved all the same; is --shards right?\n", terminal.CountNoun(n, "id"), r.Shards) //nolint:errcheck // stdout
	}
	if n := r.sum.Found.Orphans; n > 0 {
		r.Printf("%s with payloads that no index has: Ruby never runs them, and they stay\n", terminal.CountNoun(n, "id")) //nolint:errcheck // stdout
	}
	for kind, n := range r.sum.Found.Changed {
		r.Printf("%s: the JSON does not say all of a payload (%s)\n", terminal.CountNoun(n, "job"), kind) //nolint:errcheck // stdout
	}
	return r.Printf("clocks: the old Redis's is %s from the new one's; scores are by those of the producers\n", r.sum.Skew)
}
