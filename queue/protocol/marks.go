package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/store/unknownfields"
)

// A mark makes the scripts of a shard refuse pushes and claims. It is field last of the shard's counters:
//
//	removed <token> <last>  the queue is deleted, and keeps its entry in the registry; see package queue/remove
//	moved <layout> <last>   the shard is frozen, because its jobs move to this layout; see package queue/reshard
//
// last is the highest default score that the shard has given. The entry of the queue says whether the mark holds. A
// mark of a deletion or a reshard that was given up is taken away by the push or claim that it stops.

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
	reply, err := runScript(ctx, g.db, g.db.Scripts.Swap, []string{g.db.Keys.Queues()}, name, old, text)
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

// clearMark handles a refusal because of a deletion mark. If the registry says that the deletion was given up,
// clearMark removes the mark and returns nil, and the caller may repeat the refused step. Otherwise it
// returns an error. It returns other refusals as they are.
func (s *Shard) clearMark(ctx context.Context, refusal error) error {
	var mark *markError
	if !errors.As(refusal, &mark) {
		return refusal
	}
	_, entry, err := s.registry.Stored(ctx, s.Queue)
	if err != nil {
		return err
	}
	if keys := s.registry.db.Keys.Shard(s.Queue, entry.Layout, s.Index); entry.isDeleted() || keys.Count != s.keys.Count {
		return fmt.Errorf("%w %q: %w", lowkiq.ErrUnknownQueue, s.Queue, mark)
	}
	_, err = s.Run(ctx, s.registry.db.Scripts.Freeze, "thaw", RemovedMark(mark.token))
	return err
}

// reviveEntry registers a queue anew if its entry says that the queue was deleted. The queue gets a new layout,
// so that its keys are not those of the deleted queue. first is the new entry, except for the layout. text is
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
		first.Layout = entry.HighestLayout() + 1
		fresh, err := json.Marshal(first)
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
