package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

type pushCommand struct {
	source      `embed:""`
	Node        string `placeholder:"URL" help:"Push through the API of this node. Default: LOWKIQ_URL where nothing says where Redis is; else into Redis, which needs no node."`
	credentials `embed:""`

	Queue  string `required:"" short:"q" placeholder:"NAME" help:"Queue to push into."`
	Shards *int   `placeholder:"N" help:"Shard count: registers the queue if it is new."`
	Strict bool   `help:"Stop at the first line that is refused."`
	Skip   int    `placeholder:"N" help:"Leave the first N lines out: they are stored already."`

	Wait time.Duration `placeholder:"TIME" help:"Wait so long at most for the ends of the payloads, and print how each has ended, with what its handler answered."`
	Keep time.Duration `placeholder:"TIME" help:"With --wait: how long replies are kept, for lowkiq-node reply. Default: the wait and a minute."`

	Patience time.Duration `default:"30s" placeholder:"TIME" help:"How long to try while Redis, or the node of --node, is away, at the start or later (${default})."`

	Rate int `placeholder:"N" help:"At most N lines a second. Default: as many as Redis takes."`

	Files []string `arg:"" optional:"" help:"NDJSON files; none or - is standard input."`

	ID        string   `group:"A single job:" placeholder:"ID" help:"Push this one job instead of lines."`
	Payload   string   `group:"A single job:" placeholder:"JSON" help:"Its payload."`
	Score     *float64 `group:"A single job:" placeholder:"X" help:"Its score: the payloads of an id are handled lowest score first."`
	PerformIn string   `group:"A single job:" placeholder:"TIME" help:"The earliest time it may run: from now, as in 10s or 2h, RFC 3339, or unix seconds. An id that waits already keeps its due time."`

	Header []string `group:"A single job:" sep:"none" placeholder:"NAME=VALUE" help:"A header of it, as in --header tag=vip; may come again. Handlers get it beside the payload."`
}

// Run pushes to Redis directly, which needs no node (I7), or through the node that is named.
func (c *pushCommand) Run(s *streams, grammar *kong.Context) error {
	c.Node = cmp.Or(c.Node, c.defaultNode(os.Getenv))
	if err := c.check(); err != nil {
		return err
	}
	ctx, stop := untilInterrupted(stopSignals()...)
	defer stop()
	if c.Node != "" {
		var target nodeTarget
		var shards int
		err := c.patiently(ctx, s, mayPass, func() (err error) {
			target, shards, err = c.throughNode(ctx, s)
			return err
		})
		if err != nil {
			return err
		}
		if c.Wait > 0 {
			return c.callWith(ctx, s, target)
		}
		return c.push(ctx, s, target, shards)
	}
	cfg, err := c.load(grammar)
	if err != nil {
		return err
	}
	client, err := openRedis(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	var q *queue.Queue
	err = c.patiently(ctx, s, queue.Transient, func() (err error) {
		q, err = c.queue(ctx, client, cfg)
		return err
	})
	if err != nil {
		return err
	}
	if c.Wait > 0 {
		return c.callWith(ctx, s, redisCaller{c, client})
	}
	return c.push(ctx, s, q, q.Shards)
}

// defaultNode returns the node that LOWKIQ_URL names, as for the other commands. A flag, a file or a variable that
// says where Redis is comes first.
func (c *pushCommand) defaultNode(getenv func(string) string) string {
	if c.Redis != "" || c.Config != "" || getenv("LOWKIQ_REDIS") != "" {
		return ""
	}
	return getenv("LOWKIQ_URL")
}

// patiently takes a step before the first line, again and again while Redis or the node is away,
// until the patience is over.
func (c *pushCommand) patiently(ctx context.Context, s *streams, away func(error) bool, step func() error) error {
	backoff := feed.Backoff{Limit: c.Patience, Away: func(err error) { c.away(s, err) }}
	for {
		err := step()
		if err == nil || !away(err) || ctx.Err() != nil {
			return err
		}
		err = backoff.Wait(ctx, err)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return err
		case c.Node != "":
			return &exitError{exitUnreachable, err}
		default:
			return fail(exitUnreachable, "%w; --redis, LOWKIQ_REDIS or redis in the file of --config says where Redis is", err)
		}
	}
}

// away says that the push waits, and for what.
func (c *pushCommand) away(s *streams, err error) {
	who := "redis"
	if c.Node != "" {
		who = "the node"
	}
	say(s.err, "lowkiq-node: %s is away, trying for %s: %v\n", who, c.Patience, err)
}

func (c *pushCommand) check() error {
	switch {
	case c.ID == "" && (c.Payload != "" || c.Score != nil || c.PerformIn != "" || len(c.Header) > 0):
		return fail(exitUsage, "--payload, --score, --perform-in and --header belong to --id")
	case c.ID != "" && (len(c.Files) > 0 || c.Skip != 0):
		return fail(exitUsage, "--id pushes one job: neither files nor --skip go with it")
	case c.Node != "" && (c.Redis != "" || c.Cluster != "" || c.Shards != nil):
		return fail(exitUsage, "--node, or LOWKIQ_URL, says where to push, through its API: --redis, --cluster and --shards do not go with it")
	case c.Skip < 0:
		return fail(exitUsage, "--skip is %d, want 0 or more", c.Skip)
	case c.Patience <= 0:
		return fail(exitUsage, "--patience is %s, want more than 0", c.Patience)
	case c.Rate < 0:
		return fail(exitUsage, "--rate is %d, want 0 or more", c.Rate)
	case c.Shards != nil && (*c.Shards < 1 || *c.Shards > lowkiq.MaxShards):
		return fail(exitUsage, "--shards is %d, want 1 to %d", *c.Shards, lowkiq.MaxShards)
	}
	if err := c.checkWait(); err != nil {
		return err
	}
	_, err := c.header()
	return err
}

// header reads what --header says.
func (c *pushCommand) header() (map[string]string, error) {
	all := map[string]string{}
	for _, one := range c.Header {
		name, value, ok := strings.Cut(one, "=")
		if _, twice := all[name]; !ok || twice {
			return nil, fail(exitUsage, "--header is %q, want a name, = and a value, and each name once", one)
		}
		all[name] = value
	}
	if _, err := lowkiq.NewHeader(all); err != nil {
		return nil, fail(exitUsage, "--header: %w", err)
	}
	return all, nil
}

// queue finds the queue in the registry, or registers it with a shard count known here.
// A count that differs from the registered one is refused.
func (c *pushCommand) queue(ctx context.Context, client *queue.Client, cfg *config.Config) (q *queue.Queue, err error) {
	shards := or(c.Shards)
	if rules := cfg.Queues[c.Queue]; rules != nil {
		if err := client.SetRules(c.Queue, pushRules(rules)); err != nil {
			return nil, fail(exitUsage, "%w", err)
		}
		if shards == 0 {
			shards = rules.ShardCount()
		}
	}
	if shards == 0 {
		q, err = client.Queue(ctx, c.Queue)
	} else {
		q, err = client.Register(ctx, lowkiq.Queue{Name: c.Queue, Shards: shards})
	}
	if err == nil {
		err = q.Pushable()
	}
	return q, refusedQueue(err)
}

func refusedQueue(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, lowkiq.ErrUnknownQueue):
		return fail(exitUsage, "%w; --shards N registers it", err)
	case queue.Transient(err):
		return &exitError{exitUnreachable, err}
	}
	return &exitError{exitUsage, err}
}

func (c *pushCommand) push(ctx context.Context, s *streams, to feed.Target, shards int) error {
	inputs, closeAll, err := c.inputs(s)
	if err != nil {
		return err
	}
	defer closeAll()
	bar := newBar(s.err, -1, "pushing")
	f := &feed.Feeder{
		Target: to, Shards: shards, Skip: c.Skip, Strict: c.Strict, Patience: c.Patience, Rate: c.Rate,
		Refused: func(line int, reason error) {
			bar.clear()
			say(s.err, "line %d: %v\n", line, reason)
		},
		Away: func(err error) {
			bar.clear()
			c.away(s, err)
		},
		Settled: func(sum feed.Summary) { bar.at(sum.Lines) },
	}
	sum, err := f.Run(ctx, inputs...)
	bar.clear()
	if err := json.NewEncoder(s.out).Encode(sum); err != nil {
		return fail(exitFailed, "stdout: %w", err)
	}
	return c.outcome(ctx, sum, err)
}

// outcome turns the end of a run into an exit code and advice.
func (c *pushCommand) outcome(ctx context.Context, sum feed.Summary, err error) error {
	resume := fmt.Sprintf("resume with --skip %d", sum.Line)
	if c.ID != "" {
		resume = "push it again: that is safe"
	}
	switch {
	case err == nil && sum.Refused == 0:
		return nil
	case err == nil:
		return &exitError{code: exitFailed} // each refused line was reported
	case errors.Is(err, feed.ErrStrict) && c.ID != "":
		return &exitError{code: exitFailed}
	case errors.Is(err, feed.ErrStrict):
		return fail(exitFailed, "stopped at the refused line; once it is mended, %s", resume)
	case errors.Is(err, feed.ErrInput):
		return fail(exitUsage, "%w; %s", err, resume)
	case ctx.Err() != nil:
		return fail(exitInterrupted, "interrupted; %s", resume)
	}
	return fail(exitUnreachable, "%w; %s", err, resume)
}

// inputs opens the files. A single job is a stream of one line.
func (c *pushCommand) inputs(s *streams) (inputs []feed.Input, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			f.Close()
		}
	}
	if c.ID != "" {
		line, err := c.line()
		return []feed.Input{line}, closeAll, err
	}
	if len(c.Files) == 0 {
		c.Files = []string{"-"}
	}
	for _, name := range c.Files {
		if name == "-" {
			inputs = append(inputs, feed.Input{Name: "standard input", Reader: s.in})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, nil, &exitError{exitUsage, err}
		}
		files = append(files, f)
		inputs = append(inputs, feed.Input{Name: name, Reader: f})
	}
	return inputs, closeAll, nil
}

// dueTime reads --perform-in as unix seconds.
func dueTime(text string, now time.Time) (float64, error) {
	unix, err := strconv.ParseFloat(text, 64)
	if at, bad := time.Parse(time.RFC3339, text); bad == nil {
		unix, err = float64(at.UnixMicro())/1e6, nil
	} else if in, bad := time.ParseDuration(text); bad == nil && in > 0 {
		unix, err = float64(now.Add(in).UnixMicro())/1e6, nil
	}
	if err != nil || !(unix >= lowkiq.MinPerformAt && unix <= lowkiq.MaxPerformAt) {
		return 0, fail(exitUsage, "--perform-in %s: want a time from now as in 10s or 2h, a time like 2030-01-31T08:00:00Z, or unix seconds from %d to %d",
			text, lowkiq.MinPerformAt, lowkiq.MaxPerformAt)
	}
	return unix, nil
}

// line is the single job as the stream would have it.
func (c *pushCommand) line() (feed.Input, error) {
	header, err := c.header()
	if err != nil {
		return feed.Input{}, err
	}
	job := struct {
		ID        string            `json:"id"`
		Payload   json.RawMessage   `json:"payload,omitempty"`
		Score     *float64          `json:"score,omitempty"`
		PerformIn *float64          `json:"perform_in,omitempty"`
		Header    map[string]string `json:"header,omitempty"`
	}{ID: c.ID, Score: c.Score, Header: header}
	if c.PerformIn != "" {
		at, err := dueTime(c.PerformIn, time.Now())
		if err != nil {
			return feed.Input{}, err
		}
		job.PerformIn = &at
	}
	if c.Payload != "" {
		if !json.Valid([]byte(c.Payload)) {
			return feed.Input{}, fail(exitUsage, "--payload %s: want JSON; a text is written '%s'", c.Payload, strconv.Quote("text"))
		}
		job.Payload = json.RawMessage(c.Payload)
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // a payload is bytes: they stay as they are
	if err := enc.Encode(job); err != nil {
		return feed.Input{}, fail(exitUsage, "job: %w", err)
	}
	if _, err := wire.ParseJob(line.Bytes()); err != nil {
		return feed.Input{}, fail(exitUsage, "job: %w", err)
	}
	return feed.Input{Name: "the job", Reader: &line}, nil
}
