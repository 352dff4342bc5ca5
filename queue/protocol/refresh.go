package protocol

import (
	"context"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A program that pushes follows changes of the registry within staleAfter. No message announces a change, so
// pushes read the queue's entry now and then.
const (
	refreshEvery   = 9 * time.Second  // a push reads the entry again if the last read is older, and does not wait for it
	staleAfter     = 10 * time.Second // a push waits for the entry if the last read is older
	maxRefreshWait = time.Second      // how long it waits
)

// refreshEntry reads the queue's entry again if it is old. The read runs in another goroutine. If the entry
// is so old that its rules may not hold any more, as after a long pause, refreshEntry waits for the read, for at
// most maxRefreshWait. It returns no error: if Redis does not answer, the push will say so.
func (q *Queue) refreshEntry(ctx context.Context) {
	now, last := int64(time.Since(q.opened)), q.refreshed.Load()
	age := time.Duration(now - last)
	if age < refreshEvery || !q.refreshed.CompareAndSwap(last, now) {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		ctx, cancel := context.WithTimeout(context.Background(), q.registry.cfg.Timeout)
		defer cancel()
		q.readEntry(ctx) //nolint:errcheck // see above
	}()
	if age < staleAfter {
		return
	}
	patience := time.NewTimer(maxRefreshWait)
	defer patience.Stop()
	select {
	case <-read:
	case <-patience.C:
	case <-ctx.Done():
	}
}

// readEntry reads the queue's entry and its limits set at run time from Redis and applies them. If Redis has
// lost the entry, the queue stays as it was.
func (q *Queue) readEntry(ctx context.Context) error {
	keys := q.registry.db.Keys
	replies, err := q.registry.db.Pipeline(ctx, "read the queue registry",
		redisdb.Cmd{"HGET", keys.Queues(), q.Name}, redisdb.Cmd{"HGET", keys.Rules(), q.Name}, redisdb.Cmd{"TIME"})
	if len(replies) != 3 || replies[0] == nil {
		return err
	}
	if _, failed := replies[0].(error); failed {
		return err
	}
	live, readable := q.registry.parseLiveLimits(q.Name, replies[1], replies[2])
	entry, err := q.registry.parseEntry(q.Name, redisdb.Text(replies[0]))
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	if readable {
		q.registry.setLimits(q.Name, live)
	}
	if err != nil {
		q.setDamage(err)
		return err
	}
	q.setEntry(entry)
	return nil
}

// parseLiveLimits reads the limits set at run time from the replies to HGET and TIME. readable is false if
// the replies are errors or the text cannot be read, for example because the key has another type. The caller then
// keeps the limits that it has.
func (g *Registry) parseLiveLimits(queue string, set, clock any) (live rules.Push, readable bool) {
	now, err := redisdb.Clock(clock)
	if err == nil {
		g.clock.Set(now)
	}
	if _, failed := set.(error); failed || err != nil {
		return live, false
	}
	all, err := rules.Parse(queue, redisdb.Text(set))
	if err != nil {
		return live, false
	}
	values, _ := all.Apply(rules.Rules{}, now) // settings that this release cannot read do not hold here
	return values.Push, true
}

// readLiveLimits reads the limits set at run time of a queue that this process has not opened yet, so that a
// program that pushes only once follows them. If that fails, the limits of the entry hold until a push has read
// them again.
func (g *Registry) readLiveLimits(ctx context.Context, queue string) {
	g.mu.Lock()
	known := g.queues[queue] != nil
	g.mu.Unlock()
	if known {
		return
	}
	replies, _ := g.db.Pipeline(ctx, "read rules", redisdb.Cmd{"HGET", g.db.Keys.Rules(), queue}, redisdb.Cmd{"TIME"})
	if len(replies) != 2 {
		return
	}
	if live, readable := g.parseLiveLimits(queue, replies[0], replies[1]); readable {
		g.SetLimits(queue, live)
	}
}

// updateEntry applies an entry that was just read to the open queue of this name. damage is the error if the
// entry could not be read.
func (g *Registry) updateEntry(name string, entry RegistryEntry, damage error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[name]
	switch {
	case q == nil:
	case damage != nil:
		q.setDamage(damage)
	case entry.Layout < q.layout && q.entry.hasLeft(entry.Layout): // see rememberQueue
		q.expireEntry()
	default:
		q.setEntry(entry)
	}
}

// setDamage makes the queue refuse pushes until its entry can be read again. The caller holds registry.mu.
func (q *Queue) setDamage(damage error) {
	q.damage = damage
	q.applyRules(q.registry.rules[q.Name])
}

// expireEntry makes the next push read the queue's entry first.
func (q *Queue) expireEntry() { q.refreshed.Store(int64(time.Since(q.opened) - staleAfter)) }

// keepEntry records the queue's entry. The caller holds registry.mu, or nobody else has the queue yet.
func (q *Queue) keepEntry(entry RegistryEntry) {
	q.entry = entry
	switch {
	case len(entry.Was) > 0:
		q.was.Store(&entry.Was)
	case q.was.Load() != nil:
		q.was.Store(nil)
	}
}

// setEntry makes the queue's pushes follow an entry. The caller holds registry.mu.
func (q *Queue) setEntry(entry RegistryEntry) {
	if entry.succeeds(q) {
		q.leaveFor(entry)
		return
	}
	was, damaged := q.entry, q.damage != nil
	q.keepEntry(entry)
	q.damage = nil
	if damaged || was.Codec != entry.Codec || was.Push != entry.Push || was.Removed != entry.Removed || was.Shards != entry.Shards || was.Layout != entry.Layout || !slices.Equal(was.Needs, entry.Needs) {
		q.applyRules(q.registry.rules[q.Name])
	}
}
