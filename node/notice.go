package node

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/queue"
)

// How a node notices work: wake-ups, and polls for what wake-ups miss.

// listen follows wake-ups until ctx ends.
func (in *instance) listen(ctx context.Context) {
	if err := in.wakes.Run(ctx, in.noticed); err != nil && ctx.Err() == nil {
		in.log.Error("wake-ups end; polling goes on", "err", err)
	}
}

// noticed takes in one piece of news.
func (in *instance) noticed(w queue.Wake) {
	if w.Lost {
		in.deaf()
		return
	}
	r := in.runner(w.Shard)
	if w.Confirmed {
		r = in.confirmed(w.Shard)
	}
	switch {
	case w.Asked != nil:
		in.answer(w.Asked)
	case w.Drain != "":
		in.node.drain(w.Drain == "on")
	case w.Wanted != 0:
		in.unknowing(w.Shard, w.Wanted)
	case r == nil:
		select {
		case in.freed <- w.Shard: // perhaps it was released
		default: // the supervisor looks at all of them anyhow
		}
	case w.Due.IsZero():
		r.run.Wake()
	default:
		r.run.WakeAt(w.Due)
	}
}

// deaf notes that news may be missed until subscriptions are confirmed again.
func (in *instance) deaf() {
	in.mu.Lock()
	defer in.mu.Unlock()
	clear(in.heard)
	for _, r := range in.runners {
		r.run.Unsubscribed(in.node.cfg.PollInterval)
	}
}

// confirmed notes that the news of a shard arrive from now on.
func (in *instance) confirmed(s lowkiq.Shard) *ownedShard {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard[s] = true
	r := in.runners[s]
	if r != nil {
		r.run.Subscribed()
	}
	return r
}

// unheard notes that the news of shards arrive no more.
func (in *instance) unheard(shards []*queue.Shard) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range shards {
		delete(in.heard, s.Shard)
	}
}

const peekPage = 200

// poll looks at idle shards in pages, one round trip each, until ctx ends.
func (in *instance) poll(ctx context.Context) {
	interval := in.node.cfg.PollInterval
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		in.pollOnce(ctx, sinceBoot(), interval)
	}
}

func (in *instance) pollOnce(ctx context.Context, now, interval time.Duration) {
	var page []*ownedShard
	for _, r := range in.all() {
		if r.run.PollDue(now, interval) {
			page = append(page, r)
		}
		if len(page) == peekPage {
			in.peek(ctx, page)
			page = nil
		}
	}
	in.peek(ctx, page)
}

// peek wakes the runners whose shard has something due.
func (in *instance) peek(ctx context.Context, page []*ownedShard) {
	if len(page) == 0 {
		return
	}
	shards := make([]*queue.Shard, len(page))
	for i, r := range page {
		shards[i] = r.shard
	}
	seen, err := in.node.client.Peek(ctx, shards...)
	if err != nil {
		in.trouble("peek", nil, err)
		return
	}
	for _, p := range seen {
		if !p.Next.IsZero() {
			now, _ := in.node.client.Time(ctx) // Redis's clock may have jumped; zero if unknown
			in.clock(now)
			break
		}
	}
	for i, r := range page {
		if seen[i].Ready {
			r.run.Wake()
		} else if !seen[i].Next.IsZero() {
			r.run.WakeAt(seen[i].Next)
		}
	}
}

// pruneAfter leaves others the time to use the proof that an instance is dead.
const pruneAfter = time.Minute

// forgetAfter is how long an instance that nobody proves dead is remembered without its lease, at least: much longer
// than it takes to notice its loss, and to seize what it held.
const forgetAfter = 10 * time.Minute

// forgetMost bounds it for an instance of a long ttl.
const forgetMost = time.Hour

// pruneEvery is how often the index of instances is looked through.
const pruneEvery = 30 * time.Second

// forgettable reports whether an instance of this ttl is to be forgotten that has been without its lease for so long.
func forgettable(missing, ttl time.Duration, proven bool) bool {
	return proven && missing > pruneAfter || missing > min(max(forgetAfter, 10*ttl), forgetMost)
}

// unknowing releases a claim that this instance holds without running its shard: the
// answer to the claim was lost, and the shard is somebody else's by now.
func (in *instance) unknowing(s lowkiq.Shard, fence int64) {
	on := in.node.queues[s.Queue]
	if in.runner(s) != nil || on == nil || in.wants(s) || s.Index < 0 || s.Index >= on.shards() {
		return
	}
	_, err := on.queue.Shard(s.Index).Adopt(in.name, fence).Release(in.io)
	if err != nil && !errors.Is(err, lowkiq.ErrFenced) {
		in.trouble("release", s, err)
	}
}

// prune forgets instances that are dead, once this one's shards do not need them: those of
// this host by proof, the others after a long time, or the index would grow with each crash. It reads all leases,
// so it is for those who look at all of them anyway (design, "Who should own a shard").
func (in *instance) prune(ctx context.Context) {
	if c := in.node.cluster; c != nil && c.sight.away.Load() || in.pruned != 0 && sinceBoot()-in.pruned < pruneEvery {
		return
	}
	in.pruned = sinceBoot()
	instances, err := in.node.client.Instances(ctx)
	if err != nil {
		return
	}
	for _, other := range instances {
		if other.Name == in.name {
			continue
		}
		who, ok := identity.Parse(other.Identity)
		proven := ok && (in.node.process.Gone(who.Process) || identity.SameBoot(other.Name, in.name))
		if forgettable(in.node.missingSince(other), time.Duration(who.TTL)*time.Millisecond, proven) {
			if err := in.node.client.DropLease(ctx, other.Name); err != nil {
				in.trouble("prune", nil, err)
				continue
			}
			in.node.missing(other.Name, true) // nothing is left to be remembered
		}
	}
	in.node.forgetAbsent()
}

// holder finds out about the instance that holds a claim.
func (in *instance) holder(ctx context.Context, owner queue.Owner, known map[string]holderState) holderState {
	if owner.Instance == "" || identity.SameBoot(owner.Instance, in.name) {
		return holderState{}
	}
	if state, ok := known[owner.Instance]; ok {
		return state
	}
	entry, err := in.node.client.Instance(ctx, owner.Instance)
	if err != nil {
		in.trouble("read instance", nil, err)
		known[owner.Instance] = holderState{leased: true} // unknown: wait
		return known[owner.Instance]
	}
	who, ok := identity.Parse(entry.Identity)
	state := holderState{
		leased: entry.Lease != nil, proven: ok && in.node.ended(owner.Instance, who),
		ttl: time.Duration(who.TTL) * time.Millisecond,
	}
	if state.proven && state.leased {
		// Proven dead: its lease need not run out.
		if err := in.node.client.EndLease(ctx, owner.Instance); err != nil {
			in.trouble("end lease", nil, err)
			state.proven = false
		}
	}
	if cluster := in.node.cluster; cluster != nil {
		succeeded, departed := cluster.dead(owner.Instance)
		state.proven = state.proven || succeeded && !state.leased
		state.departed = departed
	}
	state.missingFor, state.missingEver = in.node.missing(owner.Instance, state.leased)
	known[owner.Instance] = state
	return state
}
