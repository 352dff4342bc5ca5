package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

type queuesReshard struct {
	oneQueue      `embed:""`
	connect.Flags `embed:""`
	Shards        *int          `placeholder:"N" help:"The number of shards, 1 to 10000. Without it the command shows a reshard that is under way, and waits for its end."`
	DryRun        bool          `help:"Estimate the cost, and change nothing."`
	Patience      time.Duration `default:"30s" placeholder:"TIME" help:"How long running handler calls may take to end (${default}). After that nothing is changed."`
	MaxPause      time.Duration `default:"1m" placeholder:"TIME" help:"Refuse a reshard that would pause handlers for longer (${default})."`
	CancelCalls   bool          `help:"End running handler calls. Their jobs run again, which does not count as a retry."`
	Cancel        bool          `help:"Cancel a reshard before its jobs move."`
	Yes           bool          `short:"y" help:"Do not ask. Needed without a terminal."`
}

// reshardSite takes the requests about a reshard. It is a node, or Redis itself.
type reshardSite interface {
	begin(ctx context.Context, want actions.ReshardChange) (actions.Resharding, error)
	show(ctx context.Context) (actions.Resharding, error)
	cancel(ctx context.Context) error
	// drive drives the reshard while no node lives, until ctx ends.
	drive(ctx context.Context)
	// nextDriver says who drives the reshard after the command has ended.
	nextDriver() string
}

// Run begins, shows or cancels a reshard, as the flags say. It waits for the end of a reshard that is under way.
func (c *queuesReshard) Run(with *session, grammar *kong.Context) error {
	if err := c.checkFlags(); err != nil {
		return err
	}
	site, closeSite, err := c.openSite(with, grammar)
	if err != nil {
		return err
	}
	defer closeSite()
	if c.Cancel {
		return c.cancelReshard(with, site)
	}
	now, err := site.show(with.ctx)
	if err != nil {
		return c.withExitCode(err)
	}
	switch {
	case c.Shards == nil && !now.UnderWay():
		return c.printIdle(with, now)
	case c.Shards != nil && !now.UnderWay() && now.From == *c.Shards:
		return with.printValue(now, func() { with.Printf("%s has %s already\n", c.Queue, terminal.CountNoun(now.From, "shard")) })
	case c.Shards != nil && !(now.UnderWay() && now.To == *c.Shards):
		if now, err = c.begin(with, site); err != nil || c.DryRun {
			return err
		}
	}
	if c.DryRun {
		return with.printValue(now, func() { with.Printf("%s: %s\n", c.Queue, now.String()) })
	}
	return c.awaitEnd(with, site, now)
}

func (c *queuesReshard) checkFlags() error {
	switch {
	case c.Cancel && (c.Shards != nil || c.DryRun):
		return exit.Fail(exit.Usage, "--cancel goes without --shards and --dry-run")
	case c.Shards == nil && c.DryRun:
		return exit.Fail(exit.Usage, "--dry-run goes with --shards")
	case c.Shards != nil && (*c.Shards < 1 || *c.Shards > lowkiq.MaxShards):
		return exit.Fail(exit.Usage, "--shards is %d; it must be between 1 and %d", *c.Shards, lowkiq.MaxShards)
	case c.Patience <= 0 || c.Patience > reshard.MaxPatience:
		return exit.Fail(exit.Usage, "--patience is %s; it must be more than 0, and at most %s", c.Patience, reshard.MaxPatience)
	case c.MaxPause <= 0:
		return exit.Fail(exit.Usage, "--max-pause is %s; it must be more than 0", c.MaxPause)
	}
	return nil
}

// openSite returns Redis as the site if a flag, the configuration or a variable names it and nothing names a node. Otherwise
// it returns the node.
func (c *queuesReshard) openSite(with *session, grammar *kong.Context) (reshardSite, func(), error) {
	named := c.Redis != "" || c.Config != "" || os.Getenv("LOWKIQ_REDIS") != ""
	if !named || c.isNodeGiven(grammar) {
		if c.Redis != "" || c.Cluster != "" {
			return nil, nil, exit.Fail(exit.Usage, "give either --node, or --redis and --cluster")
		}
		return &nodeSite{with, queuePath(c.Queue, "/reshard")}, func() {}, nil
	}
	cfg, err := c.LoadConfig(grammar)
	if err != nil {
		return nil, nil, err
	}
	client, err := connect.OpenClient(cfg)
	if err != nil {
		return nil, nil, err
	}
	user := cmp.Or(os.Getenv("LOWKIQ_USER"), os.Getenv("USER"))
	site := &redisSite{client: client, queue: c.Queue, by: changes.Who{Name: user, Claimed: user != ""}}
	site.driver = &reshard.Driver{
		Client: client, Entries: client.Registry().Entries, By: site.by, Log: slog.New(slog.DiscardHandler), Leads: func() bool { return !site.nodeLives(with.ctx) },
		Failed: func(op string, err error) { terminal.Fprintf(with.Err, "lowkiq-node: %s: %v\n", op, err) },
	}
	return site, func() { client.Close() }, nil
}

// isNodeGiven reports whether a flag or a variable names the node.
func (c *queuesReshard) isNodeGiven(grammar *kong.Context) bool {
	for _, path := range grammar.Path {
		if path.Flag != nil && path.Flag.Name == "node" {
			return true
		}
	}
	return os.Getenv("LOWKIQ_URL") != ""
}

// nodeSite asks a node, whose cluster does the reshard.
type nodeSite struct {
	with *session
	path string
}

func (n *nodeSite) begin(ctx context.Context, want actions.ReshardChange) (now actions.Resharding, err error) {
	answer, err := n.with.Post(ctx, n.path, want)
	if err == nil {
		err = decodeAnswer(n.path, answer, &now)
	}
	return now, err
}

func (n *nodeSite) show(ctx context.Context) (now actions.Resharding, err error) {
	answer, err := n.with.Get(ctx, n.path)
	if err == nil {
		err = decodeAnswer(n.path, answer, &now)
	}
	return now, err
}

func (n *nodeSite) cancel(ctx context.Context) error {
	_, err := n.with.Delete(ctx, n.path)
	return err
}

func (n *nodeSite) drive(context.Context) {}

func (n *nodeSite) nextDriver() string { return "the nodes go on with it" }

// redisSite works on Redis, and drives the reshard if no node lives.
type redisSite struct {
	client *protocol.Client
	driver *reshard.Driver
	queue  string
	by     changes.Who

	mu    sync.Mutex
	asked time.Time // when the leases were read
	alive bool      // a node lives
}

func (s *redisSite) begin(ctx context.Context, want actions.ReshardChange) (actions.Resharding, error) {
	return actions.BeginReshard(ctx, s.client, s.by, s.queue, want)
}

func (s *redisSite) show(ctx context.Context) (actions.Resharding, error) {
	return actions.ReadReshard(ctx, s.client, s.queue)
}

func (s *redisSite) cancel(ctx context.Context) error {
	return reshard.Cancel(ctx, s.client, s.queue, s.by, "")
}

func (s *redisSite) drive(ctx context.Context) { s.driver.Run(ctx) }

// nodeLives reports whether a node lives. It reads the leases at most once a second. If it cannot read them, it keeps its
// last answer, so that a short outage of Redis makes no second driver.
func (s *redisSite) nodeLives(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) > time.Second {
		if alive, err := reshard.Lives(ctx, s.client); err == nil {
			s.alive, s.asked = alive, time.Now()
		}
	}
	return s.alive
}

func (s *redisSite) nextDriver() string {
	if s.nodeLives(context.Background()) {
		return "the nodes go on with it"
	}
	return "no node lives, so nobody goes on with it until lowkiq-node queues reshard " + s.queue + " runs again"
}

// cancelReshard cancels a reshard and prints the number of shards that stays.
func (c *queuesReshard) cancelReshard(with *session, site reshardSite) error {
	if err := site.cancel(with.ctx); err != nil {
		return c.withExitCode(err)
	}
	now, err := site.show(with.ctx)
	if err != nil {
		return err
	}
	return with.printValue(now, func() { with.Printf("%s keeps its %s\n", c.Queue, terminal.CountNoun(now.From, "shard")) })
}

// withExitCode gives a refusal its exit code: 64 for bad input, and 1 if the state of the queue forbids it.
func (c *queuesReshard) withExitCode(err error) error {
	var answer *web.Problem
	switch {
	case errors.As(err, &answer) && answer.Status == http.StatusConflict:
		return exit.WithCode(exit.Failed, err)
	case errors.Is(err, lowkiq.ErrUnknownQueue), errors.Is(err, reshard.ErrValue):
		return exit.WithCode(exit.Usage, err)
	case protocol.Transient(err):
		return exit.WithCode(exit.Unreachable, err)
	}
	return err
}

// printIdle prints that no reshard is under way, and how the last reshard ended.
func (c *queuesReshard) printIdle(with *session, now actions.Resharding) error {
	return with.printValue(now, func() {
		with.Printf("%s has %s and is not being resharded\n", c.Queue, terminal.CountNoun(now.From, "shard"))
		if now.Cancelled != "" {
			with.Printf("the last reshard was cancelled: %s\n", now.Cancelled)
		}
	})
}

// begin shows the cost, asks, and begins the reshard. With --dry-run it only prints the cost.
func (c *queuesReshard) begin(with *session, site reshardSite) (now actions.Resharding, err error) {
	want := actions.ReshardChange{Shards: *c.Shards, Patience: c.Patience.String(), MaxPause: c.MaxPause.String(), CancelCalls: c.CancelCalls, DryRun: true}
	ask := !c.Yes && !c.DryRun
	if ask && !terminal.IsTerminal(with.In) {
		return now, exit.Fail(exit.Usage, "there is no terminal to ask; give --yes, or --dry-run to see what it costs")
	}
	if c.DryRun || ask {
		if now, err = site.begin(with.ctx, want); err != nil {
			return now, c.withExitCode(err)
		}
		if c.DryRun {
			err = with.printValue(now, func() { c.printCost(with, now); with.Printf("nothing was changed\n") })
			return now, err
		}
		if now.Estimate != nil && now.Estimate.Refused == "" {
			c.printCost(with, now)
			if err := with.confirm("Reshard queue %s to %s?", terminal.EscapeText(c.Queue), terminal.CountNoun(*c.Shards, "shard")); err != nil {
				return now, err
			}
		}
	}
	want.DryRun = false
	now, err = site.begin(with.ctx, want)
	return now, c.withExitCode(err)
}

// printCost prints an estimate.
func (c *queuesReshard) printCost(with *session, now actions.Resharding) {
	e := now.Estimate
	if e == nil { // another request began it meanwhile
		with.Printf("%s: %s\n", c.Queue, now.String())
		return
	}
	to := *c.Shards
	with.Printf("%s: %d -> %s%s\n", c.Queue, now.From, terminal.CountNoun(to, "shard"), formatRatio(now.From, to))
	moves := fmt.Sprintf("%s of %s", countJobs(e.Jobs), reshard.FormatBytes(e.Bytes))
	if e.Morgue > 0 {
		moves += fmt.Sprintf(", %s in the morgue", groupThousands(e.Morgue))
	}
	if e.States > 0 {
		moves += fmt.Sprintf(", %s states", groupThousands(e.States))
	}
	with.Printf("  moves       %s\n", moves)
	with.Printf("  pause       about %s without handler calls; pushes are taken\n", formatBriefly(e.Pause))
	if n := len(now.WaitsFor); n > 0 {
		w := now.WaitsFor[0]
		with.Printf("  waits for   %s; %s on %s has run for %s\n", terminal.CountNoun(n, "call"), w.Name(), w.Node, formatBriefly(w.For))
	}
	room := "Redis has no maxmemory"
	if e.Room != nil {
		room = fmt.Sprintf("Redis may take %s more", reshard.FormatBytes(*e.Room))
	}
	with.Printf("  memory      +%s until all jobs have moved; %s\n", reshard.FormatBytes(e.Memory), room)
	if e.Refused != "" {
		with.Printf("it would be refused: %s\n", e.Refused)
	}
}

// formatRatio says how many shards come from each shard, if that is a whole number.
func formatRatio(from, to int) string {
	switch {
	case from > 0 && to > from && to%from == 0:
		return fmt.Sprintf(", %d for each", to/from)
	case to > 0 && from > to && from%to == 0:
		return fmt.Sprintf(", 1 for %d", from/to)
	}
	return ""
}

// formatBriefly formats a number of seconds, with tenths below ten seconds.
func formatBriefly(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(time.Second / 10).String()
}

// watchEvery is the time between two looks at a reshard, and sayEvery the time between two lines without a terminal.
const (
	watchEvery = 200 * time.Millisecond
	sayEvery   = 5 * time.Second
)

// awaitEnd shows the reshard until its end. If the command is interrupted, the reshard goes on.
func (c *queuesReshard) awaitEnd(with *session, site reshardSite, now actions.Resharding) error {
	ctx, stop := context.WithCancel(with.ctx)
	var group sync.WaitGroup
	group.Go(func() { site.drive(ctx) })
	defer group.Wait()
	defer stop()
	begun, moving, said := time.Now(), time.Time{}, time.Time{}
	from, to, phase, jobs := now.From, now.To, reshard.None, 0
	if c.Shards != nil {
		to = *c.Shards // a small reshard may be over
	}
	before := time.Duration(now.Pause * float64(time.Second)) // the pause before this command saw the reshard
	if now.Estimate != nil {
		jobs = now.Estimate.Jobs
	}
	for now.UnderWay() {
		jobs = max(jobs, now.Of)
		if now.Moves() && moving.IsZero() {
			moving = time.Now()
		}
		if now.Phase != phase || time.Since(said) >= sayEvery {
			if text := describePhase(c.Queue, now); text != "" && !with.asJSON {
				terminal.Fprintf(with.Err, "%s\n", text)
			}
			phase, said = now.Phase, time.Now()
		}
		if sleep.For(with.ctx, watchEvery) != nil {
			return exit.Fail(exit.Interrupted, "detached from the reshard of %s; %s", c.Queue, site.nextDriver())
		}
		next, err := site.show(with.ctx)
		switch {
		case with.ctx.Err() != nil:
			return exit.Fail(exit.Interrupted, "detached from the reshard of %s; %s", c.Queue, site.nextDriver())
		case err != nil && exitCode(c.withExitCode(err)) == exit.Unreachable:
			terminal.Fprintf(with.Err, "lowkiq-node: %v; trying again\n", err)
			_ = sleep.For(with.ctx, time.Second)
		case err != nil:
			return c.withExitCode(err)
		default:
			now = next
		}
	}
	if now.From != to {
		if err := with.printValue(now, func() {}); err != nil {
			return err
		}
		return exit.Fail(exit.Failed, "%s keeps its %s: %s", c.Queue, terminal.CountNoun(from, "shard"), cmp.Or(now.Cancelled, "the reshard was cancelled"))
	}
	if moving.IsZero() {
		moving = begun
	}
	return with.printValue(now, func() {
		with.Printf("%s has %s: %s moved in %s, and handlers paused for at most %s\n", c.Queue, terminal.CountNoun(to, "shard"),
			countJobs(jobs), formatBriefly(time.Since(moving).Seconds()), formatBriefly((before + time.Since(begun)).Seconds()))
		with.Printf("set shards: %d in the configurations that name the number\n", to)
	})
}

// groupThousands formats a number with a comma before each group of three digits.
func groupThousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func countJobs(n int) string {
	if n == 1 {
		return "1 job"
	}
	return groupThousands(n) + " jobs"
}

// describePhase describes the phase of a reshard, "" if there is nothing to say.
func describePhase(queue string, now actions.Resharding) string {
	switch now.Phase {
	case reshard.Draining:
		if len(now.WaitsFor) == 0 && now.Busy != "" {
			return "waiting, as " + now.Busy
		}
		if len(now.WaitsFor) == 0 {
			return "waiting for the handlers of " + queue
		}
		var calls []string
		for _, w := range now.WaitsFor[:min(3, len(now.WaitsFor))] {
			calls = append(calls, fmt.Sprintf("%s on %s for %s", w.Name(), w.Node, formatBriefly(w.For)))
		}
		return fmt.Sprintf("waiting for %s: %s", terminal.CountNoun(len(now.WaitsFor), "call"), strings.Join(calls, ", "))
	case reshard.Copying:
		return fmt.Sprintf("%s has %s; %s of %s jobs moved, %d of %d shards work", queue, terminal.CountNoun(now.To, "shard"),
			groupThousands(now.Moved), groupThousands(now.Of), now.Open, now.To)
	}
	return ""
}
