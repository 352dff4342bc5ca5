package rubyqueue

import (
	"context"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Orphan are payloads of an id that no index has: Ruby's Lowkiq never runs them, and [Queue.Take] does not find them. Two processes with one shard
// leave such in processing.
type Orphan struct {
	ID       string
	Key      string // up to the id, after the queue's prefix: one of piles
	Payloads int
}

// piles are the keys of payloads up to the id, and the index that has the id; in flight the index is the hash of some shard.
var piles = []struct{ key, index string }{
	{"payloads:", "all_ids_scored_by_perfrom_in"},
	{"processing:payloads:", ""},
	{"morgue:payloads:", "morgue:all_ids_scored_by_updated_at"},
}

// keysPerScan bounds what one SCAN looks at.
const keysPerScan = 1000

// globs are the characters that a pattern of Redis takes for something else.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// Orphans calls fn with each orphan. It looks at the names of all keys of the database, some at a time, as nothing else tells of orphans. A pattern only
// saves the transfer of other names: what begins with the queue's prefix and the name of a pile is compared here, byte by byte, so that a queue whose name begins
// with this one's is told apart. It is for a queue that no worker works on: what moves meanwhile may be missed, or be told though it is none.
func (q *Queue) Orphans(ctx context.Context, fn func(Orphan)) error {
	flights, err := q.Flights(ctx)
	if err != nil {
		return err
	}
	told := map[Orphan]bool{} // a scan may tell a key twice
	for cursor := "0"; ; {
		reply, err := q.db.Do(ctx, "look for payloads that no index has", "SCAN", cursor, "MATCH", globs.Replace(q.prefix)+":*payloads:*", "COUNT", keysPerScan)
		if err != nil {
			return err
		}
		names, next := redisdb.Scanned(reply)
		for some := range slices.Chunk(names, payloadsPerScript) {
			orphans, err := q.unlisted(ctx, some, &flights)
			if err != nil {
				return err
			}
			for _, o := range orphans {
				if !told[o] {
					told[o] = true
					fn(o)
				}
			}
		}
		if cursor = next; cursor == "0" {
			return nil
		}
	}
}

// unlisted are the orphans among keys. What is in flight is read again if an id is not known to be.
func (q *Queue) unlisted(ctx context.Context, names []string, flights *Flights) (orphans []Orphan, err error) {
	var args []any
	unknown := false
	for _, name := range names {
		for _, pile := range piles {
			id, ok := strings.CutPrefix(name, q.key(pile.key))
			flying := ok && pile.index == ""
			if !ok || flying && (*flights)[id] != nil {
				continue
			}
			unknown = unknown || flying
			orphans, args = append(orphans, Orphan{ID: id, Key: pile.key}), append(args, pile.key, id, pile.index)
		}
	}
	if len(orphans) == 0 {
		return nil, nil
	}
	if unknown {
		if *flights, err = q.Flights(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := q.call(ctx, unlistedScript, args...)
	if err != nil {
		return nil, err
	}
	for i, n := range redisdb.List(reply) {
		if orphans[i].Payloads = int(redisdb.Int(n)); orphans[i].Key == "processing:payloads:" && (*flights)[orphans[i].ID] != nil {
			orphans[i].Payloads = 0
		}
	}
	return slices.DeleteFunc(orphans, func(o Orphan) bool { return o.Payloads == 0 }), nil
}
