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
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/internal/movein"
	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/internal/rubyqueue"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type migrateCommand struct {
	source `embed:""`
	Queue  string `required:"" short:"q" placeholder:"NAME" help:"Queue to move the jobs into. It is registered, or a queue of the configuration."`

	From    string      `required:"" env:"LOWKIQ_FROM" placeholder:"URL" help:"Redis of Ruby's Lowkiq: redis://, rediss:// or redis+sentinel://. LOWKIQ_FROM likewise: give a password there, as ps shows flags to everybody."`
	Worker  string      `required:"" placeholder:"NAME" help:"Its queue_name: the name of the worker's class, unless it is set."`
	Shards  int         `required:"" placeholder:"N" help:"Its shards_count."`
	Payload movein.Form `short:"p" enum:",json,marshal" default:"" placeholder:"json|marshal" help:"json: what Ruby dumped becomes JSON, if it is plain data. marshal: bytes stay as they are, whatever Lowkiq.dump_payload made. It is asked once, and remembered until all is back."`

	DryRun         bool          `help:"Look only: count what there is, and say what cannot be moved, and why."`
	WorkersStopped bool          `help:"Your word that no worker of Ruby's Lowkiq works on the queue, nor will."`
	Back           bool          `help:"The way back: give to Ruby's Lowkiq what was moved, as it was, and what was pushed to the paused queue since."`
	Keep           time.Duration `default:"168h" placeholder:"TIME" help:"For how long the old Redis keeps what was moved, so that --back can give it back as it was (${default}). 0: not at all."`
	DueNow         bool          `help:"Move what Ruby never runs, too: jobs with a negative or infinite perform_in. They are due now."`
	Follow         bool          `help:"Go on while producers of Ruby's Lowkiq push, until nothing has come for the time of --quiet, or until SIGINT or SIGTERM."`
	Quiet          time.Duration `default:"30s" placeholder:"TIME" help:"With --follow: how long nothing must have come (${default})."`
	Patience       time.Duration `default:"30s" placeholder:"TIME" help:"Once it moves: how long to try while one of the Redis is away (${default})."`
	Output         string        `short:"o" enum:"table,json" default:"table" help:"table or json."`

	Watch time.Duration `hidden:"" default:"5s" help:"How long to look whether a worker works."`
}

// migrated is the summary of a migration.
type migrated struct {
	Found   movein.Report  `json:"found"`
	Moved   *movein.Counts `json:"moved,omitempty"` // not of a dry run; of --back: what came back
	Skew    string         `json:"clock_skew"`      // of the old Redis's clock from the new one's
	Left    []leftJob      `json:"left"`            // the first of those that stay
	Orphans []orphan       `json:"orphans"`         // the first that a dry run has found
	Twice   []web.JobID    `json:"twice,omitempty"` // the first that were in flight and are moved, though a worker lives
}

// orphan are payloads of an id that no index has.
type orphan struct {
	web.JobID
	Key      string `json:"key"` // up to the id
	Payloads int    `json:"payloads"`
}

type leftJob struct {
	web.JobID
	Morgue bool   `json:"morgue,omitempty"`
	Reason string `json:"reason"`
}

// mostListed is how many jobs that stay are listed.
const mostListed = 1000

// mostKept is for how long what was moved may be kept.
const mostKept = 90 * 24 * time.Hour

// mostSkew is by how much clocks may differ while producers push: a job would be due too early or too late by that.
const mostSkew = time.Second

func (c *migrateCommand) check() error {
	switch {
	case c.Shards < 1 || c.Shards > 1_000_000:
		return fail(exitUsage, "--shards is %d, want the shards_count of the worker", c.Shards)
	case c.DryRun && c.Follow:
		return fail(exitUsage, "--dry-run looks once: --follow does not go with it")
	case !c.DryRun && !c.WorkersStopped:
		return fail(exitUsage, "jobs that a worker has are moved, too, and would run twice: stop all workers of Ruby's Lowkiq and say --workers-stopped, or look with --dry-run")
	case c.Back && (c.Follow || c.DueNow):
		return fail(exitUsage, "--back brings all that there is, once: --follow and --due-now do not go with it")
	case c.Keep < 0 || c.Keep > mostKept:
		return fail(exitUsage, "--keep is %s, want 0 to %s", c.Keep, mostKept)
	case c.Quiet <= 0 || c.Patience <= 0:
		return fail(exitUsage, "--quiet and --patience are %s and %s, want more than 0", c.Quiet, c.Patience)
	}
	return nil
}

// Run looks at what there is, then moves it.
func (c *migrateCommand) Run(s *streams, grammar *kong.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	cfg, err := c.load(grammar)
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(stopSignals()...)
	defer stop()
	client, err := openRedis(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	old, err := rubyqueue.Open(rubyqueue.Config{URL: c.From, Timeout: 10 * time.Second, Name: c.Worker, Shards: c.Shards})
	if err != nil {
		return fail(exitUsage, "--from: %w", err)
	}
	defer old.Close()
	into := pushCommand{Queue: c.Queue}
	q, err := into.queue(ctx, client, cfg)
	if errors.Is(err, lowkiq.ErrUnknownQueue) {
		return c.unknown(ctx, client)
	}
	if err != nil {
		return err
	}
	m, err := c.mover(ctx, old, q)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	m.To = client.Cluster() + "/" + q.Name
	run := &migration{migrateCommand: c, streams: s, mover: m, old: old, queue: q}
	err = run.all(ctx, client)
	return c.outcome(ctx, err, run)
}

// unknown says that the new queue is not known, and which are.
func (c *migrateCommand) unknown(ctx context.Context, client *queue.Client) error {
	entries, err := client.Registry().Entries(ctx)
	if err != nil {
		return refusedQueue(err)
	}
	has := "it has no queue"
	if names := slices.Sorted(maps.Keys(entries)); len(names) > 0 {
		has = "it has " + strings.Join(names[:min(len(names), 20)], ", ")
	}
	return fail(exitUsage, "cluster %q has no queue %s: %s; name the queue and its shards in the file of --config to register it", client.Cluster(), c.Queue, has)
}

func (c *migrateCommand) mover(ctx context.Context, old *rubyqueue.Queue, q *queue.Queue) (*movein.Mover, error) {
	rules, err := q.Storing(ctx)
	if err != nil {
		return nil, err
	}
	return &movein.Mover{
		Old: old, Shards: c.Shards, Form: c.Payload, DueNow: c.DueNow, Keep: c.Keep, Stay: true,
		Limits: movein.Limits{Payload: rules.PayloadBytes, Payloads: rules.Payloads, IDPayload: rules.IDPayload},
		Import: movein.Into(q),
		Seal:   func(ctx context.Context, source string) error { return transfer.Seal(ctx, q, source) },
		Over:   func(ctx context.Context, source string) error { return transfer.Forget(ctx, q, source) },
	}, nil
}

// migration is one run of the command.
type migration struct {
	*migrateCommand
	*streams
	mover *movein.Mover
	old   *rubyqueue.Queue
	queue *queue.Queue
	sum   migrated
	bar   *bar
	done  int

	looked bool // found is what there was
}

// all looks, and moves unless it is a dry run.
func (r *migration) all(ctx context.Context, client *queue.Client) error {
	r.sum.Left, r.sum.Orphans = []leftJob{}, []orphan{}
	r.mover.Leave = r.leave
	r.mover.Progress = func(n int) {
		r.done += n
		r.bar.at(r.done)
	}
	if err := r.clocks(ctx, client); err != nil {
		return err
	}
	if err := r.mover.Agree(ctx); err != nil {
		return err
	}
	if nodes, err := client.Leases().All(ctx); err == nil && len(nodes) == 0 && !r.Back {
		say(r.err, "no node of cluster %q is up: what comes waits until one is; is --cluster right?\n", client.Cluster()) //nolint:errcheck // stderr
	}
	if !r.DryRun {
		if err := r.mover.Mark(ctx); err != nil {
			return err
		}
	}
	seen, err := r.mover.Watch(ctx, r.Watch)
	if err != nil {
		return err
	}
	if err := r.quiet(ctx, client); err != nil {
		return err
	}
	if r.Back {
		return r.back(ctx, client)
	}
	r.bar = newBar(r.err, -1, "looking")
	found, err := r.mover.Survey(ctx)
	r.bar.clear()
	if err != nil {
		return err
	}
	r.sum.Found, r.looked = found, true
	if r.DryRun {
		err = r.orphans(ctx)
	}
	if err == nil {
		err = r.known(ctx)
	}
	if err != nil || r.DryRun {
		return err
	}
	r.sum.Moved = &movein.Counts{}
	r.done, r.bar = 0, newBar(r.err, int64(found.Jobs+found.Morgue), "moving")
	defer func() { r.bar.clear() }()
	if !r.Follow {
		return r.once(ctx, seen)
	}
	return r.follow(ctx, seen)
}

// quiet waits until no node begins a job of a paused queue any more: what was pushed to it would run
// before what is still to be moved. The way back is for a paused queue only.
func (r *migration) quiet(ctx context.Context, client *queue.Client) error {
	if r.DryRun {
		return nil
	}
	entries, err := client.Registry().Entries(ctx)
	switch {
	case err != nil:
		return err
	case entries[r.queue.Name].Paused:
	case r.Back:
		return fail(exitFailed, "the queue %s is not paused, so its workers may take what goes back: lowkiq-node queues pause %s", r.queue.Name, r.queue.Name)
	default:
		return nil
	}
	late, err := status.AwaitPause(ctx, noticed{client}, r.queue.Name)
	if err == nil && len(late) > 0 && ctx.Err() == nil {
		return stillMayBegin(r.queue.Name, late)
	}
	return err
}

// noticed asks Redis which nodes have noticed a pause.
type noticed struct{ client *queue.Client }

// MayBegin is status.Pausing's.
func (n noticed) MayBegin(ctx context.Context, name string) ([]string, error) {
	instances, err := n.client.Leases().All(ctx)
	return identity.MayBegin(name, instances), err
}

// back brings to Ruby what the paused queue has.
func (r *migration) back(ctx context.Context, client *queue.Client) error {
	r.bar = newBar(r.err, -1, "looking")
	found, err := r.mover.SurveyBack(ctx, r.queue)
	r.bar.clear()
	if err != nil {
		return err
	}
	r.sum.Found, r.looked = found, true
	if err := r.known(ctx); err != nil || r.DryRun {
		return err
	}
	r.sum.Moved = &movein.Counts{}
	r.done, r.bar = 0, newBar(r.err, int64(r.sum.Found.Jobs+r.sum.Found.Morgue), "moving back")
	defer func() { r.bar.clear() }()
	return r.patiently(ctx, func() (movein.Counts, error) { return r.mover.Back(ctx, r.queue) })
}

// known is an error if there is nothing where there never was anything: a name is mistyped then, or an address. A queue that is
// empty is known by what it leaves: its counters, or what a move has noted.
func (r *migration) known(ctx context.Context) error {
	if n := r.sum.Found.Counts; !r.Back && n.Jobs+n.Morgue+n.Left+r.sum.Found.Orphans > 0 {
		return nil
	}
	known, err := r.old.Known(ctx)
	if err != nil {
		return err
	}
	if n := r.sum.Found.Counts; known && r.Back && !r.mover.Before && n.Jobs+n.Morgue+n.Left == 0 {
		r.looked = false
		return fail(exitFailed, "the queue %s has nothing, and nothing of %s was moved to it: are --cluster, --queue and --worker right?", r.queue.Name, r.Worker)
	}
	if known {
		return nil
	}
	r.looked = false
	others, err := r.old.Others(ctx)
	if err != nil {
		return err
	}
	return fail(exitFailed, "the old Redis has no queue %s and no trace of one: %s; are --worker and the database of --from right?", r.Worker, others)
}

// clocks compares the clocks of both Redis.
func (r *migration) clocks(ctx context.Context, client *queue.Client) error {
	before := time.Now()
	there, err := r.old.Time(ctx)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	here, err := client.Time(ctx)
	if err != nil {
		return err
	}
	took := time.Since(before)
	skew := there.Sub(here) + took/2
	r.sum.Skew = skew.Round(time.Millisecond).String()
	if r.Follow && (skew > mostSkew+took || skew < -mostSkew-took) {
		return fail(exitFailed, "the clocks of the two Redis differ by %s: set them right before producers change over", r.sum.Skew)
	}
	return nil
}

// leave lists a job that stays.
func (r *migration) leave(l movein.Left) {
	r.bar.clear()
	where := ""
	if l.Morgue {
		where = ", in the morgue"
	}
	switch n := len(r.sum.Left); {
	case n < mostListed:
		r.sum.Left = append(r.sum.Left, leftJob{web.JobIDOf(l.ID), l.Morgue, l.Reason})
		say(r.err, "stays: %q%s: %s\n", l.ID, where, l.Reason) //nolint:errcheck // stderr
	case n == mostListed:
		r.sum.Left = append(r.sum.Left[:n:n], r.sum.Left[n:]...)
	}
}

// orphans lists payloads of ids that no index has. They stay, as they do when nothing else does: Ruby does not have them as jobs.
func (r *migration) orphans(ctx context.Context) error {
	r.bar = newBar(r.err, -1, "looking for payloads that no index has")
	defer func() { r.bar.clear() }()
	return r.old.Orphans(ctx, func(o rubyqueue.Orphan) {
		if r.sum.Found.Orphans++; r.sum.Found.Orphans > mostListed {
			return
		}
		r.bar.clear()
		r.sum.Orphans = append(r.sum.Orphans, orphan{web.JobIDOf(o.ID), o.Key, o.Payloads})
		say(r.err, "no index has: %q: %s in %s\n", o.ID, count(o.Payloads, "payload"), strings.TrimSuffix(o.Key, ":")) //nolint:errcheck // stderr
	})
}

// once moves what there is, if no worker came since it was seen.
func (r *migration) once(ctx context.Context, seen rubyqueue.Signs) error {
	if err := r.mover.Working(ctx, seen); err != nil {
		return err
	}
	if err := r.move(ctx); err != nil {
		return err
	}
	look := time.Duration(0)
	if r.sum.Moved.InFlight > 0 {
		look = r.Watch // for a worker that had begun to restore that
	}
	if err := r.mover.Late(ctx, seen, look); err != nil {
		return err
	}
	return r.patiently(ctx, func() (movein.Counts, error) { return movein.Counts{Left: r.mover.LeftCount()}, r.mover.End(ctx) })
}

// move moves what there is.
func (r *migration) move(ctx context.Context) error {
	return r.patiently(ctx, func() (movein.Counts, error) { return r.mover.Move(ctx) })
}

// patiently calls pass, and again while one of the Redis is away, until the patience is over.
func (r *migration) patiently(ctx context.Context, pass func() (movein.Counts, error)) error {
	backoff := feed.Backoff{Limit: r.Patience, Away: func(err error) {
		r.bar.clear()
		say(r.err, "lowkiq-node: a Redis is away, trying for %s: %v\n", r.Patience, err) //nolint:errcheck // stderr
	}}
	for {
		moved, err := pass()
		r.sum.Moved.Add(moved)
		if err == nil || !queue.Transient(err) || ctx.Err() != nil {
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

// follow moves what comes until nothing has come for a while, or until it is interrupted. A pass that has begun
// is finished.
func (r *migration) follow(ctx context.Context, before rubyqueue.Signs) error {
	for last := time.Now(); ; {
		had := *r.sum.Moved
		if err := r.mover.Working(context.WithoutCancel(ctx), before); err != nil {
			return err
		}
		if err := r.move(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		if r.sum.Moved.Jobs+r.sum.Moved.Morgue > had.Jobs+had.Morgue {
			last = time.Now()
		}
		switch err := r.mover.Working(context.WithoutCancel(ctx), before); {
		case err != nil:
			return err
		case time.Since(last) >= r.Quiet || pause.For(ctx, followEvery) != nil:
			return r.mover.End(context.WithoutCancel(ctx))
		}
	}
}

// outcome prints the summary and decides the exit code.
func (c *migrateCommand) outcome(ctx context.Context, err error, run *migration) error {
	if errors.Is(err, movein.ErrWorking) {
		run.twice()
	}
	if run.looked {
		if printed := run.print(); printed != nil {
			return fail(exitFailed, "stdout: %w", printed)
		}
	}
	const again = "what is under way is not lost: the same command goes on"
	switch {
	case err == nil && run.mover.LeftCount() == 0:
		return nil
	case err == nil:
		return &exitError{code: exitFailed} // each was listed
	case errors.Is(err, movein.ErrWorking):
		return &exitError{exitFailed, err}
	case errors.Is(err, movein.ErrWay):
		return &exitError{exitUsage, err}
	case ctx.Err() != nil && !c.Follow:
		return fail(exitInterrupted, "interrupted; %s", again)
	case queue.Transient(err):
		return fail(exitUnreachable, "%w; %s", err, again)
	}
	return err
}

// twice names what a worker that lives may run, too.
func (r *migration) twice() {
	for _, id := range r.mover.Flown() {
		r.sum.Twice = append(r.sum.Twice, web.JobIDOf(id))
		say(r.err, "may run twice: %q was in flight and is moved\n", id) //nolint:errcheck // stderr
	}
}

func (r *migration) print() error {
	if r.Output == "json" {
		return json.NewEncoder(r.out).Encode(r.sum)
	}
	r.table("WHAT JOBS PAYLOADS IN-FLIGHT MORGUE STAY", func(row func(string, ...any)) {
		line := func(what string, n *movein.Counts) {
			row("%s\t%d\t%d\t%d\t%d\t%d", what, n.Jobs, n.Payloads, n.InFlight, n.Morgue, n.Left)
		}
		line("found", &r.sum.Found.Counts)
		if r.sum.Moved != nil {
			line("moved", r.sum.Moved)
		}
	})
	if r.Back {
		return r.say("found in the queue and moved back to Ruby's Lowkiq; clocks: the old Redis's is %s from the new one's\n", r.sum.Skew)
	}
	if n := r.sum.Found.Counts; n.Jobs+n.Morgue == 0 {
		r.say("%s is empty; what it has left in the old Redis says that it was there\n", r.Worker) //nolint:errcheck // stdout
	}
	if n := r.sum.Found.Strays; n > 0 {
		r.say("%s in the set of a shard that is not theirs with %d shards: they are moved all the same; is --shards right?\n", count(n, "id"), r.Shards) //nolint:errcheck // stdout
	}
	if n := r.sum.Found.Orphans; n > 0 {
		r.say("%s with payloads that no index has: Ruby never runs them, and they stay\n", count(n, "id")) //nolint:errcheck // stdout
	}
	for kind, n := range r.sum.Found.Changed {
		r.say("%s: the JSON does not say all of a payload (%s)\n", count(n, "job"), kind) //nolint:errcheck // stdout
	}
	return r.say("clocks: the old Redis's is %s from the new one's; scores are by those of the producers\n", r.sum.Skew)
}
