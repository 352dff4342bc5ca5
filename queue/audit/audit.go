// Package audit looks whether the keys in Redis agree with each other, and repairs them.
//
// [Run] reads a shard in pieces, while nodes and producers go on; what looks wrong is looked at
// again, atomically and by itself, before it is called a fault (lua/audit.lua). So a queue that
// moves yields no false fault. [Repair] mends one fault.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// FaultKind names what is wrong.
type FaultKind string

// The kinds of faults. Of an id:
const (
	DamagedRecord    FaultKind = "damaged-record"    // its record cannot be read
	LaterRecord      FaultKind = "later-record"      // its record is of a later release's form; nothing mends that but its release
	NoRecord         FaultKind = "no-record"         // it is listed without a record
	NoEntry          FaultKind = "no-entry"          // it has a record and is in no list: it would never run
	TwoPlaces        FaultKind = "two-places"        // it is listed twice
	LoneTomb         FaultKind = "lone-tomb"         // the mark of a deleted job is left over
	StaleMark        FaultKind = "stale-mark"        // a mark lets its entry in ready be passed over, wrongly
	LateMark         FaultKind = "late-mark"         // it is counted as failed and due, wrongly, or is not and should be
	PostponedMark    FaultKind = "postponed-mark"    // it is noted as put off, wrongly, or is not and should be
	WrongTime        FaultKind = "wrong-time"        // it is listed for another time than its record says
	ParkedAlone      FaultKind = "parked-alone"      // what was pushed during its flight was left behind
	SuspectUncounted FaultKind = "suspect-uncounted" // it is in quarantine, its crashes are not known
	CrashLeft        FaultKind = "crash-left"        // its crashes are counted although it is not in quarantine
	DeadUnlisted     FaultKind = "dead-unlisted"     // it is in the morgue and not in its list
	DeadUnrecorded   FaultKind = "dead-unrecorded"   // it is in the morgue's list and not in the morgue
	SpillCount       FaultKind = "spill-count"       // its record counts other payloads than there are
	SpillStray       FaultKind = "spill-stray"       // a payload of it belongs to no record
	StateUndated     FaultKind = "state-undated"     // nobody knows when its state was written: it would be kept for ever
	StateLeft        FaultKind = "state-left"        // it has no state, and is listed as if it had one
	NoteLeft         FaultKind = "note-left"         // it is noted how far it is, and it is not in flight
)

// Of a shard:
const (
	WrongType     FaultKind = "wrong-type"     // a key is of another type in Redis
	ClaimDamaged  FaultKind = "claim-damaged"  // the claim's fields cannot be
	ClaimUnknown  FaultKind = "claim-unknown"  // its holder has no lease and is not in the index
	FlightCount   FaultKind = "flight-count"   // the claim counts other ids in flight than there are
	FlightUnowned FaultKind = "flight-unowned" // ids are in flight in a shard without an owner
	TombCount     FaultKind = "tomb-count"     // the counter of tombstones is wrong
	MorgueCount   FaultKind = "morgue-count"   // the counter of the morgue's payloads is wrong
	JournalEntry  FaultKind = "journal-entry"  // lines of its journal cannot be read: they end each look at it
	JournalCount  FaultKind = "journal-count"  // the counter of its journal's lines is wrong: too many or too few are kept
)

// Of the cluster:
const (
	RegistryDamaged  FaultKind = "registry-damaged"  // a queue's entry cannot be read
	RecordDamaged    FaultKind = "record-damaged"    // the cluster record or the leader's mark cannot be read
	RulesDamaged     FaultKind = "rules-damaged"     // what was set of rules at run time cannot be read
	RecurringDamaged FaultKind = "recurring-damaged" // something that recurs cannot be read: it is not pushed
	OrphanKey        FaultKind = "orphan-key"        // a key belongs to nothing that is registered
)

// repairs says what a repair does about a kind of fault; the others are for a person.
var repairs = map[FaultKind]string{
	DamagedRecord:    "move the record, as it is, to the shard's hash aside",
	NoRecord:         "take the id out of the list",
	NoEntry:          "let the job wait for the time its record says",
	TwoPlaces:        "keep one place: flight, quarantine, blocked, else what the record says",
	LoneTomb:         "remove the mark",
	StaleMark:        "remove the mark",
	LateMark:         "count it as its record says",
	PostponedMark:    "note what its record says",
	WrongTime:        "list it for the time its record says",
	ParkedAlone:      "let the payloads wait, merged with what waits already",
	SuspectUncounted: "count no crash",
	CrashLeft:        "forget the count",
	DeadUnlisted:     "list it",
	DeadUnrecorded:   "take it out of the list",
	StateUndated:     "let it be kept as if it was written now",
	StateLeft:        "take it out of the list",
	NoteLeft:         "forget the note",
	ClaimDamaged:     "give the shard up, if nobody can be at work: its holder has no lease",
	FlightUnowned:    "put the ids back to the head of the queue",
	TombCount:        "count again",
	MorgueCount:      "count again",
	JournalEntry:     "forget the entry",
	JournalCount:     "count again",
}

// Fault is one thing that is wrong.
type Fault struct {
	Kind   FaultKind
	Queue  string // "" if it is the cluster's
	Shard  int    // -1 if it is no shard's
	ID     string // "" if it is no id's
	What   string // what is wrong, for people
	Repair string // what a repair would do; "" = a person must decide

	record []byte // of a damaged record: as it was read
	within string // of a damaged record: jobs, parked or morgue; of an entry of a journal: its id
}

// String is the fault in one line.
func (f Fault) String() string {
	where := "cluster"
	if f.Queue != "" {
		where = "queue " + f.Queue
	}
	if f.Shard >= 0 {
		where = fmt.Sprintf("shard %s/%d", f.Queue, f.Shard)
	}
	if f.ID != "" {
		where += fmt.Sprintf(", id %q", f.ID)
	}
	return fmt.Sprintf("%s: %s: %s", where, f.Kind, f.What)
}

// Config says what to look at.
type Config struct {
	Queues   []string                // default: all that are registered
	Orphans  bool                    // look through all keys of the cluster for ones that belong to nothing
	Most     int                     // most faults to list per shard. Default 1,000
	Progress func(done, total int64) // called now and then, with numbers of ids
}

// Report is what was found.
type Report struct {
	Queues, Shards int
	Jobs           int64 // ids that wait or are in flight
	Aside          int64 // records that repairs have moved aside
	// Gone are instances of the index whose leases are gone. They are no faults: nodes need them to
	// know for how long, and forget each an hour or two after its death, as long as any node is up.
	Gone      []string
	Faults    []Fault
	More      int      // faults beyond the most to list
	Unsettled []string // sums that could not be checked: they moved all the while
}

// auditor is one run.
type auditor struct {
	c    *queue.Client
	db   *redisdb.DB
	cfg  Config
	out  *Report
	done int64
	all  int64
	// holders are the claims that were seen, by instance.
	holders map[string][]*queue.Shard
}

// Run looks at everything that is kept in Redis. It changes nothing. Registered queues
// only: keys of others are found with cfg.Orphans.
func Run(ctx context.Context, c *queue.Client, cfg Config) (Report, error) {
	if cfg.Most <= 0 {
		cfg.Most = 1000
	}
	a := &auditor{c: c, db: c.DB(), cfg: cfg, out: &Report{}, holders: map[string][]*queue.Shard{}}
	queues, err := a.registry(ctx)
	if err != nil {
		return *a.out, err
	}
	if err := a.size(ctx, queues); err != nil {
		return *a.out, err
	}
	for _, q := range queues {
		a.out.Queues++
		for _, s := range q.All() {
			if err := a.shard(ctx, s); err != nil {
				return *a.out, fmt.Errorf("audit of shard %s: %w", s, err)
			}
		}
	}
	return *a.out, a.cluster(ctx, queues)
}

// size counts what there is to do, for the progress.
func (a *auditor) size(ctx context.Context, queues []*queue.Queue) error {
	for _, q := range queues {
		var cmds []redisdb.Cmd
		for _, s := range q.All() {
			cmds = append(cmds, redisdb.Cmd{"HLEN", s.Keys().Jobs})
		}
		replies, _ := a.db.Pipeline(ctx, "count jobs", cmds...) //nolint:errcheck // a key of a wrong type is found later
		for _, reply := range replies {
			a.all += redisdb.Int(reply)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (a *auditor) progress(n int) {
	a.done += int64(n)
	if a.cfg.Progress != nil {
		a.cfg.Progress(a.done, max(a.done, a.all))
	}
}

func (a *auditor) add(faults ...Fault) {
	for i := range faults {
		faults[i].Repair = repairs[faults[i].Kind]
	}
	a.out.Faults = append(a.out.Faults, faults...)
}

// shard looks at one shard: types first, for nothing else can be read of a wrong one.
func (a *auditor) shard(ctx context.Context, s *queue.Shard) error {
	a.out.Shards++
	right, err := a.types(ctx, s)
	if err != nil || !right {
		return err
	}
	if err := a.claim(ctx, s); err != nil {
		return err
	}
	seen, err := a.sweep(ctx, s)
	if err != nil {
		return err
	}
	found, err := a.verify(ctx, s, seen)
	if err != nil {
		return err
	}
	a.addSome(found)
	if err := a.spill(ctx, s); err != nil {
		return err
	}
	if err := a.journal(ctx, s); err != nil {
		return err
	}
	return a.sums(ctx, s, seen)
}

// addSome lists as many faults of a shard as are wanted.
func (a *auditor) addSome(found []Fault) {
	slices.SortStableFunc(found, func(x, y Fault) int { return strings.Compare(x.ID, y.ID) })
	n := min(len(found), a.cfg.Most)
	a.add(found[:n]...)
	a.out.More += len(found) - n
}

// types compares the types of a shard's keys.
func (a *auditor) types(ctx context.Context, s *queue.Shard) (right bool, err error) {
	types := s.Keys().Types()
	keys := slices.Sorted(maps.Keys(types))
	var cmds []redisdb.Cmd
	for _, key := range keys {
		cmds = append(cmds, redisdb.Cmd{"TYPE", key})
	}
	replies, err := a.db.Pipeline(ctx, "read types of "+s.String(), append(cmds, redisdb.Cmd{"HLEN", s.Keys().Aside})...)
	right = true
	for i, key := range keys {
		if got := redisdb.Text(replies[i]); got != "" && got != "none" && got != types[key] {
			right = false
			a.add(Fault{Kind: WrongType, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("key %s is a %s, want a %s; the rest of the shard was not looked at", key, got, types[key])})
		}
	}
	if !right {
		return false, nil
	}
	a.out.Aside += redisdb.Int(replies[len(keys)])
	return true, err
}

// What belongs to no shard: the registry, the index of instances, the record, stray keys.

// registry reads the registry's entries one by one and returns the queues to look at.
func (a *auditor) registry(ctx context.Context) (queues []*queue.Queue, err error) {
	reply, err := a.db.Do(ctx, "read the queue registry", "HGETALL", a.db.Keys.Queues())
	if err != nil {
		return nil, err
	}
	raw := redisdb.Map(reply)
	for name, text := range raw {
		if entry, ok := entryOf(text); ok && entry.Removed {
			delete(raw, name)
		}
	}
	for _, name := range a.cfg.Queues {
		if _, ok := raw[name]; !ok {
			known := strings.Join(slices.Sorted(maps.Keys(raw)), ", ")
			return nil, fmt.Errorf("%w %q (known: %s)", lowkiq.ErrUnknownQueue, name, known)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if len(a.cfg.Queues) > 0 && !slices.Contains(a.cfg.Queues, name) {
			continue
		}
		err := queue.CheckName("queue", name)
		var q *queue.Queue
		if err == nil {
			q, err = a.c.Registry().Adopt(name, raw[name])
		}
		if entry, _ := entryOf(raw[name]); err == nil && entry.Removing != "" {
			err = fmt.Errorf("queue %q: its deletion is not finished: repeat lowkiq-node queues delete %s", name, name)
		}
		if err != nil {
			a.add(Fault{Kind: RegistryDamaged, Queue: name, Shard: -1, What: err.Error() + "; its shards were not looked at"})
			continue
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// entryOf reads an entry; ok is false if it cannot be one.
func entryOf(text string) (entry queue.Entry, ok bool) {
	err := json.Unmarshal([]byte(text), &entry)
	return entry, err == nil && entry.Shards > 0 && entry.Layout > 0
}

// cluster looks at what all shards share.
func (a *auditor) cluster(ctx context.Context, queues []*queue.Queue) error {
	if err := a.records(ctx); err != nil {
		return err
	}
	if err := a.instances(ctx); err != nil {
		return err
	}
	if err := a.atRunTime(ctx); err != nil {
		return err
	}
	if !a.cfg.Orphans {
		return nil
	}
	return a.orphans(ctx)
}

func (a *auditor) records(ctx context.Context) error {
	for key, what := range map[string]string{a.db.Keys.Record(): "the cluster record", a.db.Keys.Leader(): "the leader's mark"} {
		reply, err := a.db.Do(ctx, "read "+what, "GET", key)
		value := redisdb.Bytes(reply)
		switch {
		case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
			a.add(Fault{Kind: RecordDamaged, Shard: -1, What: what + " is of another type in Redis"})
		case err != nil:
			return err
		case key == a.db.Keys.Record() && value != nil && !json.Valid(value):
			a.add(Fault{Kind: RecordDamaged, Shard: -1, What: fmt.Sprintf("%s cannot be read: %.40q", what, value)})
		}
	}
	return nil
}

// instances compares the index, the leases and the claims. Nothing in Redis says when a lease
// ended, so whether nodes should have forgotten an instance by now cannot be judged.
func (a *auditor) instances(ctx context.Context) error {
	index, err := a.c.Leases().All(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, i := range index {
		known[i.Name] = true
		if i.Lease == nil {
			a.out.Gone = append(a.out.Gone, i.Name)
		}
	}
	for _, holder := range slices.Sorted(maps.Keys(a.holders)) {
		if known[holder] {
			continue
		}
		if err := a.unknown(ctx, holder); err != nil {
			return err
		}
	}
	return nil
}

// unknown reads the claims of a holder again that is in no index: it may be new, or have
// given them up.
func (a *auditor) unknown(ctx context.Context, holder string) error {
	one, err := a.c.Leases().Instance(ctx, holder)
	if err != nil || one.Lease != nil || one.Identity != nil {
		return err
	}
	for _, s := range a.holders[holder] {
		owner, err := s.Owner(ctx)
		if err != nil {
			return err
		}
		if owner.Instance == holder {
			a.add(Fault{Kind: ClaimUnknown, Queue: s.Queue, Shard: s.Index,
				What: fmt.Sprintf("instance %s holds it, which has no lease and is not in the index; a node that handles the queue will seize it", holder)})
		}
	}
	return nil
}

// orphans walks through all keys of the cluster, on each master.
func (a *auditor) orphans(ctx context.Context) error {
	reply, err := a.db.Do(ctx, "read the queue registry", "HGETALL", a.db.Keys.Queues())
	if err != nil {
		return err
	}
	entries := redisdb.Map(reply)
	var mu sync.Mutex // guards found: the masters of a Redis Cluster are asked at once
	found := map[string]bool{}
	return a.db.EachMaster(ctx, func(ctx context.Context, master *redisdb.DB) error {
		for _, pattern := range a.db.Keys.Patterns() {
			for cursor := "0"; ; {
				reply, err := master.Do(ctx, "scan keys", "SCAN", cursor, "MATCH", pattern, "COUNT", sweepIDs)
				if err != nil {
					return err
				}
				keys, next := redisdb.Scanned(reply)
				endless, err := endlessReplies(ctx, master, keys)
				if err != nil {
					return err
				}
				mu.Lock()
				for _, key := range keys {
					why := a.orphan(key, entries)
					if endless[key] {
						why = "it is a reply to a call, and no time is set at which it ends"
					}
					if why != "" && !found[key] {
						found[key] = true
						a.add(Fault{Kind: OrphanKey, Shard: -1, What: fmt.Sprintf("key %s: %s", key, why)})
					}
				}
				mu.Unlock()
				if cursor = next; cursor == "0" {
					break
				}
			}
		}
		return nil
	})
}

// endlessReplies are the replies among keys that would be kept for ever.
func endlessReplies(ctx context.Context, master *redisdb.DB, keys []string) (endless map[string]bool, err error) {
	var replies []string
	var cmds []redisdb.Cmd
	for _, key := range keys {
		if _, _, _, name, ok := redisdb.ParseShard(key); ok && name == replyKey {
			replies, cmds = append(replies, key), append(cmds, redisdb.Cmd{"PTTL", key})
		}
	}
	left, err := master.Pipeline(ctx, "read how long replies are kept", cmds...)
	endless = map[string]bool{}
	for i, key := range replies {
		if err == nil {
			endless[key] = redisdb.Int(left[i]) == -1
		}
	}
	return endless, err
}

// replyKey is the name of the keys of replies, which end by themselves.
const replyKey = "reply"

// orphan says why a key belongs to nothing, "" if it does.
func (a *auditor) orphan(key string, registry map[string]string) string {
	if a.db.Keys.Shared(key) {
		return ""
	}
	of, layout, index, name, ok := redisdb.ParseShard(key)
	if !ok {
		return "lowkiq keeps no such key"
	}
	if name == replyKey {
		return ""
	}
	text, ok := registry[of]
	if !ok {
		return fmt.Sprintf("queue %s is not registered", of)
	}
	entry, readable := entryOf(text)
	switch {
	case !readable:
		return ""
	case name == "count" && (layout < entry.Layout || layout == entry.Layout && entry.Removed):
		return "" // the mark of a deleted queue: see remove.go
	case entry.Removed:
		return fmt.Sprintf("queue %s is deleted", of)
	case layout != entry.Layout:
		return fmt.Sprintf("queue %s has layout %d", of, entry.Layout)
	case index >= entry.Shards:
		return fmt.Sprintf("queue %s has %d shards", of, entry.Shards)
	}
	keys := a.db.Keys.Shard(of, layout, index)
	if _, ok := keys.Types()[key]; !ok {
		return "a shard has no such key"
	}
	return ""
}
