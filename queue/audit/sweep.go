package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// The sweep reads a whole shard in pieces. Its pieces are of different moments: what it
// shows is a reason to look again, and never a fault.

const (
	sweepIDs   = 1000    // most entries of one reply
	sweepBytes = 1 << 20 // of records in one reply, about
	sweepFirst = 10      // entries of the first reply: one may have a megabyte
)

// snapshot is what a sweep saw of a shard.
type snapshot struct {
	ids        map[string]*idFacts
	tombs      int
	dead       int  // payloads in the morgue
	deadBroken bool // a record of the morgue cannot be read
}

func (v *snapshot) of(id string) *idFacts {
	t := v.ids[id]
	if t == nil {
		t = &idFacts{id: id}
		v.ids[id] = t
	}
	return t
}

// sweep reads records first, then the places: what is pushed meanwhile has both.
func (a *auditor) sweep(ctx context.Context, s *queue.Shard) (*snapshot, error) {
	v := &snapshot{ids: map[string]*idFacts{}}
	steps := []func(context.Context, *queue.Shard, *snapshot) error{a.sweepJobs, a.sweepSides, a.sweepStates, a.sweepSets, a.sweepLists}
	for _, step := range steps {
		if err := step(ctx, s, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (a *auditor) sweepJobs(ctx context.Context, s *queue.Shard, v *snapshot) error {
	return scan(send(ctx, s), "HSCAN", s.Keys().Jobs, func(flat []string) error {
		for i := 0; i+1 < len(flat); i += 2 {
			if flat[i] == "" { // see the end of lua/claim.lua
				continue
			}
			t := v.of(flat[i])
			t.record = headerOf(flat[i+1])
			t.examine("jobs", flat[i+1])
			if t.record.form == 'x' {
				v.tombs++
				continue
			}
			a.out.Jobs++
		}
		a.progress(len(flat) / 2)
		return nil
	})
}

// sweepSides reads what stands beside the jobs.
func (a *auditor) sweepSides(ctx context.Context, s *queue.Shard, v *snapshot) error {
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
		err := scan(send(ctx, s), "HSCAN", side.key, func(flat []string) error {
			for i := 0; i+1 < len(flat); i += 2 {
				t := v.of(flat[i])
				side.into(t, headerOf(flat[i+1]))
				if side.records {
					t.examine(side.name, flat[i+1])
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

// sweepStates reads whose states there are.
func (a *auditor) sweepStates(ctx context.Context, s *queue.Shard, v *snapshot) error {
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
			v.of(id).state = true
		}
		if cursor = found[0]; cursor == "0" {
			return nil
		}
	}
}

func (a *auditor) sweepSets(ctx context.Context, s *queue.Shard, v *snapshot) error {
	for key, into := range map[string]func(*idFacts, place){
		s.Keys().Due:       func(t *idFacts, p place) { t.due = p },
		s.Keys().Retry:     func(t *idFacts, p place) { t.retry = p },
		s.Keys().Blocked:   func(t *idFacts, p place) { t.blocked = p },
		s.Keys().Dead:      func(t *idFacts, p place) { t.deadPlace = p },
		s.Keys().Postponed: func(t *idFacts, p place) { t.postponed = p },
		s.Keys().Statesx:   func(t *idFacts, p place) { t.dated = true },
	} {
		err := scan(send(ctx, s), "ZSCAN", key, func(flat []string) error {
			for i := 0; i+1 < len(flat); i += 2 {
				into(v.of(flat[i]), placeOf(flat[i+1]))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *auditor) sweepLists(ctx context.Context, s *queue.Shard, v *snapshot) error {
	for key, into := range map[string]func(*idFacts){
		s.Keys().Flight:   func(t *idFacts) { t.flight++ },
		s.Keys().Suspects: func(t *idFacts) { t.suspects++ },
	} {
		reply, err := s.DB().Do(ctx, "list "+s.String(), "LRANGE", key, 0, -1)
		if err != nil {
			return err
		}
		for _, id := range redisdb.Texts(reply) {
			into(v.of(id))
		}
	}
	return a.sweepReady(ctx, s, v)
}

// sweepReady reads the ready list from its end to its head, counting places from the end:
// pops and returns at the head change nothing. What is pushed behind the end shifts entries
// into the next reply again; each reply begins with the last entry of the one before, whose
// place in it tells how many.
func (a *auditor) sweepReady(ctx context.Context, s *queue.Shard, v *snapshot) error {
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
			// Without the anchor it is unknown which entries were seen before.
			if t := v.of(id); anchored || t.ready == 0 {
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

// sender sends one command.
type sender func(args ...any) (any, error)

func send(ctx context.Context, s *queue.Shard) sender {
	return func(args ...any) (any, error) { return s.DB().Do(ctx, "read "+s.String(), args...) }
}

// scan reads a hash (HSCAN) or a sorted set (ZSCAN) in replies of about a megabyte: names
// and values.
func scan(send sender, command, key string, see func(flat []string) error) error {
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

// sweepNext is how many entries to ask for next, by what the last reply had.
func sweepNext(count int64, flat []string) int64 {
	bytes := 1
	for _, text := range flat {
		bytes += len(text)
	}
	return min(max(count*sweepBytes/int64(bytes), 1), count*4, sweepIDs)
}

// examine decodes a record: whether it can be read is for it alone to say.
func (t *idFacts) examine(within, record string) {
	if within == "jobs" && record == "x" {
		return
	}
	if unreadable(t.id, record) {
		t.broken = append(t.broken, broken{within, record})
	}
}

func unreadable(id, record string) bool {
	var job lowkiq.Job
	var err error
	switch {
	case len(record) > 0 && strings.Contains("aejp", record[:1]):
		_, _, err = packed.Decode(id, record, nil)
	case len(record) > 0 && record[0] == 's':
		_, _, err = packed.DecodeHead(record, &job)
	default:
		return !headerOf(record).job()
	}
	return err != nil
}

// Payloads of crowded ids: each is a member of spill and a field of spillx, and a crowded
// record counts it (lua/lib/spill.lua).

// spillFaults are the answers of lua/audit_spill.lua.
var spillFaults = map[byte]string{
	'1': "a payload in the spill has no score",
	'2': "a payload in the spill has a score and no place",
	'3': "a payload in the spill belongs to no record",
}

// cutEnvelope is a payload that begins as one with headers and is cut short.
const cutEnvelope = "a payload in the spill cannot be read: the pop that takes it moves its piece aside"

// spill looks at all entries, some at a time; each look is atomic.
func (a *auditor) spill(ctx context.Context, s *queue.Shard) error {
	found := map[string]string{}
	err := scan(send(ctx, s), "HSCAN", s.Keys().Spillx, func(flat []string) error {
		return a.spillPart(ctx, s, evens(flat), false, found)
	})
	if err != nil {
		return err
	}
	err = scan(send(ctx, s), "ZSCAN", s.Keys().Spill, func(flat []string) error {
		return a.spillPart(ctx, s, evens(flat), true, found)
	})
	if err != nil {
		return err
	}
	var faults []Fault
	for id, what := range found {
		faults = append(faults, Fault{Kind: SpillStray, Queue: s.Queue, Shard: s.Index, ID: id, What: what})
	}
	a.addSome(faults)
	return nil
}

// evens are the names in a list of names and values.
func evens(flat []string) (names []string) {
	for i := 0; i < len(flat); i += 2 {
		names = append(names, flat[i])
	}
	return names
}

// spillPart judges entries, about a quarter of a megabyte per script.
func (a *auditor) spillPart(ctx context.Context, s *queue.Shard, names []string, placed bool, found map[string]string) error {
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

func judgeSpill(ctx context.Context, s *queue.Shard, part []packed.Spilled, found map[string]string) error {
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
