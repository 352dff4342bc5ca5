package status

import (
	"context"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Why explains why no handler has an id now.
func (x inspector) Why(ctx context.Context, q *protocol.Queue, id string) (Why, error) {
	var f Facts
	var err error
	if f.Job, f.Found, err = browse.Of(q).Where(ctx, id); err != nil {
		return Why{}, err
	}
	if f.Position, err = browse.Of(q).Position(ctx, id); err != nil {
		return Why{}, err
	}
	entries, err := x.Client().Protocol().Registry().Entries(ctx)
	if err != nil {
		return Why{}, err
	}
	live, owners, err := x.owners(ctx)
	if err != nil {
		return Why{}, err
	}
	f.Paused = entries[q.Name].Paused
	_, f.Workflows = entries[protocol.Workflows]
	if f.Reshard, err = ReadReshard(ctx, x.Client().Protocol(), q.Name, entries[q.Name]); err != nil {
		return Why{}, err
	}
	f.Shard = shardStatus(q.Of(id).Shard, protocol.Stats{Owner: f.Position.Owner}, owners)
	var handled Handled
	for name, info := range live {
		f.Handled = f.Handled || takesShards(info, q.Name)
		handled = append(handled, handledBy(name, info))
	}
	f.Static = sharesOf(handled.of(q.Name))
	f.Refused = live[f.Shard.Owner].RefusedFor(q.Of(id).Shard)
	f.Unready = live[f.Shard.Owner].Unready[q.Name]
	owner := QueueFacts{Name: q.Name, Handled: Handled{handledBy(f.Shard.Owner, live[f.Shard.Owner])}}
	f.Limits = owner.Waits()
	if f.Job.State == browse.StateInFlight && f.Alive() {
		// Only the owner knows whether the id waits for a process, or a handler has begun.
		var here bool
		if f.Where, here = x.LocateOrCancel(f.Shard.Owner, q.Of(id).Shard, id, nil); !here {
			if f.Where, err = x.Client().Protocol().Whereabouts(ctx, f.Shard.Owner, q.Of(id), id, askPatience); err != nil {
				return Why{}, err
			}
		}
	}
	if f.Where.Stage == protocol.ForPermit {
		f.Permits, _ = x.Client().Protocol().Permits(q.Name).Holders(ctx) // without them the answer says less
	}
	set, err := x.rulesOf(ctx, q.Name)
	if err != nil {
		return Why{}, err
	}
	if group := set.groups.Of(id); group != "" {
		f.Group = group
		f.InGroup, _ = x.Client().Protocol().Group(ctx, q.Name, group)
		f.GroupLimit = set.groups.Limit
	}
	if f.Found && f.Job.State != browse.StateMorgue && f.Job.State != browse.StateInFlight {
		f.Held = heldBy(set.held.Of(id))
	}
	return f.Why(id), nil
}

// Cancel ends the handler call of an id.
func (x inspector) Cancel(ctx context.Context, q *protocol.Queue, id string, why protocol.Cancellation) error {
	job, found, err := browse.Of(q).Where(ctx, id)
	if err != nil {
		return err
	}
	if !found || job.State != browse.StateInFlight {
		return fmt.Errorf("%q: %w", id, ErrNotRunning)
	}
	position, err := browse.Of(q).Position(ctx, id)
	if err != nil {
		return err
	}
	owner := position.Owner.Instance
	where, here := x.LocateOrCancel(owner, q.Of(id).Shard, id, &why)
	if !here {
		if where, err = x.Client().Protocol().Cancel(ctx, owner, q.Of(id), id, why, askPatience); err != nil {
			return err
		}
	}
	switch {
	case where.Cancelled:
		return nil
	case where.Stage == "":
		return fmt.Errorf("%q, which %s has: %w", id, owner, ErrNoAnswer)
	case where.Stage == protocol.Handled:
		return fmt.Errorf("%q: %w any more: its handler on %s has just answered, or was told to stop as the node leaves", id, ErrNotRunning, owner)
	}
	return fmt.Errorf("%q: %w: %s has it, and no handler has begun", id, ErrNotRunning, owner)
}

// askPatience is how long an owner may take to say where it has an id.
const askPatience = time.Second

// rulesInForce are the rules that keep ids of a queue back.
type rulesInForce struct {
	groups rules.Groups
	held   *rules.Held
}

// rulesOf returns the rules in force. The groups of the configuration are known only if this node handles the queue. A setting that
// cannot be parsed is left out, as nodes leave it out.
func (x inspector) rulesOf(ctx context.Context, name string) (r rulesInForce, err error) {
	base := rules.FromBases(x.Rules(name))
	r.groups = base.WithDefaults(0).Groups
	set, now, err := rules.In(x.Client().Protocol().DB()).Queue(ctx, name)
	if err != nil {
		return r, err
	}
	values, _ := set.Apply(base, now)
	r.groups, r.held = values.WithDefaults(0).Groups, rules.NewHeld(values.Holds)
	return r, nil
}

// heldBy says who holds an id, until when and why; "" if nobody does.
func heldBy(hold *rules.Hold) string {
	if hold == nil {
		return ""
	}
	text := " by " + hold.By.String()
	if hold.Prefix != "" {
		text += fmt.Sprintf(", as all ids that begin with %q are", hold.Prefix)
	}
	if !hold.Until.IsZero() {
		text += ", until " + hold.Until.UTC().Format(time.RFC3339)
	}
	if hold.Why != "" {
		text += fmt.Sprintf(" (%s)", hold.Why)
	}
	return text
}
