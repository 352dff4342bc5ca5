package actions

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/status"
)

// ReshardChange is a request to reshard a queue.
type ReshardChange struct {
	Shards      int    `json:"shards" min:"1" max:"10000"`
	Patience    string `json:"patience,omitempty"`     // how long running handler calls may take to end; default: 30s. After that nothing is changed
	MaxPause    string `json:"max_pause,omitempty"`    // refuse a reshard that would pause handlers for longer; default: 1m
	CancelCalls bool   `json:"cancel_calls,omitempty"` // end running handler calls. Their jobs run again, which does not count as a retry
	DryRun      bool   `json:"dry_run,omitempty"`      // only estimate the cost
}

// Resharding is the progress of a queue's reshard.
type Resharding struct {
	Queue string `json:"queue"`
	status.Reshard
	Estimate *ReshardCost `json:"estimate,omitempty"` // of a dry run, and of a reshard that the request has begun
}

// ReshardCost is an estimate of the cost of a reshard.
type ReshardCost struct {
	Jobs    int     `json:"jobs"`              // ids that move
	Bytes   int64   `json:"bytes"`             // size of their records
	Morgue  int     `json:"morgue"`            // ids in the morgue that move
	States  int     `json:"states"`            // states of handlers that move
	Memory  int64   `json:"memory"`            // bytes that Redis needs in addition until all jobs have moved
	Room    *int64  `json:"room,omitempty"`    // bytes that Redis may take in addition; absent if it has no maxmemory
	Pause   float64 `json:"pause_s"`           // seconds without handler calls
	Refused string  `json:"refused,omitempty"` // why a reshard would be refused for its cost
}

// parseDuration parses the duration in a field of a request. "" means the default.
func parseDuration(field, text string, byDefault time.Duration) (time.Duration, error) {
	if text == "" {
		return byDefault, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, badField(field, "%q must be a time above 0, such as 30s or 2m", text)
	}
	return d, nil
}

// parseRequest returns the request in the form of package reshard.
func (c ReshardChange) parseRequest(queue string, by changes.Who) (r reshard.Request, maxPause time.Duration, err error) {
	r = reshard.Request{Queue: queue, Shards: c.Shards, CancelCalls: c.CancelCalls, By: by}
	if r.Patience, err = parseDuration("patience", c.Patience, reshard.DefaultPatience); err != nil {
		return r, 0, err
	}
	if maxPause, err = parseDuration("max_pause", c.MaxPause, reshard.DefaultMaxPause); err != nil {
		return r, 0, err
	}
	if err := r.Check(); err != nil {
		field := "patience"
		if r.CheckShards() != nil {
			field = "shards"
		}
		return r, 0, badField(field, "%s", strings.TrimPrefix(err.Error(), reshard.ErrValue.Error()+": "))
	}
	return r, maxPause, nil
}

// BeginReshard begins a reshard, or estimates its cost. If a reshard to the same number is under way, it returns the progress
// of that reshard. The leader of the cluster drives the reshard to its end, or a command if no node lives.
func BeginReshard(ctx context.Context, c *protocol.Client, by changes.Who, queue string, want ReshardChange) (Resharding, error) {
	r, maxPause, err := want.parseRequest(queue, by)
	if err != nil {
		return Resharding{}, err
	}
	cost, _, refusal := reshard.Start(ctx, c, r, maxPause, want.DryRun)
	if refusal != nil && (!want.DryRun || !errors.Is(refusal, reshard.ErrCost)) {
		return Resharding{}, refusal
	}
	now, err := ReadReshard(ctx, c, queue)
	if err != nil || cost == nil {
		return now, err
	}
	now.Estimate = costOf(cost)
	if refusal != nil {
		now.Estimate.Refused = refusal.Error()
	}
	if want.DryRun {
		now.To, now.WaitsFor = want.Shards, status.ReshardWaits(cost.Calls)
	}
	return now, nil
}

// ReadReshard returns the progress of a queue's reshard.
func ReadReshard(ctx context.Context, c *protocol.Client, queue string) (Resharding, error) {
	p, err := reshard.Read(ctx, c, queue)
	if err != nil {
		return Resharding{}, err
	}
	return Resharding{Queue: queue, Reshard: status.ReshardOf(&p)}, nil
}

// Reshard is BeginReshard for a person. It logs the change.
func (o *Operator) Reshard(ctx context.Context, by changes.Who, queue string, want ReshardChange) (Resharding, error) {
	by = o.withNode(by)
	now, err := BeginReshard(ctx, o.client, by, queue, want)
	if err == nil && !want.DryRun && now.Estimate != nil {
		o.logChange(changes.Line{Who: by, Action: Reshard.Name, Queue: queue}, "shards", want.Shards)
	}
	return now, err
}

// CancelReshard cancels a reshard before its jobs move.
func (o *Operator) CancelReshard(ctx context.Context, by changes.Who, queue string) (Resharding, error) {
	by = o.withNode(by)
	if err := reshard.Cancel(ctx, o.client, queue, by, ""); err != nil {
		return Resharding{}, err
	}
	o.logChange(changes.Line{Who: by, Action: CancelReshard.Name, Queue: queue})
	return ReadReshard(ctx, o.client, queue)
}

func costOf(e *reshard.Estimate) *ReshardCost {
	cost := &ReshardCost{Jobs: e.Jobs, Bytes: e.Bytes, Morgue: e.Morgue, States: e.States, Memory: e.Memory, Pause: e.Pause.Seconds()}
	if e.Room >= 0 {
		cost.Room = &e.Room
	}
	return cost
}
