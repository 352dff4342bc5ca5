package reshard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// instance is an instance of a node as it concerns a queue.
type instance struct {
	name     string
	leased   bool          // it is alive
	handles  bool          // it is alive and handles the queue
	mayBegin bool          // it may begin a job of the queue, because it has not noticed the reshard or its lease cannot be read
	ttl      time.Duration // of its lease; 0 if it is unknown
}

// readInstances reads the leases. It knows the few fields that it needs.
func readInstances(ctx context.Context, c *protocol.Client, queue string) ([]instance, error) {
	known, err := c.Leases().All(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]instance, len(known))
	for i, other := range known {
		var identity struct {
			TTL int64 `json:"ttl_ms"`
		}
		_ = json.Unmarshal(other.Identity, &identity) // the ttl is unknown then
		all[i] = instance{name: other.Name, leased: other.Lease != nil, ttl: time.Duration(identity.TTL) * time.Millisecond}
		if other.Lease == nil {
			continue
		}
		var lease struct {
			Queues map[string]int `json:"queues"`
			Paused []string       `json:"paused"`
		}
		err := json.Unmarshal(other.Lease, &lease)
		_, all[i].handles = lease.Queues[queue]
		all[i].mayBegin = err != nil || all[i].handles && !slices.Contains(lease.Paused, queue)
	}
	return all, nil
}

// Lives reports whether an instance of a node is alive, which drives reshards.
func Lives(ctx context.Context, c *protocol.Client) (bool, error) {
	all, err := readInstances(ctx, c, "")
	return slices.ContainsFunc(all, func(i instance) bool { return i.leased }), err
}

// Call is a job in flight.
type Call struct {
	ID       string
	Shard    int
	Instance string        // that has it
	For      time.Duration // since its pop
}

// maxCalls bounds the calls that a reader gets.
const maxCalls = 100

// shardFacts are the facts about a shard of the layout that a reshard leaves.
type shardFacts struct {
	mark   int        // number of the attempt that has frozen it; 0 if it is not frozen
	at     int64      // when it was frozen, in us of Redis's clock; 0 if it is not frozen
	flight int        // ids in flight
	busy   *busyError // why it cannot be frozen; nil if nothing prevents that
	owner  protocol.Owner
	calls  []Call // of the oldest flight, at most maxFlightIDs
}

// maxFlightIDs is the number of ids of a shard's oldest flight that are read.
const maxFlightIDs = 20

// layouts are the two layouts of a reshard.
type layouts struct {
	from, to *protocol.Queue
	number   int // of the attempt, that is of the layout to
}

// layoutsOf returns the layouts of a reshard that is under way. ok is false if none is.
func layoutsOf(g *protocol.Registry, name string, entry protocol.RegistryEntry) (l layouts, ok bool) {
	switch r := entry.Reshard; {
	case r != nil:
		return layouts{g.Unlisted(name, entry), g.InLayout(name, entry, r.Shards, r.Layout), r.Layout}, true
	case entry.Copying():
		was := entry.Was[0]
		return layouts{g.InLayout(name, entry, was.Shards, was.Layout), g.Unlisted(name, entry), entry.Layout}, true
	}
	return layouts{from: g.Unlisted(name, entry)}, false
}

// readOld reads the facts about the shards of the layout that is left.
func readOld(ctx context.Context, db *redisdb.DB, q *protocol.Queue, now time.Time) ([]shardFacts, error) {
	const each = 6 // commands for a shard
	all := make([]shardFacts, 0, q.Shards)
	for part := range slices.Chunk(q.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			k := s.Keys()
			cmds = append(cmds, redisdb.Cmd{"HGET", k.Count, "last"}, redisdb.Cmd{"LLEN", k.Flight},
				redisdb.Cmd{"HGETALL", k.Claim}, redisdb.Cmd{"LRANGE", k.Flight, 0, maxFlightIDs - 1},
				redisdb.Cmd{"EXISTS", k.Parked}, redisdb.Cmd{"EXISTS", k.Out})
		}
		replies, err := db.Pipeline(ctx, "read the shards of "+q.Name, cmds...)
		if err != nil {
			return nil, err
		}
		for i, s := range part {
			r := replies[each*i : each*i+each]
			all = append(all, parseOld(s, r, now))
		}
	}
	return all, nil
}

// shardsPerRead is the maximum number of shards of a pipeline.
const shardsPerRead = 200

// parseOld parses the replies about a shard.
func parseOld(s *protocol.Shard, r []any, now time.Time) shardFacts {
	fields := redisdb.Map(r[2])
	f := shardFacts{flight: int(redisdb.Int(r[1]))}
	f.mark, f.at = parseMark(redisdb.Text(r[0]))
	_, recovers := fields["recover"]
	switch { // as lua/freeze.lua
	case f.flight > 0:
		f.busy = &busyError{s, "in flight", nil}
	case recovers:
		f.busy = &busyError{s, "a recovery", nil}
	case redisdb.Int(r[4]) > 0:
		f.busy = &busyError{s, "parked", nil}
	case redisdb.Int(r[5]) > 0:
		f.busy = &busyError{s, "follow-ups", nil}
	}
	f.owner.Instance = fields["instance"]
	f.owner.Fence, _ = strconv.ParseInt(fields["fence"], 10, 64)
	oldest := int64(0)
	for field := range fields {
		text, ok := strings.CutPrefix(field, "@")
		if n, err := strconv.ParseInt(text, 10, 64); ok && err == nil && (oldest == 0 || n < oldest) {
			oldest = n
		}
	}
	number := strconv.FormatInt(oldest, 10)
	size, _ := strconv.Atoi(fields["#"+number])
	popped, _ := strconv.ParseInt(fields["@"+number], 10, 64)
	texts := redisdb.Texts(r[3])
	for _, id := range texts[:min(max(1, size), len(texts))] {
		f.calls = append(f.calls, Call{ID: id, Shard: s.Index, Instance: f.owner.Instance, For: max(0, now.Sub(time.UnixMicro(popped)))})
	}
	return f
}

// parseMark returns the number of the layout in the mark of a frozen shard, and when it was frozen. It returns 0 for other texts.
func parseMark(last string) (layout int, at int64) {
	words := strings.Fields(last)
	if len(words) < 4 || words[0] != "moved" {
		return 0, 0
	}
	layout, _ = strconv.Atoi(words[1])
	at, _ = strconv.ParseInt(words[3], 10, 64)
	return layout, at
}

// countOld counts the facts about the shards of the old layout. isDead reports whether an instance has been dead for long enough.
func (f *facts) countOld(all []shardFacts, number int, isDead func(instance string) bool) {
	f.old = len(all)
	for _, s := range all {
		f.at = append(f.at, s.at)
		switch {
		case s.mark != 0 && s.mark == number:
			f.frozen++
		case s.mark != 0 && !slices.Contains(f.others, s.mark):
			f.others = append(f.others, s.mark)
		}
		if s.busy == nil {
			continue
		}
		f.busy++
		if !s.busy.hasFlights() {
			f.why = cmp.Or(f.why, s.busy.Error())
			continue
		}
		if s.owner.Instance == "" || isDead(s.owner.Instance) {
			f.ownerless = append(f.ownerless, ownerless{s.busy.shard, s.owner})
		}
		f.calls = append(f.calls, s.calls...)
	}
	slices.SortStableFunc(f.calls, func(x, y Call) int { return cmp.Compare(y.For, x.For) })
	f.calls = f.calls[:min(maxCalls, len(f.calls))]
}

// describeCalls names the oldest calls for people.
func describeCalls(calls []Call) string {
	if len(calls) == 0 {
		return "no call"
	}
	var texts []string
	for _, c := range calls[:min(3, len(calls))] {
		texts = append(texts, fmt.Sprintf("%s on %s for %s", c.ID, nodeOf(c.Instance), c.For.Round(time.Second)))
	}
	if more := len(calls) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

// nodeOf returns the node of an instance.
func nodeOf(instance string) string {
	name, _, _ := strings.Cut(instance, "/")
	return cmp.Or(name, "no node")
}
