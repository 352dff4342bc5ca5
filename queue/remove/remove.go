// Package remove answers one question: how is a queue deleted so that no push that comes meanwhile is lost
// without an error?
package remove

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A queue is deleted in steps. Each step may be repeated.
//
//  1. The queue's entry in the registry gets the token of the deletion. From now on no client registers the
//     queue, and nodes do not handle it.
//  2. Each shard gets a mark with that token. From now on it refuses pushes and claims. A shard that an instance
//     owns, or that is not empty, refuses the mark.
//  3. If the entry still has the token, and still no node handles the queue, each shard with the mark deletes all its
//     other keys.
//  4. The entry says that the queue is deleted.
//
// Before the third step the deletion can be given up. First the entry loses the token, then the marks are removed.
// A deletion that was given up deletes nothing any more, however late its requests come, because its marks are
// gone. If a mark stays, because the process died, the first push or claim that it stops removes it: the entry
// without the token says that the deletion of that mark was given up. See
// docs/adr/0011-a-deleted-queue-leaves-marks.md.

// Reasons of a refusal by [Delete].
var (
	ErrHandled  = errors.New("the queue is handled")
	ErrNotEmpty = errors.New("the queue is not empty")
	// ErrChanged means that another deletion, a pause or a registration came between.
	ErrChanged = errors.New("not deleted")
)

// Deletion says how a queue is deleted.
type Deletion struct {
	Force bool // delete all jobs and the morgue as well; otherwise only an empty queue is deleted
	// Handled returns the nodes whose leases say that they handle the queue. It is required.
	Handled func(ctx context.Context) ([]string, error)
}

// Deleted has the contents of a queue when it was deleted.
type Deleted struct {
	Jobs   int // ids that were not done
	Morgue int // payloads in the morgue
	Aside  int // unreadable records that were set aside
	States int // ids with states of handlers
	// Outgoing is the number of follow-ups to other queues that were not delivered.
	Outgoing int
	Before   bool // the queue had been deleted before, and nothing was done
}

// shardsPerStep is the number of shards of a pipeline.
const shardsPerStep = 200

// Delete deletes a queue. It refuses a queue that a node handles (ErrHandled) and, unless forced, a queue with jobs,
// payloads in the morgue or states (ErrNotEmpty). Later pushes fail with lowkiq.ErrUnknownQueue, also by a Queue
// that was opened before. Registering the queue again begins anew. After another error the deletion may be half
// done, and must be repeated.
func Delete(ctx context.Context, c *protocol.Client, name string, d Deletion) (Deleted, error) {
	r, err := New(ctx, c, name, d)
	if err != nil || r.entry.Removed {
		return Deleted{Before: err == nil}, err
	}
	if err := r.checkFree(ctx); err != nil {
		return Deleted{}, r.GiveUp(ctx, err)
	}
	if err := r.Begin(ctx); err != nil {
		return Deleted{}, err
	}
	if err := r.Mark(ctx); err != nil {
		return Deleted{}, r.GiveUp(ctx, err)
	}
	if err := r.Remove(ctx); err != nil {
		return Deleted{}, r.GiveUp(ctx, err)
	}
	return r.found, r.unfinishedError(r.Finish(ctx))
}

// Deletable returns the refusal that [Delete] would return now, and the contents of the queue. It changes
// nothing.
func Deletable(ctx context.Context, c *protocol.Client, name string, d Deletion) (Deleted, error) {
	r, err := New(ctx, c, name, d)
	if err != nil || r.entry.Removed {
		return Deleted{Before: err == nil}, err
	}
	r.ownedError = nil // mostly of a dead instance, whose shards other nodes will release
	return r.found, r.checkFree(ctx)
}

// Removal is a deletion under way. Its steps are exported for tests; [Delete] takes them all.
type Removal struct {
	Deletion
	client     *protocol.Client
	q          *protocol.Queue
	text       string // the entry's text in Redis
	entry      protocol.RegistryEntry
	found      Deleted
	ownedError error // says which instance owns a shard; nil if none does
}

// New begins a deletion by counting the contents of the queue. It changes nothing.
func New(ctx context.Context, c *protocol.Client, name string, d Deletion) (*Removal, error) {
	if err := protocol.CheckName("queue", name); err != nil {
		return nil, fmt.Errorf("%w: %w", lowkiq.ErrUnknownQueue, err)
	}
	r := &Removal{Deletion: d, client: c}
	text, entry, err := c.Registry().Stored(ctx, name)
	if err != nil {
		return nil, err
	}
	r.text, r.entry, r.q = text, entry, c.Registry().Unlisted(name, entry)
	if entry.Removed {
		return r, nil
	}
	if err := entry.Readable(name); err != nil {
		return nil, err
	}
	return r, r.countContents(ctx)
}

// countContents adds up the contents of the shards.
func (r *Removal) countContents(ctx context.Context) error {
	all, err := r.client.Stats(ctx, r.q.All()...)
	if err != nil {
		return fmt.Errorf("queue %q: %w", r.q.Name, err)
	}
	for i, s := range all {
		r.found.Jobs, r.found.Morgue = r.found.Jobs+s.Jobs.Total(), r.found.Morgue+s.Morgue
		r.found.Outgoing += s.Outgoing
		if s.Owner.Instance != "" && r.ownedError == nil {
			r.ownedError = fmt.Errorf("shard %s: %w", r.q.Shard(i), heldByError(s.Owner.Instance))
		}
	}
	for part := range slices.Chunk(r.q.All(), shardsPerStep) {
		cmds := make([]redisdb.Cmd, len(part))
		for i, s := range part {
			cmds[i] = redisdb.Cmd{"HLEN", s.Keys().States}
		}
		states, err := r.client.DB().Pipeline(ctx, "count states", cmds...)
		if err != nil {
			return fmt.Errorf("queue %q: %w", r.q.Name, err)
		}
		for _, n := range states {
			r.found.States += int(redisdb.Int(n))
		}
	}
	return nil
}

func heldByError(instance any) error {
	return fmt.Errorf("%w: instance %v owns the shard; if it has died, other nodes release its shards within a few ttl of the lease; delete the queue then",
		ErrHandled, instance)
}

// checkFree returns an error if the queue must not be deleted. Each shard checks the same again when it is marked.
func (r *Removal) checkFree(ctx context.Context) error {
	if r.entry.Reshard != nil || r.entry.Copying() {
		return fmt.Errorf("queue %q: %w: it is being resharded; see lowkiq-node queues reshard %s, and delete the queue when the reshard is done or cancelled",
			r.q.Name, ErrHandled, r.q.Name)
	}
	if err := cmp.Or(r.checkHandled(ctx), r.ownedError); err != nil {
		return err
	}
	if !r.Force && r.found.Jobs+r.found.Morgue+r.found.States+r.found.Outgoing > 0 {
		return r.notEmptyError(r.found)
	}
	return nil
}

func (r *Removal) checkHandled(ctx context.Context) error {
	nodes, err := r.Handled(ctx)
	if err != nil || len(nodes) == 0 {
		return err
	}
	if protocol.CheckNotReserved(r.q.Name) != nil {
		return fmt.Errorf("queue %q: %w by every node, because it belongs to lowkiq; pause it, or leave it alone", r.q.Name, ErrHandled)
	}
	slices.Sort(nodes)
	return fmt.Errorf("queue %q: %w by %s; remove it from their configurations first, then delete it", r.q.Name, ErrHandled, strings.Join(slices.Compact(nodes), ", "))
}

func (r *Removal) notEmptyError(has Deleted) error {
	text := fmt.Sprintf("%d jobs and %d payloads in the morgue", has.Jobs, has.Morgue)
	if has.Aside > 0 {
		text += fmt.Sprintf(", %d records set aside", has.Aside)
	}
	if has.States > 0 {
		text += fmt.Sprintf(", states of %d ids", has.States)
	}
	if has.Outgoing > 0 {
		text += fmt.Sprintf(", %d follow-ups that are not delivered", has.Outgoing)
	}
	return fmt.Errorf("queue %q: %w: %s are in it; let a node handle it, or delete it with all of them by force", r.q.Name, ErrNotEmpty, text)
}

// Begin puts a token into the entry. If the entry has a token, it goes on with that deletion.
func (r *Removal) Begin(ctx context.Context) error {
	if r.entry.Removing != "" {
		return nil
	}
	next := r.entry
	next.Removing = rand.Text()
	return r.swapEntry(ctx, next)
}

// swapEntry replaces the entry. If Redis has the new entry already, this call has written it before and the answer
// was lost, because no two deletions have the same token.
func (r *Removal) swapEntry(ctx context.Context, next protocol.RegistryEntry) error {
	fresh, swapped, err := r.client.Registry().Swap(ctx, r.q.Name, r.text, next)
	if err != nil {
		return err
	}
	if !swapped {
		text, _, err := r.client.Registry().Stored(ctx, r.q.Name)
		if err != nil {
			return err
		}
		if text != fresh {
			return fmt.Errorf("queue %q: %w: its entry has changed meanwhile; try again", r.q.Name, ErrChanged)
		}
	}
	r.text, r.entry = fresh, next
	return nil
}

// mark returns the mark of the deletion; see lua/freeze.lua.
func (r *Removal) mark() string { return protocol.RemovedMark(r.entry.Removing) }

// freeze runs a step of lua/freeze.lua on all shards, and calls see with their answers.
func (r *Removal) freeze(ctx context.Context, step, mark, how string, see func(*protocol.Shard, []any) error) error {
	return protocol.RunEach(ctx, r.client.DB().Scripts.Freeze, r.q.All(), func(*protocol.Shard) []any { return []any{step, mark, how, ""} }, see)
}

// Mark marks all shards and counts their contents. Then it checks that the entry still has the token and that no node
// handles the queue. After Mark the contents cannot change any more.
func (r *Removal) Mark(ctx context.Context) error {
	want := "empty"
	if r.Force {
		want = "unowned"
	}
	r.found = Deleted{} // counted again, each shard at the instant of its mark
	var see func(s *protocol.Shard, answer []any) error
	see = func(s *protocol.Shard, answer []any) error {
		switch answer[0] {
		case "HELD":
			return heldByError(answer[1])
		case "OTHER": // of a deletion that was given up
			reply, err := s.Refreeze(ctx, redisdb.Text(answer[1]), r.mark(), want, "")
			if errors.Is(err, protocol.ErrMarkHolds) {
				err = fmt.Errorf("%w: %w", ErrChanged, err)
			}
			if err != nil {
				return err
			}
			return see(s, reply)
		}
		frozen, err := protocol.ReadFrozen(answer)
		if err != nil {
			return err
		}
		has := Deleted{Jobs: frozen.IDs, Morgue: frozen.Buried, Aside: frozen.Aside, States: frozen.States, Outgoing: frozen.Outgoing}
		if answer[0] == "FILLED" {
			return r.notEmptyError(has)
		}
		r.found.Jobs, r.found.Morgue = r.found.Jobs+has.Jobs, r.found.Morgue+has.Morgue
		r.found.Aside, r.found.States = r.found.Aside+has.Aside, r.found.States+has.States
		r.found.Outgoing += has.Outgoing
		return nil
	}
	if err := r.freeze(ctx, "freeze", r.mark(), want, see); err != nil {
		return err
	}
	// A node may have registered the queue before the entry had the token, and got its lease since.
	text, entry, err := r.client.Registry().Stored(ctx, r.q.Name)
	if err != nil {
		return err
	}
	if entry.Removing != r.entry.Removing {
		return fmt.Errorf("queue %q: %w: another deletion of the queue was given up meanwhile", r.q.Name, ErrChanged)
	}
	r.text, r.entry = text, entry
	return r.checkHandled(ctx)
}

// GiveUp takes back the steps of the deletion if cause is a refusal, so that the queue is as before. After another
// error the deletion can go on later, and GiveUp leaves everything as it is. It returns an error with cause.
func (r *Removal) GiveUp(ctx context.Context, cause error) error {
	mark, whole := r.mark(), r.entry
	if whole.Removing == "" {
		return cause
	}
	if !errors.Is(cause, ErrHandled) && !errors.Is(cause, ErrNotEmpty) && !errors.Is(cause, ErrChanged) {
		return r.unfinishedError(cause)
	}
	whole.Removing = ""
	if err := r.swapEntry(ctx, whole); err != nil && !errors.Is(err, ErrChanged) {
		return r.unfinishedError(errors.Join(cause, err))
	}
	if err := r.freeze(ctx, "thaw", mark, "", func(*protocol.Shard, []any) error { return nil }); err != nil {
		return errors.Join(cause, err) // the first push or claim that a mark stops removes it
	}
	return cause
}

// Remove deletes the contents of all shards, which must have the mark. Then it deletes the journals and the numbers of
// sources in the former layouts of the queue. Their marks stay. At last it deletes the closed shards that a cancelled reshard
// has left behind.
func (r *Removal) Remove(ctx context.Context) error {
	err := r.freeze(ctx, "drop", r.mark(), "0", func(_ *protocol.Shard, answer []any) error {
		if answer[0] == "STALE" {
			return fmt.Errorf("%w: another deletion of the queue was given up meanwhile", ErrChanged)
		}
		return nil
	})
	next := r.entry.Layout
	for _, f := range r.entry.Was {
		if err != nil {
			return err
		}
		shards := r.client.Registry().InLayout(r.q.Name, r.entry, f.Shards, f.Layout).All()
		args := []any{"drop", protocol.MovedMark(next), "0", ""}
		err = protocol.RunEach(ctx, r.client.DB().Scripts.Freeze, shards, func(*protocol.Shard) []any { return args }, func(*protocol.Shard, []any) error { return nil })
		next = f.Layout
	}
	if tried := r.client.Registry().InTried(r.q.Name, r.entry); tried != nil && err == nil {
		err = protocol.RunEach(ctx, r.client.DB().Scripts.Take, tried.All(), func(*protocol.Shard) []any { return []any{"forget"} }, func(*protocol.Shard, []any) error { return nil })
	}
	return err
}

// Finish deletes the rules and the figures of the queue, which a queue registered anew must not inherit. Then it
// marks the entry as deleted.
func (r *Removal) Finish(ctx context.Context) error {
	if err := rules.In(r.client.DB()).Forget(ctx, r.q.Name); err != nil {
		return err
	}
	if err := r.forgetDays(ctx); err != nil {
		return err
	}
	return r.swapEntry(ctx, protocol.RegistryEntry{Shards: r.entry.Shards, Layout: r.entry.HighestLayout(), Removed: true})
}

// forgetDays deletes the figures of the queue's days.
func (r *Removal) forgetDays(ctx context.Context) error {
	db := r.client.DB()
	now, err := db.Time(ctx)
	if err != nil {
		return err
	}
	unlink := []any{"UNLINK"}
	for _, key := range db.Keys.Days(r.q.Name, now) {
		unlink = append(unlink, key)
	}
	_, err = db.Do(ctx, "remove the figures of days", unlink...)
	return err
}

// unfinishedError adds to err that the deletion must be repeated, unless err is nil or ErrChanged.
func (r *Removal) unfinishedError(err error) error {
	if err == nil || errors.Is(err, ErrChanged) {
		return err
	}
	return fmt.Errorf("queue %q: its deletion is not finished; repeat it: %w", r.q.Name, err)
}
