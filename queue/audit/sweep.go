package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A sweep reads a whole shard in pieces. The pieces are of different moments. So an inconsistency
// in a sweep is a reason to read the id again, and not a fault yet.

const (
	sweepIDs   = 1000    // maximum number of entries in a reply
	sweepBytes = 1 << 20 // about as many bytes of records in a reply
	sweepFirst = 10      // entries in the first reply; each may have a megabyte
)

// snapshot is the result of a sweep of a shard.
type snapshot struct {
	ids        map[string]*idFacts
	tombs      int
	dead       int  // payloads in the morgue
	deadBroken bool // a record of the morgue cannot be read
}

func (v *snapshot) factsFor(id string) *idFacts {
	t := v.ids[id]
	if t == nil {
		t = &idFacts{id: id}
		v.ids[id] = t
	}
	return t
}

// sweepShard reads records first and then the lists. A job that is pushed meanwhile is in both.
func (a *auditor) sweepShard(ctx context.Context, s *protocol.Shard) (*snapshot, error) {
	v := &snapshot{ids: map[string]*idFacts{}}
	steps := []func(context.Context, *protocol.Shard, *snapshot) error{a.sweepJobs, a.sweepSides, a.sweepStates, a.sweepSets, a.sweepLists}
	for _, step := range steps {
		if err := step(ctx, s, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (a *auditor) sweepJobs(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	return scanKey(newSender(ctx, s), "HSCAN", s.Keys().Jobs, func(flat []string) error {
		for i := 0; i+1 < len(flat); i += 2 {
			if flat[i] == "" { // see the end of lua/claim.lua
				continue
			}
			t := v.factsFor(flat[i])
			t.record = headerOf(flat[i+1])
			t.checkRecord("jobs", flat[i+1])
			if t.record.form == 'x' {
				v.tombs++
				continue
			}
			a.out.Jobs++
		}
		a.reportProgress(len(flat) / 2)
		return nil
	})
}

// sweepSides reads the hashes beside the jobs.
func (a *auditor) sweepSides(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	for _, side := range []struct {
		name, key string
		into      func(t *idFacts, h header)
		records   bool
	}{
		{"parked", s.Keys().Parked, func(t *idFacts, h header) { t.parked = h }, true},
		{"morgue", s.Keys().Morgue, func(t *idFacts, h header) { t.dead = h; v.dead += h.n }, true},
		{"crashes", s.Keys().Crashes, func(t *idFacts, h header) { t.crashes = true }, false},
		{"stale", s.Keys().Stale, func(t *idFacts, h header) { t.stale = true }, false},
		{"late", s.Keys().Late, func(t *idFacts, h header) { t.late = true }, false},
		{"progress", s.Keys().Progress, func(t *idFacts, h header) { t.noted = true }, false},
	} {
		err := scanKey(newSender(ctx, s), "HSCAN", side.key, func(flat []string) error {
			for i := 0; i+1 < len(flat); i += 2 {
				t := v.factsFor(flat[i])
				side.into(t, headerOf(flat[i+1]))
				if side.records {
					t.checkRecord(side.name, flat[i+1])
					v.deadBroken = v.deadBroken || side.name == "morgue" && len(t.broken) > 0
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sweepStates reads which ids have states.
func (a *auditor) sweepStates(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	for cursor := "0"; ; {
		reply, err := s.Run(ctx, s.DB().Scripts.AuditStates, cursor)
		if err != nil {
			return err
		}
		found := redisdb.Texts(reply)
		if len(found) == 0 {
			return fmt.Errorf("audit of states answered %v, want a cursor and ids", reply)
		}
		for _, id := range found[1:] {
			v.factsFor(id).state = true
		}
		if cursor = found[0]; cursor == "0" {
			return nil
		}
	}
}

func (a *auditor) sweepSets(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	for key, into := range map[string]func(*idFacts, place){
		s.Keys().Due:       func(t *idFacts, p place) { t.due = p },
		s.Keys().Retry:     func(t *idFacts, p place) { t.retry = p },
		s.Keys().Blocked:   func(t *idFacts, p place) { t.blocked = p },
		s.Keys().Urgent:    func(t *idFacts, p place) { t.urgent = p },
		s.Keys().Dead:      func(t *idFacts, p place) { t.deadPlace = p },
		s.Keys().Postponed: func(t *idFacts, p place) { t.postponed = p },
		s.Keys().Statesx:   func(t *idFacts, p place) { t.dated = true },
	} {
		err := scanKey(newSender(ctx, s), "ZSCAN", key, func(flat []string) error {
			for i := 0; i+1 < len(flat); i += 2 {
				into(v.factsFor(flat[i]), placeOf(flat[i+1]))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *auditor) sweepLists(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	for key, into := range map[string]func(*idFacts){
		s.Keys().Flight:   func(t *idFacts) { t.flight++ },
		s.Keys().Suspects: func(t *idFacts) { t.suspects++ },
	} {
		reply, err := s.DB().Do(ctx, "list "+s.String(), "LRANGE", key, 0, -1)
		if err != nil {
			return err
		}
		for _, id := range redisdb.Texts(reply) {
			into(v.factsFor(id))
		}
	}
	return a.sweepReady(ctx, s, v)
}

// sweepReady reads the ready list from its end to its head, with positions counted from the end. So
// pops and returns at the head change nothing. A push at the end shifts entries that were read into
// the next reply. Each reply overlaps the reply before by an entry, the anchor. The position of the
// anchor shows how many entries of the reply were read before.
func (a *auditor) sweepReady(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	anchor, first := "", true
	for last := int64(-1); ; last -= sweepIDs - 1 {
		reply, err := s.DB().Do(ctx, "list "+s.String(), "LRANGE", s.Keys().Ready, last-sweepIDs+1, last)
		if err != nil {
			return err
		}
		ids := redisdb.Texts(reply)
		fresh, anchored := ids, first
		if at := lastIndex(ids, anchor); !first && at >= 0 {
			fresh, anchored = ids[:at], true
		}
		for _, id := range fresh {
			// Without the anchor it is unknown which entries are repeated.
			if t := v.factsFor(id); anchored || t.ready == 0 {
				t.ready++
			}
		}
		if len(ids) < sweepIDs {
			return nil
		}
		anchor, first = ids[0], false
	}
}

func lastIndex(ids []string, id string) int {
	for i := len(ids) - 1; i >= 0; i-- {
		if ids[i] == id {
			return i
		}
	}
	return -1
}

// sender sends a command.
type sender func(args ...any) (any, error)

func newSender(ctx context.Context, s *protocol.Shard) sender {
	return func(args ...any) (any, error) { return s.DB().Do(ctx, "read "+s.String(), args...) }
}

// scanKey reads a hash (HSCAN) or a sorted set (ZSCAN) in replies of about a megabyte, and calls
// see with names and values.
func scanKey(send sender, command, key string, see func(flat []string) error) error {
	count := int64(sweepFirst)
	for cursor := "0"; ; {
		reply, err := send(command, key, cursor, "COUNT", count)
		if err != nil {
			return err
		}
		flat, next := redisdb.Scanned(reply)
		if err := see(flat); err != nil {
			return err
		}
		if cursor = next; cursor == "0" {
			return nil
		}
		count = sweepNext(count, flat)
	}
}

// sweepNext returns how many entries to request next, from the size of the last reply.
func sweepNext(count int64, flat []string) int64 {
	bytes := 1
	for _, text := range flat {
		bytes += len(text)
	}
	return min(max(count*sweepBytes/int64(bytes), 1), count*4, sweepIDs)
}

// checkRecord notes a record that cannot be decoded.
func (t *idFacts) checkRecord(within, record string) {
	if within == "jobs" && record == "x" {
		return
	}
	if isUnreadable(t.id, record) {
		t.broken = append(t.broken, broken{within, record})
	}
}

func isUnreadable(id, record string) bool {
	var job lowkiq.Job
	var err error
	switch {
	case len(record) > 0 && strings.Contains("aejp", record[:1]):
		_, _, err = packed.Decode(id, record, nil)
	case len(record) > 0 && record[0] == 's':
		_, _, err = packed.DecodeHead(record, &job)
	default:
		return !headerOf(record).isJob()
	}
	return err != nil
}

// Payloads of crowded ids. Each is a member of spill and a field of spillx, and the record of its
// id counts it (lua/lib/spill.lua).

// spillFaults maps the answers of lua/audit_spill.lua to texts.
var spillFaults = map[byte]string{
	'1': "a payload in the spill has no score",
	'2': "a payload in the spill has a score and no place",
	'3': "a payload in the spill belongs to no record",
}

// cutEnvelope is the fault of a payload that begins like a payload with headers and is cut off.
const cutEnvelope = "a payload in the spill cannot be read; the pop that takes it moves it aside"

// checkSpill checks all entries of the spill in parts, each part atomically.
func (a *auditor) checkSpill(ctx context.Context, s *protocol.Shard) error {
	found := map[string]string{}
	err := scanKey(newSender(ctx, s), "HSCAN", s.Keys().Spillx, func(flat []string) error {
		return a.spillPart(ctx, s, everyOther(flat), false, found)
	})
	if err != nil {
		return err
	}
	err = scanKey(newSender(ctx, s), "ZSCAN", s.Keys().Spill, func(flat []string) error {
		return a.spillPart(ctx, s, everyOther(flat), true, found)
	})
	if err != nil {
		return err
	}
	var faults []Fault
	for id, what := range found {
		faults = append(faults, Fault{Kind: SpillStray, Queue: s.Queue, Shard: s.Index, ID: id, What: what})
	}
	a.addShardFaults(faults)
	return nil
}

// everyOther returns the names in a list of names and values.
func everyOther(flat []string) (names []string) {
	for i := 0; i < len(flat); i += 2 {
		names = append(names, flat[i])
	}
	return names
}

// spillPart checks entries, about a quarter of a megabyte per script.
func (a *auditor) spillPart(ctx context.Context, s *protocol.Shard, names []string, placed bool, found map[string]string) error {
	var part []packed.Spilled
	bytes := 0
	flush := func() error {
		err := judgeSpill(ctx, s, part, found)
		part, bytes = part[:0], 0
		return err
	}
	for _, name := range names {
		e, ok := packed.ParseSpill(name, placed)
		if !ok {
			found[""] = fmt.Sprintf("the spill has an entry that cannot be read: %.40q", name)
			continue
		}
		if _, sound := envelope.Open(e.Payload); placed && !sound {
			found[e.ID] = fmt.Sprintf("%s: %.40q", cutEnvelope, e.Payload)
			continue
		}
		part = append(part, e)
		if bytes += len(name); bytes > sweepBytes/4 || len(part) >= 200 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

func judgeSpill(ctx context.Context, s *protocol.Shard, part []packed.Spilled, found map[string]string) error {
	if len(part) == 0 {
		return nil
	}
	args := make([]any, 0, 4*len(part))
	for _, e := range part {
		args = append(args, e.Space, e.ID, e.Key, e.Payload)
	}
	reply, err := s.Run(ctx, s.DB().Scripts.AuditSpill, args...)
	if err != nil {
		return err
	}
	codes, _ := reply.(string)
	for i := range min(len(codes), len(part)) {
		if what := spillFaults[codes[i]]; what != "" {
			found[part[i].ID] = fmt.Sprintf("%s: %.40q", what, part[i].Payload)
		}
	}
	return nil
}
