package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/internal/remote"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

// nodeTarget pushes through a node's API.
type nodeTarget struct {
	with       *conversation
	path       string
	wait, keep time.Duration // of a push that waits
}

// refusedJob is why a node will never store a job.
type refusedJob struct{ reason string }

func (e refusedJob) Error() string        { return e.reason }
func (e refusedJob) Is(target error) bool { return target == feed.ErrRefused }

// Push implements feed.Target.
func (n nodeTarget) Push(ctx context.Context, jobs ...lowkiq.Push) ([]queue.Result, error) {
	body, err := pushBody(jobs)
	if err != nil {
		return nil, err
	}
	answer, err := n.with.PostRaw(ctx, n.path, "application/x-ndjson", body)
	if err != nil {
		return nodeTrouble(err, len(jobs))
	}
	var said web.Pushed
	if err := json.Unmarshal(answer, &said); err != nil || len(said.Results) != len(jobs) {
		return nil, fail(exitFailed, "%s: not what a lowkiq node answers to %d jobs", n.path, len(jobs))
	}
	results := make([]queue.Result, len(jobs))
	for i, r := range said.Results {
		results[i].Merged = r.Merged
		switch {
		case r.OK:
		case r.Retry:
			results[i].Err = fmt.Errorf("%w: %s", feed.ErrAway, r.Error)
		default:
			results[i].Err = refusedJob{r.Error}
		}
		err = errors.Join(err, results[i].Err)
	}
	return results, err
}

// nodeTrouble is the answer to a request that was refused as a whole. One that may pass is
// repeated; any other is each job's.
func nodeTrouble(err error, jobs int) ([]queue.Result, error) {
	if mayPass(err) {
		return nil, err
	}
	results := make([]queue.Result, jobs)
	for i := range results {
		results[i].Err = err
	}
	return results, err
}

// mayPass reports whether a node, or one in its place, may answer otherwise in a while.
func mayPass(err error) bool {
	var stranger *tls.CertificateVerificationError
	if errors.As(err, &stranger) {
		return false
	}
	var answer *web.Problem
	refused := errors.As(err, &answer)
	return errors.Is(err, remote.ErrUnreachable) || refused && (answer.Status == http.StatusServiceUnavailable || answer.Status == http.StatusTooManyRequests)
}

// pushBody writes jobs as lines.
func pushBody(jobs []lowkiq.Push) ([]byte, error) {
	var body bytes.Buffer
	for i := range jobs {
		line := struct {
			web.JobID
			Score     *float64          `json:"score,omitempty"`
			PerformIn *float64          `json:"perform_in,omitempty"`
			Header    map[string]string `json:"header,omitempty"`
		}{JobID: web.JobIDOf(jobs[i].ID), Score: jobs[i].Score, Header: jobs[i].Header}
		if at := jobs[i].PerformAt; !at.IsZero() {
			seconds := float64(at.UnixMicro()) / 1e6
			line.PerformIn = &seconds
		}
		head, err := json.Marshal(line)
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", jobs[i].ID, err)
		}
		body.Write(head[:len(head)-1]) // the payload follows: json.Marshal would rewrite its bytes
		body.WriteString(`,"payload":`)
		body.Write(wire.AppendPushed(nil, &jobs[i]))
		body.WriteString("}\n")
	}
	return body.Bytes(), nil
}

// throughNode is the target that --node names, and the shards of the queue there.
func (c *pushCommand) throughNode(ctx context.Context, s *streams) (nodeTarget, int, error) {
	with, err := c.credentials.ask(c.Node, s)
	if err != nil {
		return nodeTarget{}, 0, err
	}
	with.ctx = ctx
	var one status.Queue
	err = with.fetch(queuePath(c.Queue, ""), &one)
	return nodeTarget{with, queuePath(c.Queue, "/jobs"), c.Wait, c.Keep}, one.Shards, err
}
