package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/extra"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A queue is deleted in steps, each of which may be repeated, and leaves what the next needs:
//
//  1. Its entry in the registry gets the deletion's token: no client registers it, nodes pass over it.
//  2. Each shard gets a mark with that token: it refuses pushes and claims from now on. A shard that an instance owns,
//     or that is not empty, refuses the mark.
//  3. If the entry still has the token, and still no node handles the queue, each shard with the mark loses all else.
//  4. The entry says that the queue is deleted.
//
// Until the third step the deletion can be given up: the entry is as it was, then the marks go. A
// deletion that was given up removes nothing any more, however late its requests come, as its marks
// are gone, and a mark that it leaves is taken away by whom it stops: an entry that is whole says
// that no deletion of an older token goes on. See docs/adr/0011-a-deleted-queue-leaves-marks.md.

// What [Registry.Delete] refuses.
var (
	ErrHandled  = errors.New("the queue is handled")
	ErrNotEmpty = errors.New("the queue is not empty")
	// ErrChanged: another deletion, a pause or a registration came between.
	ErrChanged = errors.New("not deleted")
)

// Deletion says how a queue is deleted.
type Deletion struct {
	Force bool // with all jobs and the morgue; otherwise only an empty queue is deleted
	// Handled names the nodes whose leases say that they handle the queue. Required.
	Handled func(ctx context.Context) ([]string, error)
}

// Deleted is what a queue held when it was deleted.
type Deleted struct {
	Jobs   int  // ids that were not done
	Morgue int  // payloads in the morgue
	Aside  int  // records that could not be read, set aside
	States int  // ids whose states handlers kept
	Before bool // it was deleted before: nothing was done
}

// removeChunk is how many shards one pipeline works on.
const removeChunk = 200

// Delete deletes a queue that no node handles (ErrHandled) and that is empty (ErrNotEmpty), also of
// states, or, if forced, with all that it holds. Who pushes to it later is refused with lowkiq.ErrUnknownQueue,
// also with a Queue from before; to register it again is to begin anew. After another error it may
// be half done: repeat it.
func (g *Registry) Delete(ctx context.Context, name string, d Deletion) (Deleted, error) {
	r, err := g.removal(ctx, name, d)
	if err != nil || r.entry.Removed {
		return Deleted{Before: err == nil}, err
	}
	if err := r.checkFree(ctx); err != nil {
		return Deleted{}, r.giveUp(ctx, err)
	}
	if err := r.begin(ctx); err != nil {
		return Deleted{}, err
	}
	if err := r.mark(ctx); err != nil {
		return Deleted{}, r.giveUp(ctx, err)
	}
	if err := r.remove(ctx); err != nil {
		return Deleted{}, r.giveUp(ctx, err)
	}
	return r.found, r.broken(r.finish(ctx))
}

// Deletable says what [Registry.Delete] would refuse now, and what the queue holds. It changes
// nothing.
func (g *Registry) Deletable(ctx context.Context, name string, d Deletion) (Deleted, error) {
	r, err := g.removal(ctx, name, d)
	if err != nil || r.entry.Removed {
		return Deleted{Before: err == nil}, err
	}
	r.owned = nil // a dead instance, most often, that will be relieved
	return r.found, r.checkFree(ctx)
}

// removal is a deletion under way.
type removal struct {
	Deletion
	registry *Registry
	q        *Queue
	text     string // the entry, as it is in Redis
	entry    Entry
	found    Deleted
	owned    error // an instance owns a shard; nil if none does
}

func (g *Registry) removal(ctx context.Context, name string, d Deletion) (*removal, error) {
	if err := CheckName("queue", name); err != nil {
		return nil, fmt.Errorf("%w: %w", lowkiq.ErrUnknownQueue, err)
	}
	r := &removal{Deletion: d, registry: g}
	text, entry, err := g.entry(ctx, name)
	if err != nil {
		return nil, err
	}
	r.text, r.entry, r.q = text, entry, g.newQueue(name, entry)
	if entry.Removed {
		return r, nil
	}
	if err := entry.Readable(name); err != nil {
		return nil, err
	}
	return r, r.count(ctx)
}

// entry reads one entry, whatever it says.
func (g *Registry) entry(ctx context.Context, name string) (string, Entry, error) {
	reply, err := g.db.Do(ctx, "read the queue registry", "HGET", g.db.Keys.Queues(), name)
	if err != nil {
		return "", Entry{}, err
	}
	if reply == nil {
		entries, err := g.Entries(ctx)
		if err == nil {
			err = unknown(name, entries)
		}
		return "", Entry{}, err
	}
	text := redisdb.Text(reply)
	entry, err := g.parse(name, text)
	return text, entry, err
}

// count adds up what the shards hold.
func (r *removal) count(ctx context.Context) error {
	all, err := readStats(ctx, r.registry.db, r.q.shards)
	if err != nil {
		return fmt.Errorf("queue %q: %w", r.q.Name, err)
	}
	for i, s := range all {
		r.found.Jobs, r.found.Morgue = r.found.Jobs+s.Jobs.Total(), r.found.Morgue+s.Morgue
		if s.Owner.Instance != "" && r.owned == nil {
			r.owned = fmt.Errorf("shard %s: %w", r.q.shards[i], heldBy(s.Owner.Instance))
		}
	}
	for part := range slices.Chunk(r.q.shards, removeChunk) {
		cmds := make([]redisdb.Cmd, len(part))
		for i, s := range part {
			cmds[i] = redisdb.Cmd{"HLEN", s.keys.States}
		}
		states, err := r.registry.db.Pipeline(ctx, "count states", cmds...)
		if err != nil {
			return fmt.Errorf("queue %q: %w", r.q.Name, err)
		}
		for _, n := range states {
			r.found.States += int(redisdb.Int(n))
		}
	}
	return nil
}

func heldBy(instance any) error {
	return fmt.Errorf("%w: instance %v owns the shard; if it has died, the other nodes give its shards back within a few ttl of the lease: delete it then",
		ErrHandled, instance)
}

// checkFree refuses what must not, or is not meant to be deleted. The shards look again, each at
// itself.
func (r *removal) checkFree(ctx context.Context) error {
	if err := cmp.Or(r.checkHandled(ctx), r.owned); err != nil {
		return err
	}
	if !r.Force && r.found.Jobs+r.found.Morgue+r.found.States > 0 {
		return r.notEmpty(r.found)
	}
	return nil
}

func (r *removal) checkHandled(ctx context.Context) error {
	nodes, err := r.Handled(ctx)
	if err != nil || len(nodes) == 0 {
		return err
	}
	slices.Sort(nodes)
	return fmt.Errorf("queue %q: %w by %s: take it out of their configurations first, then delete it", r.q.Name, ErrHandled, strings.Join(slices.Compact(nodes), ", "))
}

func (r *removal) notEmpty(has Deleted) error {
	text := fmt.Sprintf("%d jobs and %d payloads in the morgue", has.Jobs, has.Morgue)
	if has.Aside > 0 {
		text += fmt.Sprintf(", %d records set aside", has.Aside)
	}
	if has.States > 0 {
		text += fmt.Sprintf(", states of %d ids", has.States)
	}
	return fmt.Errorf("queue %q: %w: %s are in it; let a node handle it, or delete it with all of them by force", r.q.Name, ErrNotEmpty, text)
}

// begin puts a token into the entry, or goes on with one that is there.
func (r *removal) begin(ctx context.Context) error {
	if r.entry.Removing != "" {
		return nil
	}
	next := r.entry
	next.Removing = rand.Text()
	return r.swap(ctx, next)
}

// swap replaces the entry. One that is the new one already was written by this call, repeated
// because its answer was lost: no two deletions have the same token.
func (r *removal) swap(ctx context.Context, next Entry) error {
	fresh, err := extra.Keep(next, []byte(r.text))
	if err != nil {
		return fmt.Errorf("queue %q: %w", r.q.Name, err)
	}
	reply, err := run(ctx, r.registry.db, r.registry.db.Scripts.Swap, []string{r.registry.db.Keys.Queues()}, r.q.Name, r.text, fresh)
	if err != nil {
		return err
	}
	if reply != int64(1) {
		text, _, err := r.registry.entry(ctx, r.q.Name)
		if err != nil {
			return err
		}
		if text != string(fresh) {
			return fmt.Errorf("queue %q: %w: its entry has changed meanwhile; try again", r.q.Name, ErrChanged)
		}
	}
	r.text, r.entry = string(fresh), next
	r.registry.forget(r.q.Name, next)
	return nil
}

// each runs a step on all shards, and hands over the answers.
func (r *removal) each(ctx context.Context, step, token, force string, see func(*Shard, []any) error) error {
	for part := range slices.Chunk(r.q.shards, removeChunk) {
		calls := make([]*redisdb.Call, len(part))
		for i, s := range part {
			calls[i] = &redisdb.Call{Script: r.registry.db.Scripts.Remove, Keys: s.keys.For(r.registry.db.Scripts.Remove), Args: []any{step, token, force}}
		}
		r.registry.db.RunAll(ctx, calls)
		for i, call := range calls {
			answer, _ := call.Reply.([]any)
			if call.Err == nil && len(answer) == 0 {
				call.Err = fmt.Errorf("remove_shard answered %v", call.Reply)
			}
			if call.Err == nil {
				call.Err = see(part[i], answer)
			}
			if call.Err != nil {
				return fmt.Errorf("shard %s: %w", part[i], call.Err)
			}
		}
	}
	return nil
}

// mark marks all shards, and makes sure that they may be removed.
func (r *removal) mark(ctx context.Context) error {
	force := ""
	if r.Force {
		force = "1"
	}
	r.found = Deleted{} // counted again, each shard at the instant of its mark
	err := r.each(ctx, "mark", r.entry.Removing, force, func(_ *Shard, answer []any) error {
		if answer[0] == "HELD" && len(answer) == 2 {
			return heldBy(answer[1])
		}
		n := func(i int) int { v, _ := answer[i].(int64); return int(v) }
		if len(answer) < 5 {
			return fmt.Errorf("remove_shard answered %v", answer)
		}
		if answer[0] == "FILLED" {
			return r.notEmpty(Deleted{Jobs: n(1), Morgue: n(2), Aside: n(3), States: n(4)})
		}
		r.found.Jobs, r.found.Morgue = r.found.Jobs+n(1), r.found.Morgue+n(2)
		r.found.Aside, r.found.States = r.found.Aside+n(3), r.found.States+n(4)
		return nil
	})
	if err != nil {
		return err
	}
	// A node that registered the queue before it had the token may have got its lease since.
	text, entry, err := r.registry.entry(ctx, r.q.Name)
	if err != nil {
		return err
	}
	if entry.Removing != r.entry.Removing {
		return fmt.Errorf("queue %q: %w: another deletion of it was given up meanwhile", r.q.Name, ErrChanged)
	}
	r.text, r.entry = text, entry
	return r.checkHandled(ctx)
}

// giveUp makes the queue what it was, if the error is a refusal.
func (r *removal) giveUp(ctx context.Context, cause error) error {
	token, whole := r.entry.Removing, r.entry
	if token == "" {
		return cause
	}
	if !errors.Is(cause, ErrHandled) && !errors.Is(cause, ErrNotEmpty) && !errors.Is(cause, ErrChanged) {
		return r.broken(cause)
	}
	whole.Removing = ""
	if err := r.swap(ctx, whole); err != nil && !errors.Is(err, ErrChanged) {
		return r.broken(errors.Join(cause, err))
	}
	if err := r.each(ctx, "restore", token, "", func(*Shard, []any) error { return nil }); err != nil {
		return errors.Join(cause, err) // whom a mark stops takes it away
	}
	return cause
}

// remove empties all shards, which have the mark.
func (r *removal) remove(ctx context.Context) error {
	return r.each(ctx, "remove", r.entry.Removing, "", func(_ *Shard, answer []any) error {
		if answer[0] == "STALE" {
			return fmt.Errorf("%w: another deletion of it was given up meanwhile", ErrChanged)
		}
		return nil
	})
}

func (r *removal) finish(ctx context.Context) error {
	if err := rules.In(r.registry.db).Forget(ctx, r.q.Name); err != nil { // they are not those of a queue registered anew
		return err
	}
	if err := r.forgetDays(ctx); err != nil {
		return err
	}
	return r.swap(ctx, Entry{Shards: r.entry.Shards, Layout: r.entry.Layout, Removed: true})
}

// forgetDays removes the figures of the queue's days.
func (r *removal) forgetDays(ctx context.Context) error {
	db := r.registry.db
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

// broken says how to go on.
func (r *removal) broken(err error) error {
	if err == nil || errors.Is(err, ErrChanged) {
		return err
	}
	return fmt.Errorf("queue %q: its deletion is not finished, repeat it: %w", r.q.Name, err)
}

// markError is the refusal of a shard with a mark: its queue is deleted.
type markError struct{ token string }

func (e *markError) Error() string { return "it was deleted; who pushes to it must register it anew" }
func (e *markError) Unwrap() error { return lowkiq.ErrUnknownQueue }

// removedError reads "REMOVED removed token last".
func removedError(text string) error {
	_, mark, ok := strings.Cut(text, "removed ")
	if !ok {
		return fmt.Errorf("the shard's last score cannot be read: field last of its counters says %q, want a number", strings.TrimPrefix(text, "REMOVED "))
	}
	token, _, _ := strings.Cut(mark, " ")
	return &markError{token}
}

// removed asks the registry about a mark. It takes away one that a deletion has left that was given
// up: then what was refused may be repeated. Otherwise it says why not.
func (s *Shard) removed(ctx context.Context, refusal error) error {
	var mark *markError
	if !errors.As(refusal, &mark) {
		return refusal
	}
	_, entry, err := s.registry.entry(ctx, s.Queue)
	if err != nil {
		return err
	}
	s.registry.forget(s.Queue, entry)
	if keys := s.registry.db.Keys.Shard(s.Queue, entry.Layout, s.Index); entry.gone() || keys.Count != s.keys.Count {
		return fmt.Errorf("%w %q: %w", lowkiq.ErrUnknownQueue, s.Queue, mark)
	}
	_, err = s.Run(ctx, s.registry.db.Scripts.Remove, "restore", mark.token, "")
	return err
}

// revive registers a queue anew if its entry says that it was deleted, in a layout of its own, and
// returns the entry that counts. first is the entry that it gets, but for the layout.
func (g *Registry) revive(ctx context.Context, name string, first Entry, text string) (string, error) {
	for {
		entry, err := g.parse(name, text)
		switch {
		case err != nil:
			return "", err
		case entry.Removing != "":
			return "", fmt.Errorf("%w %q: it is being deleted, or that was broken off: repeat lowkiq-node queues delete %s", lowkiq.ErrUnknownQueue, name, name)
		case !entry.Removed:
			return text, nil
		}
		first.Layout = entry.Layout + 1
		fresh, err := json.Marshal(first)
		if err != nil {
			return "", fmt.Errorf("queue %q: %w", name, err)
		}
		reply, err := run(ctx, g.db, g.db.Scripts.Swap, []string{g.db.Keys.Queues()}, name, text, fresh)
		if err != nil || reply == int64(1) {
			return string(fresh), err
		}
		if text, _, err = g.entry(ctx, name); err != nil {
			return "", err
		}
	}
}
