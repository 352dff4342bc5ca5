package status

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/wire"
)

// Reshard is the progress of a reshard, as API, pages and commands show it.
type Reshard struct {
	Phase     reshard.Phase `json:"phase" enum:"none draining freezing copying ending"`
	From      int           `json:"from"`                // number of shards before the reshard; without a reshard, the present number
	To        int           `json:"to,omitempty"`        // number of shards after the reshard
	Moved     int           `json:"moved"`               // jobs that are in the new shards
	Of        int           `json:"of"`                  // jobs that move
	Open      int           `json:"open"`                // new shards that work
	WaitsFor  []ReshardWait `json:"waits_for"`           // jobs in flight that must end first, the longest first, at most 100
	Busy      string        `json:"busy,omitempty"`      // why it waits although no job is in flight
	Pause     float64       `json:"pause_s"`             // seconds since the reshard began or, once jobs move, since their first move
	Cancelled string        `json:"cancelled,omitempty"` // why the last reshard was cancelled, if none is under way
}

// ReshardWait is a job in flight that a reshard waits for.
type ReshardWait struct {
	wire.JobID
	Node string  `json:"node"`  // node that has it
	For  float64 `json:"for_s"` // seconds for which it has been in flight
}

// Name returns the id for people.
func (w ReshardWait) Name() string {
	if w.Text != nil {
		return *w.Text
	}
	return fmt.Sprintf("%q", w.Base64)
}

// ReshardOf converts the progress of a reshard to its form for readers.
func ReshardOf(p *reshard.Progress) Reshard {
	r := Reshard{
		Phase: p.Phase, From: p.From, To: p.To, Moved: int(p.Moved), Of: int(p.Of), Open: p.Open, Pause: p.Pause.Seconds(), Busy: p.Busy, Cancelled: p.Cancelled,
	}
	if r.Phase == "" {
		r.Phase = reshard.None
	}
	r.WaitsFor = ReshardWaits(p.Calls)
	return r
}

// ReshardWaits converts calls to their form for readers.
func ReshardWaits(calls []reshard.Call) []ReshardWait {
	waits := []ReshardWait{}
	for _, call := range calls {
		waits = append(waits, ReshardWait{wire.NewJobID(call.ID), identity.NodeOf(call.Instance), call.For.Seconds()})
	}
	return waits
}

// ReadReshard returns the reshard of a queue with this entry, nil if none is under way.
func ReadReshard(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) (*Reshard, error) {
	all, err := ReadReshards(ctx, c, map[string]protocol.RegistryEntry{name: entry})
	return all[name], err
}

// ReadReshards returns the reshards under way, by queue.
func ReadReshards(ctx context.Context, c *protocol.Client, entries map[string]protocol.RegistryEntry) (map[string]*Reshard, error) {
	all, err := reshard.ReadAll(ctx, c, entries)
	found := map[string]*Reshard{}
	for name, p := range all {
		r := ReshardOf(&p)
		found[name] = &r
	}
	return found, err
}

// UnderWay reports whether a reshard is under way.
func (r *Reshard) UnderWay() bool { return r != nil && r.Phase != reshard.None }

// Moves reports whether jobs move.
func (r *Reshard) Moves() bool {
	return r != nil && (r.Phase == reshard.Copying || r.Phase == reshard.Ending)
}

// String returns the progress of the reshard for people.
func (r *Reshard) String() string {
	begin := fmt.Sprintf("it is being resharded from %d to %d shards", r.From, r.To)
	switch {
	case r.Moves():
		return fmt.Sprintf("%s: %d of %d jobs moved, %d of %d shards work", begin, r.Moved, r.Of, r.Open, r.To)
	case r.Phase == reshard.Freezing:
		return begin + ", and pushes wait for a moment"
	case len(r.WaitsFor) > 0:
		w := r.WaitsFor[0]
		return fmt.Sprintf("%s, and waits for %s; %s has been on node %s for %.0f s", begin, countInFlight(len(r.WaitsFor)), w.Name(), w.Node, w.For)
	case r.Busy != "":
		return begin + ", and waits, as " + r.Busy
	}
	return begin
}

func countInFlight(n int) string {
	if n == 1 {
		return "1 job in flight"
	}
	return fmt.Sprintf("%d jobs in flight", n)
}

// Percent returns how many percent of the jobs have moved.
func (r *Reshard) Percent() int {
	switch {
	case r.Phase == reshard.Ending:
		return 100
	case r.Phase != reshard.Copying || r.Of == 0:
		return 0
	}
	return 100 * r.Moved / r.Of
}

// State returns a word for lists, such as "resharding 34 %".
func (r *Reshard) State() string { return fmt.Sprintf("resharding %d %%", r.Percent()) }
