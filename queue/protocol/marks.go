package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/store/unknownfields"
)

// A mark makes the scripts of a shard refuse pushes and claims. It is field last of the shard's counters:
//
//	removed <token> <last>  the queue is deleted, and keeps its entry in the registry; see package queue/remove
//	moved <layout> <last>   the shard is frozen, because its jobs move to this layout; see package queue/reshard
//
// last is the highest default score that the shard has given. The entry of the queue says whether the mark holds. A push
// or a claim that meets the mark of a deletion or a reshard that was given up removes the mark and goes on. So whoever
// gives an attempt up needs to write only the entry, and may die before it has cleared the shards.

// Stored reads an entry and its text in Redis, also if the queue is deleted. The registry then forgets the open
// queue.
func (g *Registry) Stored(ctx context.Context, name string) (text string, entry RegistryEntry, err error) {
	reply, err := g.db.Do(ctx, "read the queue registry", "HGET", g.db.Keys.Queues(), name)
	if err != nil {
		return "", RegistryEntry{}, err
	}
	if reply == nil {
		entries, err := g.Entries(ctx)
		if err == nil {
			err = g.unknownQueue(name, entries)
		}
		return "", RegistryEntry{}, err
	}
	text = redisdb.Text(reply)
	if entry, err = g.parseEntry(name, text); err == nil {
		g.forgetDeleted(name, entry)
	}
	return text, entry, err
}

// Swap replaces an entry in Redis if its text is still old, and reports whether it has replaced it. Fields of a
// later release stay. It refuses a new need that a live process does not read. fresh is the new text.
// If Redis has replicas, Swap waits a moment for one of them. Otherwise a failover could forget the flip of a reshard, and a
// person could then cancel a reshard whose new shards have pushes.
func (g *Registry) Swap(ctx context.Context, name, old string, next RegistryEntry) (fresh string, swapped bool, err error) {
	was, err := g.parseEntry(name, old)
	if err == nil {
		err = g.checkNeeds(ctx, name, was.Needs, next.Needs)
	}
	if err != nil {
		return "", false, err
	}
	text, err := unknownfields.Keep(next, []byte(old))
	if err != nil {
		return "", false, fmt.Errorf("queue %q: %w", name, err)
	}
	reply, _, err := g.db.RunReplicated(ctx, g.db.Scripts.Swap, []string{g.db.Keys.Queues()}, name, old, text)
	if swapped = reply == int64(1); swapped {
		g.forgetDeleted(name, next)
	}
	return string(text), swapped, err
}

// Unlisted returns a queue for an entry without remembering it in the registry.
func (g *Registry) Unlisted(name string, entry RegistryEntry) *Queue { return g.newQueue(name, entry) }

// markError is the refusal of a shard that has the mark of a deletion. It wraps lowkiq.ErrUnknownQueue.
type markError struct{ token string }

func (e *markError) Error() string { return "it was deleted; register it anew to push to it" }
func (e *markError) Unwrap() error { return lowkiq.ErrUnknownQueue }

// movedError is the refusal of a shard that is frozen, because its jobs move to a layout. It wraps ErrMoving.
type movedError struct{ layout int }

func (e *movedError) Error() string { return fmt.Sprintf("%v, layout %d", ErrMoving, e.layout) }
func (e *movedError) Unwrap() error { return ErrMoving }

// readMark reads the refusal "REMOVED mark".
func readMark(refusal string) error {
	text := strings.TrimPrefix(refusal, "REMOVED ")
	if words := strings.Fields(text); len(words) >= 3 {
		switch layout, err := strconv.Atoi(words[1]); {
		case words[0] == "removed":
			return &markError{words[1]}
		case words[0] == "moved" && err == nil:
			return &movedError{layout}
		}
	}
	return fmt.Errorf("the shard's last score cannot be read: field last of its counters is %q and must be a number", text)
}

// markWord returns the beginning of the mark that refused an operation, "" if no mark did.
func markWord(refusal error) string {
	var removed *markError
	var moved *movedError
	switch {
	case errors.As(refusal, &removed):
		return RemovedMark(removed.token)
	case errors.As(refusal, &moved):
		return MovedMark(moved.layout)
	}
	return ""
}

// ruling is the meaning of a mark in a shard, by the entry of the queue.
type ruling int

const (
	ruledDeleted  ruling = iota // the queue of the shard is deleted
	ruledObsolete               // the deletion or the reshard of the mark was given up, and the mark must go
	ruledWaits                  // the reshard of the mark has not flipped
	ruledLeft                   // the queue has left the layout of the shard
)

// rule says what a mark in a shard of a layout means. The entry must have been read after the mark was seen, so it is not
// older than the mark. An attempt sets its marks after it is in the entry, so an attempt that is missing in the entry was
// given up. No later attempt has its number, so its mark is obsolete for good.
//
// A shard of another layout than the entry's is not opened again, whatever its mark says. If the entry names the layout as
// a former layout, its jobs have moved. Otherwise it belongs to a queue that was deleted.
func (e RegistryEntry) rule(mark error, layout int) ruling {
	var moved *movedError
	isMoved := errors.As(mark, &moved)
	switch {
	case e.Removed || e.Removing != "" && !isMoved:
		return ruledDeleted
	case e.Layout != layout && isMoved && e.hasLeft(layout):
		return ruledLeft
	case e.Layout != layout:
		return ruledDeleted
	case isMoved && e.Reshard != nil && e.Reshard.Layout == moved.layout:
		return ruledWaits
	}
	return ruledObsolete
}

// settleMark handles the refusal of an operation because of a mark. It returns nil if the mark was obsolete and is gone.
// The caller may then repeat the operation. Before the flip of a reshard settleMark waits for the flip, for at most
// patience. The error is errLeft if the queue has left the layout of the shard, and a [movingError] if it has not flipped in
// time. settleMark returns other refusals unchanged.
//
// It thaws the shard by the mark that it has seen. If another process has removed this mark and an attempt has set a new
// mark meanwhile, the thaw does nothing, and the repeated operation is refused by the new mark.
func (s *Shard) settleMark(ctx context.Context, refusal error, patience time.Duration) error {
	mark := markWord(refusal)
	if mark == "" {
		return refusal
	}
	var waiting error
	for end := time.Now().Add(patience); ; {
		_, entry, err := s.registry.Stored(ctx, s.Queue)
		if err != nil && ctx.Err() != nil && waiting != nil {
			return waiting
		}
		if err != nil {
			return err
		}
		switch entry.rule(refusal, s.layout) {
		case ruledDeleted:
			return fmt.Errorf("%w %q: %w", lowkiq.ErrUnknownQueue, s.Queue, &markError{})
		case ruledLeft:
			return errLeft
		case ruledObsolete:
			_, err = s.Run(ctx, s.registry.db.Scripts.Freeze, "thaw", mark)
			return err
		}
		waiting = &movingError{s.Shard, entry.Reshard.Shards}
		if time.Now().After(end) || sleep.For(ctx, flipPause) != nil {
			return waiting
		}
	}
}

// flipPause is the time between two reads of an entry that has not flipped.
const flipPause = 20 * time.Millisecond

// errLeft means that the queue has left the layout of a shard. The jobs belong to the next layout; see [Queue.Latest].
var errLeft = fmt.Errorf("%w, and the shard is left", ErrMoving)

// movingError is the refusal of a shard whose queue is being resharded and has not flipped in time. It wraps ErrMoving. It
// is ErrUnsent as well, because nothing is stored.
type movingError struct {
	shard lowkiq.Shard
	to    int // shards
}

func (e *movingError) Error() string {
	return fmt.Sprintf("shard %s: %v, %d, and takes none meanwhile; if that lasts, \"lowkiq-node queues reshard %s\" goes on with it", e.shard, ErrMoving, e.to, e.shard.Queue)
}
func (e *movingError) Unwrap() error        { return ErrMoving }
func (e *movingError) Is(target error) bool { return target == ErrUnsent }

// reviveEntry registers a queue anew if its entry says that the queue was deleted. The queue gets a new layout,
// so that its keys are not those of the deleted queue. The other values of the new entry are those of first. text is
// the entry in Redis. reviveEntry returns the text of the entry that holds now.
func (g *Registry) reviveEntry(ctx context.Context, name string, first RegistryEntry, text string) (string, error) {
	for {
		entry, err := g.parseEntry(name, text)
		switch {
		case err != nil:
			return "", err
		case entry.Removing != "":
			return "", fmt.Errorf("%w %q: it is being deleted, or a deletion was broken off; repeat lowkiq-node queues delete %s", lowkiq.ErrUnknownQueue, name, name)
		case !entry.Removed:
			return text, nil
		}
		fresh, err := json.Marshal(RegistryEntry{Shards: first.Shards, Layout: entry.HighestLayout() + 1, Codec: first.Codec, Push: first.Push})
		if err != nil {
			return "", fmt.Errorf("queue %q: %w", name, err)
		}
		reply, err := runScript(ctx, g.db, g.db.Scripts.Swap, []string{g.db.Keys.Queues()}, name, text, fresh)
		if err != nil || reply == int64(1) {
			return string(fresh), err
		}
		if text, _, err = g.Stored(ctx, name); err != nil {
			return "", err
		}
	}
}
