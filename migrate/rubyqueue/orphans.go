package rubyqueue

import (
	"context"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Orphan is an id with payloads that no index has. Ruby's Lowkiq never runs it, and [Queue.Take] does not find it. Two
// processes that work on the same shard can leave orphans in processing.
type Orphan struct {
	ID       string
	Key      string // the part of the key between the queue's prefix and the id
	Payloads int
}

// piles are the keys that hold payloads, up to the id, each with the index that should have the id. The index of payloads in
// flight is the hash of a shard.
var piles = []struct{ key, index string }{
	{"payloads:", "all_ids_scored_by_perfrom_in"},
	{"processing:payloads:", ""},
	{"morgue:payloads:", "morgue:all_ids_scored_by_updated_at"},
}

// keysPerScan bounds the keys that a SCAN visits.
const keysPerScan = 1000

// globs escapes the characters that have a meaning in a pattern of Redis.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// FindOrphans calls fn with each orphan. It visits the names of all keys of the database, some at a time, because no index
// lists orphans. The pattern of the scan only saves the transfer of other names. The prefix and the kind of each key are
// compared here byte by byte, so that a queue whose name begins with this name is told apart.
//
// No worker may work on the queue meanwhile. A job that moves during the scan may be missed, or reported although it is not
// an orphan.
func (q *Queue) FindOrphans(ctx context.Context, fn func(Orphan)) error {
	flights, err := q.ReadFlights(ctx)
	if err != nil {
		return err
	}
	told := map[Orphan]bool{} // a scan may return a key twice
	for cursor := "0"; ; {
		reply, err := q.db.Do(ctx, "look for payloads that no index has", "SCAN", cursor, "MATCH", globs.Replace(q.prefix)+":*payloads:*",
			"COUNT", keysPerScan)
		if err != nil {
			return err
		}
		names, next := redisdb.Scanned(reply)
		for some := range slices.Chunk(names, payloadsPerScript) {
			orphans, err := q.findUnlisted(ctx, some, &flights)
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

// findUnlisted returns the orphans among keys. It reads the flights again if it meets an id that is not among them.
func (q *Queue) findUnlisted(ctx context.Context, names []string, flights *Flights) (orphans []Orphan, err error) {
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
		if *flights, err = q.ReadFlights(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := q.runScript(ctx, unlistedScript, args...)
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
