// Package audit checks whether the keys in Redis agree with each other, and repairs them.
//
// [Run] reads a shard in pieces while nodes and producers continue. It reads everything that looks
// wrong a second time, atomically, and only then reports a fault (lua/audit.lua). So a busy queue
// has no false faults. [Repair] repairs a single fault.
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
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// FaultKind is the kind of a fault.
type FaultKind string

// The kinds of faults. Faults of an id:
const (
	DamagedRecord    FaultKind = "damaged-record"    // its record cannot be read
	LaterRecord      FaultKind = "later-record"      // its record has the form of a later release, which only that release can repair
	NoRecord         FaultKind = "no-record"         // it is in a list and has no record
	NoEntry          FaultKind = "no-entry"          // it has a record and is in no list, so it would never run
	TwoPlaces        FaultKind = "two-places"        // it is in two lists
	LoneTomb         FaultKind = "lone-tomb"         // the mark of a deleted job is left over
	StaleMark        FaultKind = "stale-mark"        // a mark wrongly makes workers skip its entry in ready
	UrgentMark       FaultKind = "urgent-mark"       // it is marked as urgent and has no job
	LateMark         FaultKind = "late-mark"         // it is wrongly counted, or not counted, as failed and due
	PostponedMark    FaultKind = "postponed-mark"    // it is wrongly marked, or not marked, as postponed
	WrongTime        FaultKind = "wrong-time"        // its time in a list differs from the time in its record
	ParkedAlone      FaultKind = "parked-alone"      // payloads that were pushed during its flight were left behind
	SuspectUncounted FaultKind = "suspect-uncounted" // it is in quarantine and its crashes are unknown
	CrashLeft        FaultKind = "crash-left"        // its crashes are counted although it is not in quarantine
	DeadUnlisted     FaultKind = "dead-unlisted"     // it is in the morgue and not in its list
	DeadUnrecorded   FaultKind = "dead-unrecorded"   // it is in the morgue's list and not in the morgue
	SpillCount       FaultKind = "spill-count"       // its record counts more or fewer payloads than the spill has
	SpillStray       FaultKind = "spill-stray"       // one of its payloads belongs to no record
	StateUndated     FaultKind = "state-undated"     // the time of its state is missing, so it would be kept for ever
	StateLeft        FaultKind = "state-left"        // it is listed with a state and has none
	NoteLeft         FaultKind = "note-left"         // it has progress and is not in flight
)

// Faults of a shard:
const (
	WrongType       FaultKind = "wrong-type"        // a key has another type in Redis
	ClaimDamaged    FaultKind = "claim-damaged"     // the fields of the claim are impossible
	ClaimUnknown    FaultKind = "claim-unknown"     // the holder of the claim has no lease and is not in the index
	FlightCount     FaultKind = "flight-count"      // the claim counts more or fewer ids in flight than there are
	FlightUnowned   FaultKind = "flight-unowned"    // ids are in flight in a shard without an owner
	TombCount       FaultKind = "tomb-count"        // the counter of tombstones is wrong
	MorgueCount     FaultKind = "morgue-count"      // the counter of the morgue's payloads is wrong
	JournalEntry    FaultKind = "journal-entry"     // lines of its journal cannot be read, so no reader gets past them
	JournalCount    FaultKind = "journal-count"     // the counter of its journal's lines is wrong, so too many or too few are kept
	FollowUpDamaged FaultKind = "follow-up-damaged" // a follow-up that waits can never be delivered, and others may wait behind it
	FollowUpNumber  FaultKind = "follow-up-number"  // a follow-up that waits is above the last number, so Redis may refuse the next one
)

// Faults of the cluster:
const (
	RegistryDamaged  FaultKind = "registry-damaged"  // a queue's entry cannot be read
	RecordDamaged    FaultKind = "record-damaged"    // the cluster record or the leader's mark cannot be read
	RulesDamaged     FaultKind = "rules-damaged"     // rules that were set at run time cannot be read
	RecurringDamaged FaultKind = "recurring-damaged" // a recurring entry cannot be read, so it is not pushed
	OrphanKey        FaultKind = "orphan-key"        // a key belongs to no registered queue
)

// repairs describes what a repair does about a kind of fault. A person must decide about the other
// kinds.
var repairs = map[FaultKind]string{
	DamagedRecord:    "move the record, as it is, to the shard's hash aside",
	NoRecord:         "take the id out of the list",
	NoEntry:          "let the job wait for the time its record says",
	TwoPlaces:        "keep one place: flight, quarantine, blocked, else what the record says",
	LoneTomb:         "remove the mark",
	StaleMark:        "remove the mark",
	UrgentMark:       "remove the mark",
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
	FollowUpNumber:   "count on from the last follow-up that waits",
	FollowUpDamaged:  "move the follow-up, with what is wrong, to the shard's hash aside",
}

// Fault is a fault.
type Fault struct {
	Kind   FaultKind
	Queue  string // "" for a fault of the cluster
	Shard  int    // -1 if the fault is not in a shard
	ID     string // "" if the fault is not about an id
	What   string // what is wrong, for people
	Repair string // what a repair would do; "" if a person must decide

	record []byte // a damaged record as it was read; what is wrong with a follow-up
	within string // where a damaged record is: jobs, parked or morgue; the id of a journal entry or a follow-up
}

// String returns the fault on a single line.
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

// Config selects what to audit.
type Config struct {
	Queues   []string                // default: all registered queues
	Orphans  bool                    // search all keys of the cluster for keys that belong to nothing
	Most     int                     // maximum number of faults to list per shard. Default 1,000
	Progress func(done, total int64) // called now and then with numbers of ids
}

// Report is the result of an audit.
type Report struct {
	Queues, Shards int
	Jobs           int64 // ids that wait or are in flight
	Aside          int64 // records that were moved aside by repairs
	// Gone lists the instances of the index without leases. They are no faults. Nodes need them to
	// know how long an instance has been dead, and forget each an hour or two after its death, as
	// long as any node is up.
	Gone      []string
	Faults    []Fault
	More      int      // number of faults beyond Config.Most
	Unsettled []string // counters that could not be checked because they changed all the time
}

// auditor is the state of an audit.
type auditor struct {
	c    *protocol.Client
	db   *redisdb.DB
	cfg  Config
	out  *Report
	done int64
	jobs int64
	// holders has the claimed shards of each instance.
	holders map[string][]*protocol.Shard
}

// Run audits everything that is kept in Redis, and changes nothing. It reads registered queues
// only. With cfg.Orphans it also finds the keys of other queues.
func Run(ctx context.Context, c *protocol.Client, cfg Config) (Report, error) {
	if cfg.Most <= 0 {
		cfg.Most = 1000
	}
	a := &auditor{c: c, db: c.DB(), cfg: cfg, out: &Report{}, holders: map[string][]*protocol.Shard{}}
	queues, err := a.readRegistry(ctx)
	if err != nil {
		return *a.out, err
	}
	if err := a.countJobs(ctx, queues); err != nil {
		return *a.out, err
	}
	for _, q := range queues {
		a.out.Queues++
		for _, s := range q.All() {
			if err := a.auditShard(ctx, s); err != nil {
				return *a.out, fmt.Errorf("audit of shard %s: %w", s, err)
			}
		}
	}
	return *a.out, a.auditCluster(ctx)
}

// countJobs counts all jobs, which Config.Progress reports as the total.
func (a *auditor) countJobs(ctx context.Context, queues []*protocol.Queue) error {
	for _, q := range queues {
		var cmds []redisdb.Cmd
		for _, s := range q.All() {
			cmds = append(cmds, redisdb.Cmd{"HLEN", s.Keys().Jobs})
		}
		replies, _ := a.db.Pipeline(ctx, "count jobs", cmds...) //nolint:errcheck // a key of a wrong type is reported later
		for _, reply := range replies {
			a.jobs += redisdb.Int(reply)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (a *auditor) reportProgress(n int) {
	a.done += int64(n)
	if a.cfg.Progress != nil {
		a.cfg.Progress(a.done, max(a.done, a.jobs))
	}
}

func (a *auditor) addFaults(faults ...Fault) {
	for i := range faults {
		faults[i].Repair = repairs[faults[i].Kind]
	}
	a.out.Faults = append(a.out.Faults, faults...)
}

// auditShard audits a shard. It checks types first, because nothing else of a wrong type can be
// read.
func (a *auditor) auditShard(ctx context.Context, s *protocol.Shard) error {
	a.out.Shards++
	if frozen, err := a.isFrozen(ctx, s); err != nil || frozen {
		return err
	}
	right, err := a.checkTypes(ctx, s)
	if err != nil || !right {
		return err
	}
	if err := a.checkClaim(ctx, s); err != nil {
		return err
	}
	seen, err := a.sweepShard(ctx, s)
	if err != nil {
		return err
	}
	found, err := a.verifySuspects(ctx, s, seen)
	if err != nil {
		return err
	}
	a.addShardFaults(found)
	if err := a.checkSpill(ctx, s); err != nil {
		return err
	}
	if err := a.checkJournal(ctx, s); err != nil {
		return err
	}
	if err := a.checkOutgoing(ctx, s); err != nil {
		return err
	}
	return a.checkSums(ctx, s, seen)
}

// addShardFaults adds the faults of a shard, up to the maximum.
func (a *auditor) addShardFaults(found []Fault) {
	slices.SortStableFunc(found, func(x, y Fault) int { return strings.Compare(x.ID, y.ID) })
	n := min(len(found), a.cfg.Most)
	a.addFaults(found[:n]...)
	a.out.More += len(found) - n
}

// checkTypes checks the types of a shard's keys.
func (a *auditor) checkTypes(ctx context.Context, s *protocol.Shard) (right bool, err error) {
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
			a.addFaults(Fault{Kind: WrongType, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("key %s is a %s, want a %s; the rest of the shard was not checked", key, got, types[key])})
		}
	}
	if !right {
		return false, nil
	}
	a.out.Aside += redisdb.Int(replies[len(keys)])
	return true, err
}

// The cluster's own keys: the registry, the index of instances, the cluster record, stray keys.

// readRegistry reads the registry's entries one by one and returns the queues to audit.
func (a *auditor) readRegistry(ctx context.Context) (queues []*protocol.Queue, err error) {
	reply, err := a.db.Do(ctx, "read the queue registry", "HGETALL", a.db.Keys.Queues())
	if err != nil {
		return nil, err
	}
	raw := redisdb.Map(reply)
	for name, text := range raw {
		if entry, ok := parseEntry(text); ok && entry.Removed {
			delete(raw, name)
		}
	}
	for _, name := range a.cfg.Queues {
		if _, ok := raw[name]; !ok {
			return nil, fmt.Errorf("%w %q%s", lowkiq.ErrUnknownQueue, name, suggest.Among(name, slices.Sorted(maps.Keys(raw))))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if len(a.cfg.Queues) > 0 && !slices.Contains(a.cfg.Queues, name) {
			continue
		}
		err := protocol.CheckName("queue", name)
		var q *protocol.Queue
		if err == nil {
			q, err = a.c.Registry().Adopt(name, raw[name])
		}
		if entry, _ := parseEntry(raw[name]); err == nil && entry.Removing != "" {
			err = fmt.Errorf("queue %q: its deletion is not finished; repeat lowkiq-node queues delete %s", name, name)
		}
		if err != nil {
			a.addFaults(Fault{Kind: RegistryDamaged, Queue: name, Shard: -1, What: err.Error() + "; its shards were not checked"})
			continue
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// parseEntry parses an entry of the registry. ok is false for an impossible entry.
func parseEntry(text string) (entry protocol.RegistryEntry, ok bool) {
	err := json.Unmarshal([]byte(text), &entry)
	return entry, err == nil && entry.Shards > 0 && entry.Layout > 0
}

// auditCluster audits the keys that all shards share.
func (a *auditor) auditCluster(ctx context.Context) error {
	if err := a.checkRecords(ctx); err != nil {
		return err
	}
	if err := a.checkInstances(ctx); err != nil {
		return err
	}
	if err := a.checkRunTime(ctx); err != nil {
		return err
	}
	if !a.cfg.Orphans {
		return nil
	}
	return a.findOrphans(ctx)
}

func (a *auditor) checkRecords(ctx context.Context) error {
	for key, what := range map[string]string{a.db.Keys.Record(): "the cluster record", a.db.Keys.Leader(): "the leader's mark"} {
		reply, err := a.db.Do(ctx, "read "+what, "GET", key)
		value := redisdb.Bytes(reply)
		switch {
		case err != nil && strings.Contains(err.Error(), "WRONGTYPE"):
			a.addFaults(Fault{Kind: RecordDamaged, Shard: -1, What: what + " is of another type in Redis"})
		case err != nil:
			return err
		case key == a.db.Keys.Record() && value != nil && !json.Valid(value):
			a.addFaults(Fault{Kind: RecordDamaged, Shard: -1, What: fmt.Sprintf("%s cannot be read: %.40q", what, value)})
		}
	}
	return nil
}

// checkInstances compares the index, the leases and the claims. Redis does not record when a lease
// ended. So it cannot be checked whether nodes should have forgotten an instance by now.
func (a *auditor) checkInstances(ctx context.Context) error {
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
		if err := a.checkUnknown(ctx, holder); err != nil {
			return err
		}
	}
	return nil
}

// checkUnknown reads again the claims of a holder that is missing in the index. The holder may be
// new, or may have released the shards meanwhile.
func (a *auditor) checkUnknown(ctx context.Context, holder string) error {
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
			a.addFaults(Fault{Kind: ClaimUnknown, Queue: s.Queue, Shard: s.Index,
				What: fmt.Sprintf("its holder, instance %s, has no lease and is not in the index; a node that handles the queue will seize it", holder)})
		}
	}
	return nil
}

// findOrphans scans all keys of the cluster on each master.
func (a *auditor) findOrphans(ctx context.Context) error {
	reply, err := a.db.Do(ctx, "read the queue registry", "HGETALL", a.db.Keys.Queues())
	if err != nil {
		return err
	}
	entries := redisdb.Map(reply)
	var mu sync.Mutex // guards found; the masters of a Redis Cluster are asked concurrently
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
					why := a.whyOrphan(key, entries)
					if endless[key] {
						why = "it is a reply to a call and has no expiry"
					}
					if why != "" && !found[key] {
						found[key] = true
						a.addFaults(Fault{Kind: OrphanKey, Shard: -1, What: fmt.Sprintf("key %s: %s", key, why)})
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

// endlessReplies returns the replies among keys that have no expiry.
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

// replyKey is the name of the keys of replies, which expire by themselves.
const replyKey = "reply"

// isFrozen reports whether the jobs of a shard wait to be copied to another layout. Nothing changes them meanwhile, and
// they are audited in the new layout.
func (a *auditor) isFrozen(ctx context.Context, s *protocol.Shard) (bool, error) {
	reply, err := a.db.Do(ctx, "read the mark of "+s.String(), "HGET", s.Keys().Count, "last")
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // reported later
		return false, nil
	}
	return strings.HasPrefix(redisdb.Text(reply), "moved "), err
}

// whyOrphan returns why a key belongs to nothing, "" if it belongs to something.
func (a *auditor) whyOrphan(key string, registry map[string]string) string {
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
	entry, readable := parseEntry(text)
	switch {
	case !readable:
		return ""
	case name == "count" && (layout < entry.Layout || layout == entry.Layout && entry.Removed):
		return "" // the mark of a deleted queue; see queue/remove
	case entry.Removed:
		return fmt.Sprintf("queue %s is deleted", of)
	case layout != entry.Layout:
		return a.whyFormer(entry, of, layout, index, name)
	case index >= entry.Shards:
		return fmt.Sprintf("queue %s has %d shards", of, entry.Shards)
	}
	keys := a.db.Keys.Shard(of, layout, index)
	if _, ok := keys.Types()[key]; !ok {
		return "a shard has no such key"
	}
	return ""
}

// whyFormer returns why a key outside the queue's present layout belongs to nothing, "" if it belongs to something. Before
// a flip the next layout has keys. A former layout keeps the journals and the numbers of sources, and its frozen jobs until
// they are copied.
func (a *auditor) whyFormer(entry protocol.RegistryEntry, of string, layout, index int, name string) string {
	if r := entry.Reshard; r != nil && r.Layout == layout && index < r.Shards {
		return ""
	}
	for _, f := range entry.Was {
		if f.Layout != layout {
			continue
		}
		keys := a.db.Keys.Shard(of, layout, index)
		stays := slices.ContainsFunc(keys.List(), func(k redisdb.ShardKey) bool { return k.Name == name && k.Freeze == redisdb.Stays })
		switch {
		case index >= f.Shards:
			return fmt.Sprintf("layout %d of queue %s had %d shards", layout, of, f.Shards)
		case stays, name == frozenKey && f.Copying:
			return ""
		case name == frozenKey:
			return fmt.Sprintf("queue %s has left layout %d, and its jobs are copied", of, layout)
		}
		return fmt.Sprintf("queue %s has left layout %d, where no node handles jobs", of, layout)
	}
	return fmt.Sprintf("queue %s has layout %d", of, entry.Layout)
}

// frozenKey is the name of the keys of a frozen shard.
const frozenKey = "old"
