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
	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

type pushCommand struct {
	connect.Flags `embed:""`
	Node          string `placeholder:"URL" help:"Push through the API of this node. Default: the node of LOWKIQ_URL without --redis, LOWKIQ_REDIS, --config and LOWKIQ_CONFIG, otherwise Redis itself, which needs no node."`
	credentials   `embed:""`

	Queue  string `required:"" short:"q" placeholder:"NAME" help:"Queue to push into."`
	Shards *int   `placeholder:"N" help:"Shard count: registers the queue if it is new."`
	Strict bool   `help:"Stop at the first line that is refused."`
	Skip   int    `placeholder:"N" help:"Skip the first N lines, because they are stored already."`

	Workflow string `placeholder:"ID" help:"Add the jobs to this open workflow. Parts of up to 500 lines are stored or refused as one."`

	Wait time.Duration `placeholder:"TIME" help:"Wait at most this long until the payloads have ended, and print how each has ended and the answer of its handler."`
	Keep time.Duration `placeholder:"TIME" help:"With --wait: how long replies are kept for lowkiq-node reply. Default: a minute longer than the wait."`

	Patience time.Duration `default:"30s" placeholder:"TIME" help:"How long to retry while Redis, or the node of --node, is away (${default})."`

	Rate int `placeholder:"N" help:"At most N lines a second. Default: as many as Redis takes."`

	Files []string `arg:"" optional:"" help:"NDJSON files; none or - is standard input."`

	ID        string   `group:"A single job:" placeholder:"ID" help:"Push this one job instead of lines."`
	Payload   string   `group:"A single job:" placeholder:"JSON" help:"Its payload."`
	Score     *float64 `group:"A single job:" placeholder:"X" help:"Its score: the payloads of an id are handled lowest score first."`
	PerformIn string   `group:"A single job:" placeholder:"TIME" help:"The earliest time of its run: from now, as in 10s or 2h, RFC 3339, or unix seconds. An id that waits already keeps its due time."`

	Urgent bool `group:"A single job:" help:"Put its id before all ids of its shard that are not urgent, until its waiting payloads are handled."`

	Header []string `group:"A single job:" sep:"none" placeholder:"NAME=VALUE" help:"A header of the payload, as in --header tag=vip. May be repeated. Handlers get it with the payload."`
}

// Run pushes to Redis, which needs no node (I7), or through the node of --node.
func (c *pushCommand) Run(s *terminal.Streams, grammar *kong.Context) error {
	c.Node = cmp.Or(c.Node, c.defaultNode(os.Getenv))
	if err := c.checkFlags(); err != nil {
		return err
	}
	ctx, stop := signals.UntilInterrupted(signals.StopSignals()...)
	defer stop()
	if c.Node != "" {
		var target nodeTarget
		var shards int
		err := c.retryWhileAway(ctx, s, mayPass, func() (err error) {
			target, shards, err = c.openTarget(ctx, s)
			return err
		})
		if err != nil {
			return err
		}
		if c.Wait > 0 {
			return c.callWith(ctx, s, target)
		}
		if c.Workflow != "" {
			return c.pushStream(ctx, s, c.workflowOfNode(target), shards)
		}
		return c.pushStream(ctx, s, target, shards)
	}
	cfg, err := c.LoadConfig(grammar)
	if err != nil {
		return err
	}
	client, err := connect.OpenClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	var q *protocol.Queue
	err = c.retryWhileAway(ctx, s, protocol.Transient, func() (err error) {
		q, err = c.findQueue(ctx, client, cfg)
		return err
	})
	if err != nil {
		return err
	}
	if c.Wait > 0 {
		return c.callWith(ctx, s, redisCaller{c, client})
	}
	if c.Workflow != "" {
		return c.pushStream(ctx, s, c.workflowOfRedis(client), q.Shards)
	}
	return c.pushStream(ctx, s, q, q.Shards)
}

// defaultNode returns the node that LOWKIQ_URL names, as for the other commands. A flag or a variable that names the Redis, or
// a file that may name it, comes first.
func (c *pushCommand) defaultNode(getenv func(string) string) string {
	if c.Redis != "" || c.Config != "" || getenv("LOWKIQ_REDIS") != "" {
		return ""
	}
	return getenv("LOWKIQ_URL")
}

// retryWhileAway takes a step before the first line, and repeats it while Redis or the node is away, until the time of
// --patience is over.
func (c *pushCommand) retryWhileAway(ctx context.Context, s *terminal.Streams, away func(error) bool, step func() error) error {
	backoff := sleep.Backoff{Limit: c.Patience, Away: func(err error) { c.reportAway(s, err) }}
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
			return exit.WithCode(exit.Unreachable, err)
		default:
			return exit.Fail(exit.Unreachable, "%w; --redis, LOWKIQ_REDIS or redis in the file of --config says where Redis is, and --node pushes through a node", err)
		}
	}
}

// reportAway prints that the push waits, and for what.
func (c *pushCommand) reportAway(s *terminal.Streams, err error) {
	who, hint := "redis is away", ""
	switch {
	case c.Node != "":
		who = "the node is away"
	case os.Getenv("LOWKIQ_URL") != "":
		hint = "; LOWKIQ_URL does not count beside --redis, LOWKIQ_REDIS, --config or LOWKIQ_CONFIG"
	}
	var answer *web.Problem
	switch {
	case errors.As(err, &answer):
		who = "the node refuses pushes"
	case c.Node == "" && !protocol.Unreachable(err):
		who = "redis refuses pushes"
	}
	terminal.Fprintf(s.Err, "lowkiq-node: %s, trying for %s: %v%s\n", who, c.Patience, err, hint)
}

// checkFlags returns an error with the code exit.Usage if flags exclude each other or are out of range.
func (c *pushCommand) checkFlags() error {
	switch {
	case c.ID == "" && (c.Payload != "" || c.Score != nil || c.PerformIn != "" || c.Urgent || len(c.Header) > 0):
		return exit.Fail(exit.Usage, "--payload, --score, --perform-in, --urgent and --header belong to --id")
	case c.ID != "" && (len(c.Files) > 0 || c.Skip != 0):
		return exit.Fail(exit.Usage, "--id pushes a single job, without files and --skip")
	case c.Node != "" && (c.Redis != "" || c.Cluster != "" || c.Shards != nil):
		return exit.Fail(exit.Usage, "--node or LOWKIQ_URL pushes through the API of a node: --redis, --cluster and --shards do not go with it")
	case c.Workflow != "" && (c.Wait > 0 || c.Urgent):
		return exit.Fail(exit.Usage, "--wait and --urgent do not go with --workflow")
	case c.Skip < 0:
		return exit.Fail(exit.Usage, "--skip is %d; it must be at least 0", c.Skip)
	case c.Patience <= 0:
		return exit.Fail(exit.Usage, "--patience is %s; it must be more than 0", c.Patience)
	case c.Rate < 0:
		return exit.Fail(exit.Usage, "--rate is %d; it must be at least 0", c.Rate)
	case c.Shards != nil && (*c.Shards < 1 || *c.Shards > lowkiq.MaxShards):
		return exit.Fail(exit.Usage, "--shards is %d; it must be between 1 and %d", *c.Shards, lowkiq.MaxShards)
	}
	if err := c.checkWait(); err != nil {
		return err
	}
	_, err := c.parseHeader()
	return err
}

// parseHeader parses the headers of --header.
func (c *pushCommand) parseHeader() (map[string]string, error) {
	all := map[string]string{}
	for _, one := range c.Header {
		name, value, ok := strings.Cut(one, "=")
		if _, twice := all[name]; !ok || twice {
			return nil, exit.Fail(exit.Usage, "--header is %q; it must be NAME=VALUE, with each name once", one)
		}
		all[name] = value
	}
	if _, err := lowkiq.NewHeader(all); err != nil {
		return nil, exit.Fail(exit.Usage, "--header: %w", err)
	}
	return all, nil
}

// findQueue finds the queue, or registers it.
func (c *pushCommand) findQueue(ctx context.Context, client *protocol.Client, cfg *config.Config) (*protocol.Queue, error) {
	q, err := connect.FindQueue(ctx, client, cfg, c.Queue, valueOrZero(c.Shards))
	if errors.Is(err, lowkiq.ErrUnknownQueue) {
		return nil, exit.Fail(exit.Usage, "%w; --shards N registers it, and --cluster names another cluster", err)
	}
	return q, err
}

// pushStream pushes the inputs. It prints the summary on stdout even after an error, so that a script knows where to
// continue.
func (c *pushCommand) pushStream(ctx context.Context, s *terminal.Streams, to feed.Target, shards int) error {
	inputs, closeAll, err := c.openInputs(s)
	if err != nil {
		return err
	}
	defer closeAll()
	bar := terminal.NewBar(s.Err, -1, "pushing")
	f := &feed.Feeder{
		Target: to, Shards: shards, Skip: c.Skip, Strict: c.Strict, Patience: c.Patience, Rate: c.Rate,
		Refused: func(line int, reason error) {
			bar.Clear()
			terminal.Fprintf(s.Err, "line %d: %v\n", line, reason)
		},
		Away: func(err error) {
			bar.Clear()
			c.reportAway(s, err)
		},
		Settled: func(sum feed.Summary) { bar.Set(sum.Lines) },
	}
	sum, err := f.Run(ctx, inputs...)
	bar.Clear()
	if err := json.NewEncoder(s.Out).Encode(sum); err != nil {
		return exit.Fail(exit.Failed, "stdout: %w", err)
	}
	return c.explainEnd(ctx, sum, err)
}

// explainEnd turns the end of a push into an exit code and advice.
func (c *pushCommand) explainEnd(ctx context.Context, sum feed.Summary, err error) error {
	resume := fmt.Sprintf("resume with --skip %d", sum.Line)
	if c.ID != "" {
		resume = "push it again: that is safe"
	}
	var answer *web.Problem
	refused := errors.As(err, &answer) && !mayPass(err)
	switch {
	case refused && c.ID != "":
		return exit.Fail(answerCode(answer.Status), "nothing was pushed: %w", err)
	case refused:
		return exit.Fail(answerCode(answer.Status), "%w; once that is mended, %s", err, resume)
	case err == nil && sum.Refused == 0:
		return nil
	case err == nil:
		return exit.Quietly(exit.Failed) // each refused line was reported
	case errors.Is(err, feed.ErrStrict) && c.ID != "":
		return exit.Quietly(exit.Failed)
	case errors.Is(err, feed.ErrStrict):
		return exit.Fail(exit.Failed, "stopped at the refused line; once it is mended, %s", resume)
	case errors.Is(err, workflow.ErrUnknown), errors.Is(err, workflow.ErrClosed), errors.Is(err, workflow.ErrInvalid), errors.Is(err, workflow.ErrTooLarge):
		return exit.Fail(exit.Usage, "%w; %s", err, resume)
	case errors.Is(err, feed.ErrInput):
		return exit.Fail(exit.Usage, "%w; %s", err, resume)
	case ctx.Err() != nil:
		return exit.Fail(exit.Interrupted, "interrupted; %s", resume)
	}
	return exit.Fail(exit.Unreachable, "%w; %s", err, resume)
}

// openInputs opens the files. A single job is a stream with a single line.
func (c *pushCommand) openInputs(s *terminal.Streams) (inputs []feed.Input, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			f.Close()
		}
	}
	if c.ID != "" {
		line, err := c.jobLine()
		return []feed.Input{line}, closeAll, err
	}
	if len(c.Files) == 0 {
		c.Files = []string{"-"}
	}
	for _, name := range c.Files {
		if name == "-" {
			inputs = append(inputs, feed.Input{Name: "standard input", Reader: s.In})
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, nil, exit.WithCode(exit.Usage, err)
		}
		files = append(files, f)
		inputs = append(inputs, feed.Input{Name: name, Reader: f})
	}
	return inputs, closeAll, nil
}

// dueTime parses --perform-in as unix seconds.
func dueTime(text string, now time.Time) (float64, error) {
	unix, err := strconv.ParseFloat(text, 64)
	if at, bad := time.Parse(time.RFC3339, text); bad == nil {
		unix, err = float64(at.UnixMicro())/1e6, nil
	} else if in, bad := time.ParseDuration(text); bad == nil && in > 0 {
		unix, err = float64(now.Add(in).UnixMicro())/1e6, nil
	}
	if err != nil || !(unix >= lowkiq.MinPerformAt && unix <= lowkiq.MaxPerformAt) {
		return 0, exit.Fail(exit.Usage, "--perform-in is %s; it must be a time from now as in 10s or 2h, a time like 2030-01-31T08:00:00Z, "+
			"or unix seconds from %d to %d",
			text, lowkiq.MinPerformAt, lowkiq.MaxPerformAt)
	}
	return unix, nil
}

// jobLine returns the single job as a line of a stream.
func (c *pushCommand) jobLine() (feed.Input, error) {
	header, err := c.parseHeader()
	if err != nil {
		return feed.Input{}, err
	}
	job := struct {
		ID        string            `json:"id"`
		Payload   json.RawMessage   `json:"payload,omitempty"`
		Score     *float64          `json:"score,omitempty"`
		PerformIn *float64          `json:"perform_in,omitempty"`
		Urgent    bool              `json:"urgent,omitempty"`
		Header    map[string]string `json:"header,omitempty"`
	}{ID: c.ID, Score: c.Score, Urgent: c.Urgent, Header: header}
	if c.PerformIn != "" {
		at, err := dueTime(c.PerformIn, time.Now())
		if err != nil {
			return feed.Input{}, err
		}
		job.PerformIn = &at
	}
	if c.Payload != "" {
		if !json.Valid([]byte(c.Payload)) {
			return feed.Input{}, exit.Fail(exit.Usage, "--payload is %s; it must be JSON; a text is written '%s'", c.Payload, strconv.Quote("text"))
		}
		job.Payload = json.RawMessage(c.Payload)
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // the bytes of a payload must not change
	if err := enc.Encode(job); err != nil {
		return feed.Input{}, exit.Fail(exit.Usage, "job: %w", err)
	}
	if _, err := wire.ParseJob(line.Bytes()); err != nil {
		return feed.Input{}, exit.Fail(exit.Usage, "job: %w", err)
	}
	return feed.Input{Name: "the job", Reader: &line}, nil
}
