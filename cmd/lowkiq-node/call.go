package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

// caller pushes jobs and waits until their payloads have ended.
type caller interface {
	pushAndWait(ctx context.Context, jobs []lowkiq.Push) (web.Pushed, error)
}

// checkWait checks the flags of a push that waits.
func (c *pushCommand) checkWait() error {
	switch {
	case c.Wait == 0 && c.Keep == 0:
		return nil
	case c.Wait == 0:
		return exit.Fail(exit.Usage, "--keep is how long the reply of a push with --wait is kept, so it needs --wait")
	case c.Wait < time.Millisecond || c.Wait > web.MaxWait:
		return exit.Fail(exit.Usage, "--wait is %s; it must be between 1ms and %s", c.Wait, web.MaxWait)
	case c.Keep != 0 && (c.Keep < time.Second || c.Keep > protocol.MaxKeep):
		return exit.Fail(exit.Usage, "--keep is %s; it must be between 1s and %s", c.Keep, protocol.MaxKeep)
	case c.Skip > 0 || c.Strict || c.Rate > 0:
		return exit.Fail(exit.Usage, "--skip, --strict and --rate are for streams; with --wait all jobs are read before the first is pushed")
	}
	return nil
}

// callWith pushes the jobs of the inputs and waits. The worst end decides the exit code.
func (c *pushCommand) callWith(ctx context.Context, s *terminal.Streams, to caller) error {
	inputs, closeAll, err := c.openInputs(s)
	if err != nil {
		return err
	}
	defer closeAll()
	jobs, err := readJobs(inputs)
	if err != nil {
		return err
	}
	pushed, err := to.pushAndWait(ctx, jobs)
	if err != nil {
		return err
	}
	if err := printJSON(s, pushed); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return exit.Fail(exit.Interrupted, "interrupted; lowkiq-node reply asks for what is pending")
	}
	if code := worstCode(pushed.Results); code != exit.OK {
		return exit.Quietly(code)
	}
	return nil
}

// readJobs reads the jobs of all inputs.
func readJobs(inputs []feed.Input) (jobs []lowkiq.Push, err error) {
	for _, in := range inputs {
		body, err := io.ReadAll(io.LimitReader(in, maxCallBytes+1))
		switch {
		case err != nil:
			return nil, exit.Fail(exit.Usage, "%s: %w", in.Name, err)
		case len(body) > maxCallBytes:
			return nil, exit.Fail(exit.Usage, "%s: more than %d bytes, which is too much to wait for", in.Name, maxCallBytes)
		}
		some, err := wire.ParseJobs(body)
		if err != nil {
			return nil, exit.Fail(exit.Usage, "%s: %w", in.Name, err)
		}
		jobs = append(jobs, some...)
	}
	if len(jobs) == 0 || len(jobs) > web.MaxCalls {
		return nil, exit.Fail(exit.Usage, "%d jobs; with --wait there must be 1 to %d", len(jobs), web.MaxCalls)
	}
	return jobs, nil
}

// maxCallBytes is the maximum size of an input of a push that waits.
const maxCallBytes = 32 << 20

// worstCode returns the exit code for the ends of several payloads. It is that of the first of these that occurs: refused,
// buried or deleted, pending.
func worstCode(results []web.PushResult) (code int) {
	for i := range results {
		switch r := &results[i]; {
		case !r.OK && r.Retry && code != exit.Failed:
			code = exit.Unreachable
		case !r.OK && !r.Retry:
			code = exit.Failed
		case code == exit.Failed || code == exit.Unreachable:
		default:
			code = worseEnd(code, r.State)
		}
	}
	return code
}

// worseEnd returns the worse of an exit code and the code of a call's state. A buried, deleted or expired call is worse than
// a pending call.
func worseEnd(code int, state lowkiq.ReplyState) int {
	switch {
	case state == lowkiq.ReplyBuried || state == lowkiq.ReplyDeleted || state == lowkiq.ReplyExpired:
		return exit.Buried
	case state == lowkiq.ReplyPending && code == exit.OK:
		return exit.Pending
	}
	return code
}

// printJSON prints an answer as a node writes it. A result is bytes, which stay unchanged.
func printJSON(s *terminal.Streams, v any) error {
	with := &session{Streams: s, asJSON: true}
	if err := with.printValue(v, nil); err != nil {
		return exit.Fail(exit.Failed, "stdout: %w", err)
	}
	return nil
}

// redisCaller pushes calls to Redis.
type redisCaller struct {
	c      *pushCommand
	client *protocol.Client
}

// pushAndWait pushes calls and waits for their ends, at most for --wait. Without --keep, replies are kept for
// queue.DefaultKeep beyond the wait.
func (to redisCaller) pushAndWait(ctx context.Context, jobs []lowkiq.Push) (web.Pushed, error) {
	ctx, cancel := context.WithTimeout(ctx, to.c.Wait)
	defer cancel()
	keep := to.c.Keep
	if keep == 0 {
		keep = to.c.Wait + protocol.DefaultKeep
	}
	calls, err := to.client.Calls(ctx, to.c.Queue, keep, jobs...)
	if err != nil {
		return web.Pushed{}, err
	}
	return web.Pushed{Results: web.CallResults(jobs, calls)}, nil
}

// pushAndWait pushes calls through a node, which waits for their ends. An answer without a result for every job is an error.
func (n nodeTarget) pushAndWait(ctx context.Context, jobs []lowkiq.Push) (pushed web.Pushed, err error) {
	body, err := pushBody(jobs)
	if err != nil {
		return pushed, err
	}
	query := url.Values{"wait": {n.wait.String()}}
	if n.keep > 0 {
		query.Set("keep", n.keep.String())
	}
	n.with.ExtendTimeout(n.wait)
	answer, err := n.with.PostRaw(ctx, n.path+"?"+query.Encode(), "application/x-ndjson", body)
	if err != nil {
		return pushed, err
	}
	if err := json.Unmarshal(answer, &pushed); err != nil || len(pushed.Results) != len(jobs) {
		return pushed, exit.Fail(exit.Failed, "%s: not the answer of a lowkiq node to %d jobs", n.path, len(jobs))
	}
	return pushed, nil
}

type replyCommand struct {
	nodeFlags `embed:""`
	Queue     string `arg:"" help:"Queue."`
	ID        string `arg:"" help:"The job's id."`
	Token     string `arg:"" help:"The token that the push with --wait printed."`
}

// Run prints the reply. Its end decides the exit code.
func (c *replyCommand) Run(with *session) error {
	answer, err := with.Get(with.ctx, queuePath(c.Queue, "/replies/"+escapeSegment(c.ID)+"/"+escapeSegment(c.Token)))
	if err != nil {
		return err
	}
	var reply web.Reply
	if err := decodeAnswer("replies", answer, &reply); err != nil {
		return err
	}
	if err := terminal.WriteJSON(with.Out, answer); err != nil {
		return exit.Fail(exit.Failed, "stdout: %w", err)
	}
	if code := worseEnd(exit.OK, reply.State); code != exit.OK {
		return exit.Quietly(code)
	}
	return nil
}

// escapeSegment escapes a text as a segment of a path. It escapes the segments . and .. as well, because clients and servers
// resolve them.
func escapeSegment(text string) string {
	if text == "." || text == ".." {
		return strings.ReplaceAll(text, ".", "%2E")
	}
	return url.PathEscape(text)
}
