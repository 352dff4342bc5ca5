package protocol

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// A mark takes a shard out of use, for the deletion of its queue (package queue/remove) or for a reshard (package
// queue/reshard). lua/freeze.lua sets and removes marks.

// RemovedMark returns the mark of a deletion.
func RemovedMark(token string) string { return "removed " + token }

// MovedMark returns the mark of a reshard. layout is the number of the new layout.
func MovedMark(layout int) string { return "moved " + strconv.Itoa(layout) }

// Frozen describes a frozen shard.
type Frozen struct {
	Last              string // the last score (us) that a push got, "0" if none did
	At                int64  // when it was frozen, in us of Redis's clock
	Oldest            string // since when its longest waiting job waits (us), "" if none does
	Fence             int64  // the last fence of its claims, 0 if there was none
	IDs               int    // ids that are not done
	BuriedIDs, Buried int    // ids and payloads in the morgue
	Aside, States     int    // records set aside; ids with states
	Outgoing          int    // follow-ups that wait to be delivered
	Processed, Failed int64  // see Stats
	DeadTo            string // the queue that gets its dead payloads by the rule then, "" for none
}

// ReadFrozen reads the answer OK or FILLED of lua/freeze.lua.
func ReadFrozen(answer []any) (f Frozen, err error) {
	if len(answer) != 12 || answer[0] != "OK" && answer[0] != "FILLED" {
		return f, fmt.Errorf("freeze answered %v", answer)
	}
	if mark := strings.Split(redisdb.Text(answer[1]), " "); len(mark) == 5 {
		f.Last, f.Oldest = mark[2], mark[4]
		if f.At, err = strconv.ParseInt(mark[3], 10, 64); err != nil {
			return f, fmt.Errorf("the mark of the shard is %q: %w", answer[1], err)
		}
	}
	n := func(i int) int { return int(redisdb.Int(answer[i])) }
	f.Fence, f.IDs, f.BuriedIDs, f.Buried, f.Aside, f.States = redisdb.Int(answer[2]), n(3), n(4), n(5), n(6), n(7)
	f.Processed, f.Failed, f.Outgoing, f.DeadTo = redisdb.Int(answer[8]), redisdb.Int(answer[9]), n(10), redisdb.Text(answer[11])
	return f, nil
}

// ErrMarkHolds means that a shard has the mark of a deletion or a reshard that was not given up.
var ErrMarkHolds = errors.New("the mark holds")

// Refreeze replaces another mark of a shard, whose deletion or reshard was given up. It returns the answer of
// lua/freeze.lua to freeze. If the other mark holds, nothing is done, and the error is ErrMarkHolds. Otherwise a late step of
// a deletion could open a shard whose jobs have moved.
//
// Refreeze reads the entry after the other mark was seen, so the entry is not older than that mark. It thaws the shard by
// the other mark's word, so it cannot remove a mark that comes in between. The freeze after the thaw refuses such a mark.
func (s *Shard) Refreeze(ctx context.Context, other, mark, want, oldest string) ([]any, error) {
	refusal := readMark(other)
	word := markWord(refusal)
	if word == "" {
		return nil, refusal
	}
	_, entry, err := s.registry.Stored(ctx, s.Queue)
	if err != nil {
		return nil, err
	}
	isEarlier := entry.Removing != "" && entry.Layout == s.layout && word != RemovedMark(entry.Removing) // of an earlier deletion
	if entry.rule(refusal, s.layout) != ruledObsolete && !isEarlier {
		return nil, fmt.Errorf("%w: shard %s has the mark %q", ErrMarkHolds, s, other)
	}
	if _, err := s.Run(ctx, s.DB().Scripts.Freeze, "thaw", word); err != nil {
		return nil, err
	}
	reply, err := s.Run(ctx, s.DB().Scripts.Freeze, "freeze", mark, want, oldest)
	return redisdb.List(reply), err
}
