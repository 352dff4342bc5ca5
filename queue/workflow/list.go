package workflow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// MaxPage is the maximum number of workflows of a page, more or less: a page ends behind a part of a shard.
const MaxPage = 500

// maxExamined is how many states are read for a page, more or less.
const maxExamined = 5000

// ListedStates returns the states of workflows in a list.
func ListedStates() []State {
	return []State{StateRunning, StateDone, StateDead, StateLate, StateCancelled}
}

// scanned is how many states a command reads, more or less.
const scanned = 20

// bytesOfStatus is the memory of a status.
const bytesOfStatus = 2 << 10

// List returns about n workflows in a state, "" for any, the newest first within a page, and the cursor of the next page, ""
// after the last page. The first cursor is "". A page of a rare state may be empty before the last page. A workflow that is
// there from the first page to the last is in one of them. A start that no node has handled is in none. The memory account
// of ctx pays for the page.
func List(ctx context.Context, c *protocol.Client, state State, cursor string, n int) (all []Status, next string, err error) {
	if state != "" && !slices.Contains(ListedStates(), state) {
		return nil, "", invalid("state %.60q: must be running, done, dead, late or cancelled", state)
	}
	shard, at, examined := 0, "0", 0
	if cursor != "" {
		_, err := fmt.Sscanf(cursor, "%d-%s", &shard, &at)
		if _, wrong := strconv.ParseUint(at, 10, 64); err != nil || shard < 0 || wrong != nil {
			return nil, "", invalid("cursor %.60q: must be the cursor of a page before", cursor)
		}
	}
	q, err := c.FindQueue(ctx, protocol.Workflows)
	if q == nil || err != nil {
		return nil, "", err
	}
	seen := map[string]bool{}
	for ; shard < q.Shards; shard, at = shard+1, "0" {
		for {
			if len(all) >= min(n, MaxPage) || examined >= maxExamined {
				slices.SortFunc(all, newestFirst)
				return all, fmt.Sprintf("%d-%s", shard, at), nil
			}
			read := 0
			if at, read, err = listPart(ctx, q.Shard(shard), at, state, seen, &all); err != nil {
				return nil, "", err
			}
			examined += read
			if at == "0" {
				break
			}
		}
	}
	slices.SortFunc(all, newestFirst)
	return all, "", nil
}

func newestFirst(x, y Status) int { return cmp.Or(y.Began.Compare(x.Began), cmp.Compare(x.ID, y.ID)) }

// listPart adds the workflows in a state of a part of a shard. It returns where the next part begins, and how many states it
// has read.
func listPart(ctx context.Context, s *protocol.Shard, at string, only State, seen map[string]bool, all *[]Status) (next string, read int, err error) {
	const most = 2 * scanned * maxStateRead
	if err := memory.Take(ctx, most); err != nil {
		return "", 0, err
	}
	defer memory.Give(ctx, most)
	reply, err := s.DB().Do(ctx, "list workflows of "+s.String(), "HSCAN", s.Keys().States, at, "COUNT", scanned)
	if err != nil {
		return "", 0, err
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != 2 {
		return "", 0, fmt.Errorf("shard %s: HSCAN answered %.100v", s, reply)
	}
	pairs := redisdb.Texts(parts[1])
	for i := 0; i+1 < len(pairs); i += 2 {
		id := strings.Clone(pairs[i])
		state, err := readState([]byte(pairs[i+1]))
		if err != nil || seen[id] { // the page of the id shows a state that cannot be read
			continue
		}
		of := state.status(id)
		if only != "" && of.State != only {
			continue
		}
		if err := memory.Take(ctx, bytesOfStatus); err != nil {
			return "", 0, err
		}
		seen[id] = true
		*all = append(*all, of)
	}
	return redisdb.Text(parts[0]), len(pairs) / 2, nil
}

// maxStateRead is the memory of a state while it is read.
const maxStateRead = 64 << 10
