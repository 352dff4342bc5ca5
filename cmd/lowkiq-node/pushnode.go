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
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/wire"
)

// nodeTarget pushes through the API of a node.
type nodeTarget struct {
	with       *session
	path       string
	wait, keep time.Duration // the flags of a push that waits
}

// refusedJob is the reason why a node will never store a job.
type refusedJob struct{ reason string }

func (e refusedJob) Error() string        { return e.reason }
func (e refusedJob) Is(target error) bool { return target == feed.ErrRefused }

// Push implements feed.Target.
func (n nodeTarget) Push(ctx context.Context, jobs ...lowkiq.Push) ([]protocol.Result, error) {
	body, err := pushBody(jobs)
	if err != nil {
		return nil, err
	}
	answer, err := n.with.PostRaw(ctx, n.path, "application/x-ndjson", body)
	if err != nil {
		return nodeTrouble(err, len(jobs))
	}
	var pushed web.Pushed
	if err := json.Unmarshal(answer, &pushed); err != nil || len(pushed.Results) != len(jobs) {
		return nil, exit.Fail(exit.Failed, "%s: not the answer of a lowkiq node to %d jobs", n.path, len(jobs))
	}
	results := make([]protocol.Result, len(jobs))
	for i, r := range pushed.Results {
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

// nodeTrouble returns the results of a request that failed as a whole. A request that may succeed later is repeated. Any
// other error is the error of each job.
func nodeTrouble(err error, jobs int) ([]protocol.Result, error) {
	if mayPass(err) {
		return nil, err
	}
	results := make([]protocol.Result, jobs)
	for i := range results {
		results[i].Err = err
	}
	return results, err
}

// mayPass reports whether the same request may succeed later, at this node or at another node in its place.
func mayPass(err error) bool {
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return false
	}
	var answer *web.Problem
	refused := errors.As(err, &answer)
	return errors.Is(err, remote.ErrUnreachable) || refused && (answer.Status == http.StatusServiceUnavailable ||
		answer.Status == http.StatusTooManyRequests)
}

// pushBody returns jobs as lines.
func pushBody(jobs []lowkiq.Push) ([]byte, error) {
	var body bytes.Buffer
	for i := range jobs {
		line := struct {
			web.JobID
			Score     *float64          `json:"score,omitempty"`
			PerformIn *float64          `json:"perform_in,omitempty"`
			Urgent    bool              `json:"urgent,omitempty"`
			Header    map[string]string `json:"header,omitempty"`
		}{JobID: web.JobIDOf(jobs[i].ID), Score: jobs[i].Score, Urgent: jobs[i].Urgent, Header: jobs[i].Header}
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

// openTarget returns the target of --node and the shard count of the queue there.
func (c *pushCommand) openTarget(ctx context.Context, s *terminal.Streams) (nodeTarget, int, error) {
	with, err := c.credentials.openSession(c.Node, s)
	if err != nil {
		return nodeTarget{}, 0, err
	}
	with.ctx = ctx
	var one status.Queue
	err = with.fetchJSON(queuePath(c.Queue, ""), &one)
	return nodeTarget{with, queuePath(c.Queue, "/jobs"), c.Wait, c.Keep}, one.Shards, err
}
