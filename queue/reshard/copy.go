package reshard

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A frozen shard does not change. So its entries have numbers by their places alone, and each driver counts alike: the entries of a
// child are numbered from 1 in the order of sections below. A child takes the entry after the last that it has taken.

// Errors after which a shard is copied again from its beginning. What its children have is skipped.
var (
	errForgotten = errors.New("a new shard has forgotten what it had taken")
	errRefrozen  = errors.New("the shard was frozen again meanwhile")
	errThawed    = errors.New("the shard has lost its mark")
)

// Bounds of reads and of script calls. Redis does nothing else while a script runs.
const (
	chunkEntries = 2000 // entries of a read; records are small, see lua/lib/record.lua
	chunkStates  = 20   // states may have lowkiq.MaxStateBytes
	callItems    = 2000
	callBytes    = 1 << 20
	waveBytes    = 8 << 20 // bytes of a pipeline
	pagePayloads = 500     // payloads of a part
	pageBytes    = 512 << 10
	maxAgain     = 100 // copies from the beginning
)

// copyShard takes all entries of a frozen shard to the shards of the new layout, and tells these that it is over. If Redis has
// forgotten the freeze, copyShard freezes the shard again. report gets numbers of entries that are there.
func copyShard(ctx context.Context, from *protocol.Queue, index int, frozen Frozen, to *protocol.Queue, report func(entries int)) error {
	for again := 0; ; again++ {
		c := newCopier(from, index, frozen, to, report)
		err := c.copyAll(ctx)
		if err == nil {
			return nil
		}
		if again == maxAgain || !errors.Is(err, errForgotten) && !errors.Is(err, errRefrozen) && !errors.Is(err, errThawed) && !errors.Is(err, errUnprepared) {
			return fmt.Errorf("copy shard %s: %w", c.from, err)
		}
		if err := recloseChildren(ctx, c, from); err != nil {
			return err
		}
		frozen = c.frozen
	}
}

// recloseChildren takes the steps before a copy again, for the children of a shard and all their parents.
func recloseChildren(ctx context.Context, c *copier, from *protocol.Queue) error {
	first, _ := relatives(c.first, c.to.Shards, from.Shards)
	_, last := relatives(c.first+len(c.lines)-1, c.to.Shards, from.Shards)
	frozen := map[int]Frozen{}
	keep := func(s *protocol.Shard, f Frozen) { frozen[s.Index] = f }
	if err := freezeSome(ctx, from.All()[first:last+1], c.to.Layout(), keep); err != nil {
		return err
	}
	c.frozen = frozen[c.from.Index]
	if err := prepareSome(ctx, c.children(), c.to.Shards, from.Shards); err != nil {
		return err
	}
	return setFloorsOf(ctx, c.children(), func(s *protocol.Shard) (parents []Frozen) {
		first, last := relatives(s.Index, c.to.Shards, from.Shards)
		for p := first; p <= last; p++ {
			parents = append(parents, frozen[p])
		}
		return parents
	})
}

// copier copies a frozen shard.
type copier struct {
	from   *protocol.Shard
	frozen Frozen
	mark   string
	to     *protocol.Queue
	first  int     // index of the first child
	lines  []*line // by child
	queued int     // bytes
	report func(entries int)
}

// line has the entries for a child that are not sent yet.
type line struct {
	shard   *protocol.Shard
	entries int64 // that have numbers
	taken   int64 // that the child has
	items   []item
}

// item is an entry, or a part of an entry, as arguments of lua/take.lua.
type item struct {
	number int64
	last   bool // the entry ends with it
	args   []any
	size   int
}

func newCopier(from *protocol.Queue, index int, frozen Frozen, to *protocol.Queue, report func(entries int)) *copier {
	first, last := relatives(index, from.Shards, to.Shards)
	c := &copier{from: from.Shard(index), frozen: frozen, mark: protocol.MovedMark(to.Layout()) + " ", to: to, first: first, report: report}
	for i := first; i <= last; i++ {
		c.lines = append(c.lines, &line{shard: to.Shard(i)})
	}
	return c
}

func (c *copier) children() (all []*protocol.Shard) {
	for _, l := range c.lines {
		all = append(all, l.shard)
	}
	return all
}

func (c *copier) copyAll(ctx context.Context) error {
	if err := c.readTaken(ctx); err != nil {
		return err
	}
	for _, section := range sections {
		if err := section(ctx, c); err != nil {
			return err
		}
	}
	if err := c.sendItems(ctx, 0); err != nil {
		return err
	}
	return c.endCopy(ctx)
}

// readTaken reads how many entries each child has, so that they are not sent again.
func (c *copier) readTaken(ctx context.Context) error {
	var cmds []redisdb.Cmd
	for _, l := range c.lines {
		cmds = append(cmds, redisdb.Cmd{"HGET", l.shard.Keys().From, sourceOf(c.from.Index)})
	}
	replies, err := c.from.DB().Pipeline(ctx, "read what the children of "+c.from.String()+" have", cmds...)
	if err != nil {
		return err
	}
	for i, l := range c.lines {
		l.taken, _ = parseTaken(redisdb.Text(replies[i]), c.frozen.At)
	}
	return nil
}

// readFrozen sends reads of the frozen shard, and after them a check that the shard is still frozen.
func (c *copier) readFrozen(ctx context.Context, cmds ...redisdb.Cmd) ([]any, error) {
	replies, err := c.from.DB().Pipeline(ctx, "read frozen jobs", append(cmds, redisdb.Cmd{"HGET", c.from.Keys().Count, "last"})...)
	if err != nil {
		return nil, err
	}
	last := redisdb.Text(replies[len(cmds)])
	if words := strings.Fields(last); !strings.HasPrefix(last, c.mark) || len(words) < 4 || redisdb.Int(words[3]) != c.frozen.At {
		return nil, errThawed
	}
	return replies[:len(cmds)], nil
}

func (c *copier) oldKey(name string) string { return c.from.Keys().Old(name) }

// lineOf returns the line of an id. An id that does not belong to this shard goes to the first child, where check names it.
func (c *copier) lineOf(id string) *line {
	if i := lowkiq.ShardOf(id, c.to.Shards) - c.first; i >= 0 && i < len(c.lines) {
		return c.lines[i]
	}
	return c.lines[0]
}

// addEntry adds an entry.
func (c *copier) addEntry(l *line, id, place, data string) {
	l.entries++
	c.addItem(l, item{number: l.entries, last: true, args: []any{id, place, data}, size: len(id) + len(place) + len(data) + 16})
}

// addItem queues an item unless the child has it.
func (c *copier) addItem(l *line, it item) {
	if it.number > l.taken {
		l.items = append(l.items, it)
		c.queued += it.size
	}
}

// entry is a place of an id, before its record is read.
type entry struct{ id, place string }

// addRecords adds the entries of ids with their records, and calls found with each id that has a record. With skipStale it skips
// ids whose entries in the list are obsolete.
func (c *copier) addRecords(ctx context.Context, hash string, entries []entry, skipStale bool, found func(id string)) error {
	cmds := []redisdb.Cmd{{"HMGET", c.oldKey(hash)}}
	for _, e := range entries {
		cmds[0] = append(cmds[0], e.id)
	}
	if skipStale {
		cmds = append(cmds, append(redisdb.Cmd{"HMGET", c.oldKey("stale")}, cmds[0][2:]...))
	}
	replies, err := c.readFrozen(ctx, cmds...)
	if err != nil {
		return err
	}
	records, stale := redisdb.List(replies[0]), []any(nil)
	if skipStale {
		stale = redisdb.List(replies[1])
	}
	for i, e := range entries {
		l := c.lineOf(e.id)
		record, there := records[i].(string)
		if stale != nil && stale[i] != nil || !there {
			c.addEntry(l, e.id, "x", "")
			continue
		}
		found(e.id)
		switch isJob := hash == "jobs"; {
		case isJob && record == "x":
			c.addEntry(l, e.id, "x", "")
		case (isJob || hash == "morgue") && strings.HasPrefix(record, "s"):
			if err := c.addCrowd(ctx, e, record, !isJob); err != nil {
				return err
			}
		case hash == "aside":
			c.addEntry(c.lineOf(idOfAside(e.id)), e.id, e.place, record)
		default:
			c.addEntry(l, e.id, e.place, record)
		}
	}
	return nil
}

// addCrowd adds an id whose payloads are in the spill, in parts.
func (c *copier) addCrowd(ctx context.Context, e entry, record string, buried bool) error {
	l := c.lineOf(e.id)
	l.entries++
	if l.entries <= l.taken {
		return nil
	}
	space := "w"
	if buried {
		space = "m"
	}
	prefix := space + strconv.Itoa(len(e.id)) + ":" + e.id + ":"
	from, end := "["+prefix, "("+prefix[:len(prefix)-1]+";"
	replies, err := c.readFrozen(ctx, redisdb.Cmd{"ZLEXCOUNT", c.oldKey("spill"), from, end})
	if err != nil {
		return err
	}
	total := int(redisdb.Int(replies[0]))
	page := pagePayloads
	if words := strings.Fields(record); len(words) > 4 { // "sRETRY at count bytes", see lua/lib/record.lua
		count, bytes := max(1, redisdb.Int(words[2])), redisdb.Int(words[3])
		page = int(max(1, min(pagePayloads, pageBytes/max(1, bytes/count))))
	}
	for first := 0; ; {
		replies, err := c.readFrozen(ctx, redisdb.Cmd{"ZRANGEBYLEX", c.oldKey("spill"), from, end, "LIMIT", 0, page})
		if err != nil {
			return err
		}
		members := redisdb.Texts(replies[0])
		it := item{number: l.entries, args: []any{e.id, e.place, record, first, total, len(members)}, size: len(e.id) + len(record) + 32}
		for _, member := range members {
			it.args = append(it.args, member[len(prefix):])
			it.size += len(member)
		}
		first += len(members)
		if it.last = first >= total; !it.last && len(members) == 0 {
			return fmt.Errorf("job %q has %d payloads in the spill, and %d were read", e.id, total, first)
		}
		c.addItem(l, it)
		if it.last {
			return nil
		}
		from = "(" + members[len(members)-1]
		if err := c.sendItems(ctx, waveBytes); err != nil {
			return err
		}
	}
}

// sendItems sends queued items until at most this many bytes are left, a call per child in a pipeline. A child gets its next
// call after the answer to the call before.
func (c *copier) sendItems(ctx context.Context, most int) error {
	for c.queued > most || most == 0 && c.hasItems() {
		var calls []*redisdb.Call
		var sent []*line
		size := 0
		for _, l := range c.lines {
			if len(l.items) == 0 || size >= waveBytes {
				continue
			}
			call, n := c.nextCall(l)
			calls, sent, size = append(calls, call), append(sent, l), size+n
		}
		c.from.DB().RunAll(ctx, calls)
		for i, call := range calls {
			if err := c.handleReply(sent[i], call); err != nil {
				return err
			}
		}
		if err := c.awaitReplicas(ctx, sent); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) hasItems() bool {
	return slices.ContainsFunc(c.lines, func(l *line) bool { return len(l.items) > 0 })
}

// nextCall returns a call with the next items of a child.
func (c *copier) nextCall(l *line) (call *redisdb.Call, size int) {
	script := c.from.DB().Scripts.Take
	args := c.takeArgs(l)
	for i := range l.items {
		it := &l.items[i]
		if i == callItems || i > 0 && size+it.size > callBytes {
			break
		}
		args, size = append(args, it.args...), size+it.size
	}
	return &redisdb.Call{Script: script, Keys: l.shard.Keys().For(script), Args: args}, size
}

// takeArgs returns the arguments before the entries.
func (c *copier) takeArgs(l *line) []any {
	next := l.taken + 1
	if len(l.items) > 0 {
		next = l.items[0].number
	}
	return []any{"take", sourceOf(c.from.Index), c.frozen.At, next, l.shard.Keys().Wake}
}

func (c *copier) handleReply(l *line, call *redisdb.Call) error {
	answer := redisdb.List(call.Reply)
	if call.Err != nil || len(answer) == 0 {
		if call.Err == nil {
			call.Err = fmt.Errorf("take answered %v", call.Reply)
		}
		return fmt.Errorf("shard %s: %w", l.shard, call.Err)
	}
	if err := takeError(l.shard, answer); err != nil {
		return err
	}
	n := int(redisdb.Int(answer[1]))
	if n < 1 || n > len(l.items) {
		return fmt.Errorf("shard %s: take answered %v for %d entries", l.shard, answer, len(l.items))
	}
	done := 0
	for _, it := range l.items[:n] {
		c.queued -= it.size
		if it.last {
			done, l.taken = done+1, it.number
		}
	}
	if l.items = l.items[n:]; len(l.items) == 0 {
		l.items = nil // its memory
	}
	if c.report != nil && done > 0 {
		c.report(done)
	}
	return nil
}

// awaitReplicas waits until replicas have what these children have taken.
func (c *copier) awaitReplicas(ctx context.Context, lines []*line) error {
	script := c.from.DB().Scripts.Take
	var calls []*redisdb.Call
	for _, l := range lines {
		calls = append(calls, &redisdb.Call{Script: script, Keys: l.shard.Keys().For(script), Args: []any{"take", sourceOf(c.from.Index), c.frozen.At, l.taken + 1, l.shard.Keys().Wake}})
	}
	return c.from.DB().AwaitReplicas(ctx, calls)
}

// endCopy tells each child that it has all entries. The child compares their number with that of the entries that it has taken.
func (c *copier) endCopy(ctx context.Context) error {
	if _, err := c.readFrozen(ctx); err != nil {
		return err
	}
	err := runTake(ctx, c.children(), func(s *protocol.Shard) []any {
		processed, failed := int64(0), int64(0)
		if s.Index == c.first {
			processed, failed = c.frozen.Processed, c.frozen.Failed
		}
		return []any{"over", sourceOf(c.from.Index), c.frozen.At, c.lines[s.Index-c.first].entries, processed, failed, s.Keys().Wake}
	})
	if err != nil {
		return err
	}
	return c.awaitReplicas(ctx, c.lines)
}

// A section is a list of entries of a frozen shard, in an order that never changes.
type section func(ctx context.Context, c *copier) error

// sections are all entries of a shard. Ids come before the marks of ids. Journals and numbers of sources stay in the former
// layout. What late, postponed and stale have follows from the records and the places.
var sections = []section{copyJobs, copyUrgent, copySince, copyStates, copyMorgue, copyAside}

// carriedBy says for each key that moves how its contents get to the new layout. A test compares it with all keys.
var carriedBy = map[string]string{
	"count": "freeze answers its sums and the rule then; over adds the sums, floor stores the rule", "claim": "floor: the fence", "jobs": "copyJobs", "ready": "copyJobs", "due": "copyJobs", "retry": "copyJobs",
	"blocked": "copyJobs", "suspects": "copyJobs", "crashes": "copyJobs", "urgent": "copyJobs, copyUrgent", "spill": "addCrowd", "spillx": "addCrowd",
	"since": "copySince", "states": "copyStates", "statesx": "copyStates", "morgue": "copyMorgue", "dead": "copyMorgue", "aside": "copyAside",
	"late": "take: from records and places", "postponed": "take: from records and places", "stale": "skipped: its entries in ready count for nothing",
}

// copyJobs copies all waiting jobs: the places in their order, and then records that are in no place.
func copyJobs(ctx context.Context, c *copier) error {
	replies, err := c.readFrozen(ctx, redisdb.Cmd{"HLEN", c.oldKey("jobs")}, redisdb.Cmd{"HEXISTS", c.oldKey("jobs"), ""}, redisdb.Cmd{"HLEN", c.oldKey("stale")})
	if err != nil {
		return err
	}
	records := redisdb.Int(replies[0]) - redisdb.Int(replies[1]) // '' is no id, see lua/claim.lua
	ids := idCounter{seed: maphash.MakeSeed()}
	hasStale := redisdb.Int(replies[2]) > 0
	each := func(fn func([]entry) error) error { return c.eachPlace(ctx, fn) }
	err = each(func(entries []entry) error {
		if err := c.addRecords(ctx, "jobs", entries, hasStale && entries[0].place == "r", ids.addID); err != nil {
			return err
		}
		return c.sendItems(ctx, callBytes)
	})
	if err != nil || ids.countIDs() == records {
		return err
	}
	return c.copyStrays(ctx, "jobs", "r", each)
}

// idCounter counts ids, each once, however many places have it. It keeps 8 bytes for an id. If two ids have the same hash, it
// counts too few, and then records are looked for that no list has.
type idCounter struct {
	seed   maphash.Seed
	hashes []uint64
}

func (n *idCounter) addID(id string) { n.hashes = append(n.hashes, maphash.String(n.seed, id)) }

func (n *idCounter) countIDs() int64 {
	slices.Sort(n.hashes)
	n.hashes = slices.Compact(n.hashes)
	return int64(len(n.hashes))
}

// copyStrays copies the records that no list has, in the order of their ids. They are damage.
func (c *copier) copyStrays(ctx context.Context, hash, place string, each func(func([]entry) error) error) error {
	listed := map[string]bool{"": true}
	if err := each(func(entries []entry) error {
		for _, e := range entries {
			listed[e.id] = true
		}
		return nil
	}); err != nil {
		return err
	}
	names, err := c.readNames(ctx, hash)
	if err != nil {
		return err
	}
	var strays []entry
	for _, id := range names {
		if !listed[id] {
			strays = append(strays, entry{id, place})
		}
	}
	return c.addInChunks(ctx, hash, strays)
}

func (c *copier) addInChunks(ctx context.Context, hash string, entries []entry) error {
	for part := range slices.Chunk(entries, chunkStates) {
		if err := c.addRecords(ctx, hash, part, false, func(string) {}); err != nil {
			return err
		}
		if err := c.sendItems(ctx, callBytes); err != nil {
			return err
		}
	}
	return nil
}

// readNames returns the fields of a hash, ascending.
func (c *copier) readNames(ctx context.Context, hash string) ([]string, error) {
	seen := map[string]bool{}
	for cursor := "0"; ; {
		replies, err := c.readFrozen(ctx, redisdb.Cmd{"HSCAN", c.oldKey(hash), cursor, "COUNT", 100})
		if err != nil {
			return nil, err
		}
		found, next := redisdb.Scanned(replies[0])
		for i := 0; i+1 < len(found); i += 2 {
			seen[found[i]] = true
		}
		if cursor = next; cursor == "0" {
			return slices.Sorted(maps.Keys(seen)), nil
		}
	}
}

// eachPlace calls fn with the places of waiting ids, chunk by chunk. All places of a chunk are in the same list.
func (c *copier) eachPlace(ctx context.Context, fn func([]entry) error) error {
	if err := c.eachInList(ctx, "ready", "r", fn); err != nil {
		return err
	}
	for _, set := range []struct{ key, kind string }{{"urgent", "u"}, {"due", "d"}, {"retry", "t"}, {"blocked", "b"}} {
		err := c.eachScore(ctx, set.key, chunkEntries, func(all []entry) error {
			waiting := all[:0]
			for _, e := range all {
				if !strings.HasPrefix(e.place, "-") { // an urgent id that waits elsewhere
					waiting = append(waiting, entry{e.id, set.kind + e.place})
				}
			}
			if len(waiting) == 0 {
				return nil
			}
			return fn(waiting)
		})
		if err != nil {
			return err
		}
	}
	return c.eachInList(ctx, "suspects", "q", func(entries []entry) error {
		if err := c.addCrashes(ctx, entries); err != nil {
			return err
		}
		return fn(entries)
	})
}

func (c *copier) eachInList(ctx context.Context, key, kind string, fn func([]entry) error) error {
	for at := 0; ; at += chunkEntries {
		replies, err := c.readFrozen(ctx, redisdb.Cmd{"LRANGE", c.oldKey(key), at, at + chunkEntries - 1})
		if err != nil {
			return err
		}
		ids := redisdb.Texts(replies[0])
		entries := make([]entry, len(ids))
		for i, id := range ids {
			entries[i] = entry{id, kind}
		}
		if len(ids) > 0 {
			if err := fn(entries); err != nil {
				return err
			}
		}
		if len(ids) < chunkEntries {
			return nil
		}
	}
}

// addCrashes adds the crashes of quarantined ids to their places.
func (c *copier) addCrashes(ctx context.Context, entries []entry) error {
	cmd := redisdb.Cmd{"HMGET", c.oldKey("crashes")}
	for _, e := range entries {
		cmd = append(cmd, e.id)
	}
	replies, err := c.readFrozen(ctx, cmd)
	if err != nil {
		return err
	}
	for i, crashes := range redisdb.List(replies[0]) {
		entries[i].place += strconv.FormatInt(redisdb.Int(crashes), 10)
	}
	return nil
}

// eachScore calls fn with the ids and scores of a sorted set, chunk by chunk.
func (c *copier) eachScore(ctx context.Context, key string, chunk int, fn func(all []entry) error) error {
	for at := 0; ; at += chunk {
		replies, err := c.readFrozen(ctx, redisdb.Cmd{"ZRANGE", c.oldKey(key), at, at + chunk - 1, "WITHSCORES"})
		if err != nil {
			return err
		}
		texts := redisdb.Texts(replies[0])
		all := make([]entry, len(texts)/2)
		for i := range all {
			all[i] = entry{texts[2*i], texts[2*i+1]}
		}
		if len(all) > 0 {
			if err := fn(all); err != nil {
				return err
			}
		}
		if len(all) < chunk {
			return nil
		}
	}
}

// copyUrgent copies the marks of urgent ids that wait elsewhere.
func copyUrgent(ctx context.Context, c *copier) error {
	return c.eachScore(ctx, "urgent", chunkEntries, func(all []entry) error {
		for _, e := range all {
			if strings.HasPrefix(e.place, "-") {
				c.addEntry(c.lineOf(e.id), e.id, "U", "")
			}
		}
		return c.sendItems(ctx, callBytes)
	})
}

// copySince copies the times of the first pushes of ids that later pushes put off.
func copySince(ctx context.Context, c *copier) error {
	return c.eachScore(ctx, "since", chunkEntries, func(all []entry) error {
		for _, e := range all {
			c.addEntry(c.lineOf(e.id), e.id, "n"+e.place, "")
		}
		return c.sendItems(ctx, callBytes)
	})
}

// copySet copies the records of a hash in the order of its sorted set, and then records that are not in the set.
func copySet(hash, set, kind string, chunk int) section {
	return func(ctx context.Context, c *copier) error {
		replies, err := c.readFrozen(ctx, redisdb.Cmd{"HLEN", c.oldKey(hash)})
		if err != nil {
			return err
		}
		records := redisdb.Int(replies[0])
		each := func(fn func([]entry) error) error {
			return c.eachScore(ctx, set, chunk, func(all []entry) error {
				for i := range all {
					all[i].place = kind + all[i].place
				}
				return fn(all)
			})
		}
		err = each(func(entries []entry) error {
			if err := c.addRecords(ctx, hash, entries, false, func(string) { records-- }); err != nil {
				return err
			}
			return c.sendItems(ctx, callBytes)
		})
		if err != nil || records == 0 {
			return err
		}
		return c.copyStrays(ctx, hash, kind+strconv.FormatInt(c.frozen.At, 10), each)
	}
}

var (
	copyStates = copySet("states", "statesx", "k", chunkStates)
	copyMorgue = copySet("morgue", "dead", "m", chunkEntries)
)

// idOfAside returns the id of a field of aside, which is the name of a hash, a colon and the id. An id that was set aside twice
// has a field with a + more.
func idOfAside(field string) string {
	_, id, _ := strings.Cut(field, ":")
	return strings.TrimRight(id, "+")
}

// copyAside copies the records that were set aside.
func copyAside(ctx context.Context, c *copier) error {
	names, err := c.readNames(ctx, "aside")
	if err != nil {
		return err
	}
	var entries []entry
	for _, name := range names {
		entries = append(entries, entry{name, "a"})
	}
	return c.addInChunks(ctx, "aside", entries)
}
