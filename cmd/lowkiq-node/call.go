package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

// caller pushes jobs and waits for the ends of their payloads.
type caller interface {
	call(ctx context.Context, jobs []lowkiq.Push) (web.Pushed, error)
}

// checkWait looks at the flags of a push that waits.
func (c *pushCommand) checkWait() error {
	switch {
	case c.Wait == 0 && c.Keep == 0:
		return nil
	case c.Wait == 0:
		return fail(exitUsage, "--keep is how long the reply of a push with --wait is kept: say --wait 10s, too")
	case c.Wait < time.Millisecond || c.Wait > web.MaxWait:
		return fail(exitUsage, "--wait is %s, want 1ms to %s", c.Wait, web.MaxWait)
	case c.Keep != 0 && (c.Keep < time.Second || c.Keep > queue.MaxKeep):
		return fail(exitUsage, "--keep is %s, want 1s to %s", c.Keep, queue.MaxKeep)
	case c.Skip > 0 || c.Strict || c.Rate > 0:
		return fail(exitUsage, "--skip, --strict and --rate are for streams: with --wait all jobs are read before the first is pushed")
	}
	return nil
}

// callWith pushes what the inputs have and waits. The worst end decides the exit code.
func (c *pushCommand) callWith(ctx context.Context, s *streams, to caller) error {
	inputs, closeAll, err := c.inputs(s)
	if err != nil {
		return err
	}
	defer closeAll()
	jobs, err := readJobs(inputs)
	if err != nil {
		return err
	}
	pushed, err := to.call(ctx, jobs)
	if err != nil {
		return err
	}
	if err := printJSON(s, pushed); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fail(exitInterrupted, "interrupted; lowkiq-node reply asks for what is pending")
	}
	if code := worst(pushed.Results); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// readJobs reads all inputs.
func readJobs(inputs []feed.Input) (jobs []lowkiq.Push, err error) {
	for _, in := range inputs {
		body, err := io.ReadAll(io.LimitReader(in, maxCallBytes+1))
		switch {
		case err != nil:
			return nil, fail(exitUsage, "%s: %w", in.Name, err)
		case len(body) > maxCallBytes:
			return nil, fail(exitUsage, "%s: more than %d bytes, which is too much to wait for", in.Name, maxCallBytes)
		}
		some, err := wire.ParseJobs(body)
		if err != nil {
			return nil, fail(exitUsage, "%s: %w", in.Name, err)
		}
		jobs = append(jobs, some...)
	}
	if len(jobs) == 0 || len(jobs) > web.MaxCalls {
		return nil, fail(exitUsage, "%d jobs, want 1 to %d with --wait", len(jobs), web.MaxCalls)
	}
	return jobs, nil
}

// maxCallBytes is the longest input of a push that waits.
const maxCallBytes = 32 << 20

// worst is the exit code for the ends of several payloads: of refused, buried (or deleted) and pending
// the first that there is.
func worst(results []web.PushResult) (code int) {
	for i := range results {
		switch r := &results[i]; {
		case !r.OK && r.Retry && code != exitFailed:
			code = exitUnreachable
		case !r.OK && !r.Retry:
			code = exitFailed
		case code == exitFailed || code == exitUnreachable:
		default:
			code = worseEnd(code, r.State)
		}
	}
	return code
}

func worseEnd(code int, state lowkiq.ReplyState) int {
	switch {
	case state == lowkiq.ReplyBuried || state == lowkiq.ReplyDeleted || state == lowkiq.ReplyExpired:
		return exitBuried
	case state == lowkiq.ReplyPending && code == exitOK:
		return exitPending
	}
	return code
}

// printJSON prints an answer as a node writes it: a result is bytes that stay as they are.
func printJSON(s *streams, v any) error {
	with := &conversation{streams: s, asJSON: true}
	if err := with.print(v, nil); err != nil {
		return fail(exitFailed, "stdout: %w", err)
	}
	return nil
}

// redisCaller calls into Redis.
type redisCaller struct {
	c      *pushCommand
	client *queue.Client
}

func (to redisCaller) call(ctx context.Context, jobs []lowkiq.Push) (web.Pushed, error) {
	ctx, cancel := context.WithTimeout(ctx, to.c.Wait)
	defer cancel()
	keep := to.c.Keep
	if keep == 0 {
		keep = to.c.Wait + queue.DefaultKeep
	}
	calls, err := to.client.Calls(ctx, to.c.Queue, keep, jobs...)
	if err != nil {
		return web.Pushed{}, err
	}
	return web.Pushed{Results: web.Ended(jobs, calls)}, nil
}

func (n nodeTarget) call(ctx context.Context, jobs []lowkiq.Push) (pushed web.Pushed, err error) {
	body, err := pushBody(jobs)
	if err != nil {
		return pushed, err
	}
	query := url.Values{"wait": {n.wait.String()}}
	if n.keep > 0 {
		query.Set("keep", n.keep.String())
	}
	n.with.Patience(n.wait)
	answer, err := n.with.PostRaw(ctx, n.path+"?"+query.Encode(), "application/x-ndjson", body)
	if err != nil {
		return pushed, err
	}
	if err := json.Unmarshal(answer, &pushed); err != nil || len(pushed.Results) != len(jobs) {
		return pushed, fail(exitFailed, "%s: not what a lowkiq node answers to %d jobs", n.path, len(jobs))
	}
	return pushed, nil
}

type replyCommand struct {
	asking `embed:""`
	Queue  string `arg:"" help:"Queue."`
	ID     string `arg:"" help:"The job's id."`
	Token  string `arg:"" help:"The token that the push with --wait printed."`
}

// Run prints the reply, whose end decides the exit code.
func (c *replyCommand) Run(with *conversation) error {
	answer, err := with.Get(with.ctx, queuePath(c.Queue, "/replies/"+segment(c.ID)+"/"+segment(c.Token)))
	if err != nil {
		return err
	}
	var reply web.Reply
	if err := decode("replies", answer, &reply); err != nil {
		return err
	}
	if err := writeJSON(with.out, answer); err != nil {
		return fail(exitFailed, "stdout: %w", err)
	}
	if code := worseEnd(exitOK, reply.State); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// segment is text as one segment of a path: dots alone, which clients and servers take for a way up,
// are escaped, too.
func segment(text string) string {
	if text == "." || text == ".." {
		return strings.ReplaceAll(text, ".", "%2E")
	}
	return url.PathEscape(text)
}
