package audit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	verifyIDs = 50 // ids of a script, which copies their records
	// verifyEntries is how many entries of ready lists a script searches, which takes about a
	// millisecond. A longer list is searched for a single id at a time.
	verifyEntries = 100_000
)

// verifySuspects reads each id that a sweep suspects again, atomically.
func (a *auditor) verifySuspects(ctx context.Context, s *protocol.Shard, v *snapshot) (found []Fault, err error) {
	suspected := map[string][]FaultKind{}
	var ids []string
	for id, t := range v.ids {
		kinds := t.faultKinds()
		if len(kinds)+len(t.broken) > 0 || t.record.form == 's' || t.parked.form == 's' || t.dead.form == 's' {
			suspected[id] = kinds
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var open []string
	for few := range slices.Chunk(ids, verifyIDs) {
		facts, err := readFacts(ctx, s, few, false)
		if err != nil {
			return nil, err
		}
		for _, t := range facts {
			sure, maybe := t.weighFaults()
			if slices.ContainsFunc(suspected[t.id], func(k FaultKind) bool { return slices.Contains(maybe, k) && !slices.Contains(sure, k) }) {
				open = append(open, t.id)
				continue
			}
			t.ready = 0
			found = a.addVerified(ctx, found, s, t, v.ids[t.id], sure)
		}
	}
	return a.verifyInReady(ctx, found, s, v, open)
}

// verifyInReady searches the ready list for ids, which takes time in proportion to its length.
func (a *auditor) verifyInReady(ctx context.Context, found []Fault, s *protocol.Shard, v *snapshot, ids []string) ([]Fault, error) {
	reply, err := s.DB().Do(ctx, "count "+s.String(), "LLEN", s.Keys().Ready)
	if err != nil {
		return nil, err
	}
	size := redisdb.Int(reply)
	several := max(1, min(verifyIDs, verifyEntries/int(size+1)))
	for few := range slices.Chunk(ids, several) {
		if len(found) >= a.cfg.Most {
			a.out.More += len(few) // not verified, and more likely faults than not
			continue
		}
		began := time.Now()
		facts, err := readFacts(ctx, s, few, true)
		if err != nil {
			return nil, err
		}
		for _, t := range facts {
			found = a.addVerified(ctx, found, s, t, v.ids[t.id], t.faultKinds())
		}
		if err := restAfter(ctx, time.Since(began)); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// restAfter leaves Redis to other clients for a while after a script that took long.
func restAfter(ctx context.Context, took time.Duration) error {
	if took < 2*time.Millisecond {
		return nil
	}
	timer := time.NewTimer(min(3*took, time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// addVerified adds the verified faults of an id. It reads a record that could not be decoded again,
// as a whole.
func (a *auditor) addVerified(ctx context.Context, found []Fault, s *protocol.Shard, t, swept *idFacts, sure []FaultKind) []Fault {
	for _, v := range t.findFaults() {
		if slices.Contains(sure, v.kind) {
			found = append(found, Fault{Kind: v.kind, Queue: s.Queue, Shard: s.Index, ID: t.id, What: v.what})
		}
	}
	for _, b := range swept.broken {
		key := map[string]string{"jobs": s.Keys().Jobs, "parked": s.Keys().Parked, "morgue": s.Keys().Morgue}[b.within]
		reply, err := s.DB().Do(ctx, "read a record", "HGET", key, t.id)
		record := redisdb.Text(reply)
		if reply == nil || err != nil || !isUnreadable(t.id, record) || b.within == "jobs" && record == "x" {
			continue
		}
		if packed.IsLater(record) {
			found = append(found, Fault{Kind: LaterRecord, Queue: s.Queue, Shard: s.Index, ID: t.id,
				What: fmt.Sprintf("its record in %s has form %q of a later release; audit it with the command of that release", b.within, record[0])})
			continue
		}
		found = append(found, Fault{Kind: DamagedRecord, Queue: s.Queue, Shard: s.Index, ID: t.id,
			What: fmt.Sprintf("its record in %s cannot be read: %.40q", b.within, record), record: []byte(record), within: b.within})
	}
	return found
}

// factsValues is how many values lua/audit.lua answers per id.
const factsValues = 20

// readFacts reads where ids are, all at one instant.
func readFacts(ctx context.Context, s *protocol.Shard, ids []string, ready bool) ([]*idFacts, error) {
	args := []any{0}
	if ready {
		args[0] = 1
	}
	for _, id := range ids {
		args = append(args, id)
	}
	reply, err := s.Run(ctx, s.DB().Scripts.Audit, args...)
	if err != nil {
		return nil, err
	}
	flat, ok := reply.([]any)
	if !ok || len(flat) != factsValues*len(ids) {
		return nil, fmt.Errorf("audit answered %d values for %d ids", len(flat), len(ids))
	}
	facts := make([]*idFacts, len(ids))
	for i, id := range ids {
		facts[i] = factsOf(id, flat[factsValues*i:factsValues*(i+1)])
	}
	return facts, nil
}

// factsOf decodes the answer of lua/audit.lua for an id.
func factsOf(id string, r []any) *idFacts {
	text := func(i int) string { v, _ := r[i].(string); return v }
	count := func(i int) int { v, _ := r[i].(int64); return int(v) }
	return &idFacts{
		id: id, record: headerOf(text(0)), parked: headerOf(text(1)), dead: headerOf(text(2)),
		due: placeOf(text(3)), retry: placeOf(text(4)), blocked: placeOf(text(5)), deadPlace: placeOf(text(6)),
		flight: count(7), suspects: count(8), crashes: text(9) != "", ready: count(10),
		spilled: count(11), spilledDead: count(12), stale: count(13) > 0, late: count(14) > 0,
		state: count(15) > 0, dated: text(16) != "", noted: count(17) > 0, postponed: placeOf(text(18)), urgent: placeOf(text(19)),
	}
}

// placeOf parses a score. "" is no place.
func placeOf(text string) place {
	if text == "" {
		return place{}
	}
	at, _ := strconv.ParseFloat(text, 64)
	return place{in: true, at: int64(at)}
}

// The counters of a shard.

// sum is a counter and the hash whose fields it counts. A script that changes the counter changes
// the hash in the same step. So it is enough to watch the hash.
type sum struct {
	kind        FaultKind
	field, hash string
	what        string
	each        func(record string) int
}

func sumsOf(s *protocol.Shard) []sum {
	return []sum{
		{TombCount, "tombs", s.Keys().Jobs, "marks of deleted jobs", func(record string) int {
			if record == "x" {
				return 1
			}
			return 0
		}},
		{MorgueCount, "morgue", s.Keys().Morgue, "payloads in the morgue", func(record string) int { return headerOf(record).n }},
	}
}

// checkSums checks the counters. If the sweep found the same number, the counter is right.
// Otherwise it counts again while nothing changes.
func (a *auditor) checkSums(ctx context.Context, s *protocol.Shard, v *snapshot) error {
	for i, seen := range []int{v.tombs, v.dead} {
		one := sumsOf(s)[i]
		if one.kind == MorgueCount && v.deadBroken {
			continue // the payloads of a damaged record cannot be counted
		}
		reply, err := s.DB().Do(ctx, "read counters of "+s.String(), "HGET", s.Keys().Count, one.field)
		if err != nil {
			return err
		}
		text := redisdb.Text(reply)
		if n, err := strconv.Atoi(text); err == nil && n == seen || text == "" && seen == 0 {
			continue
		}
		counted, said, settled, err := recountSum(ctx, s, one, false)
		if err != nil {
			return err
		}
		switch {
		case !settled:
			a.out.Unsettled = append(a.out.Unsettled, fmt.Sprintf("shard %s: %s", s, one.what))
		case said != strconv.Itoa(counted) && (said != "" || counted != 0):
			a.addFaults(Fault{Kind: one.kind, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the counter %s is %q, but there are %d %s", one.field, said, counted, one.what)})
		}
	}
	return nil
}

// recountTries is how often to count a sum that changes meanwhile.
const recountTries = 10

// recountSum counts a sum while its hash does not change. If mend is true it also corrects the
// counter.
func recountSum(ctx context.Context, s *protocol.Shard, one sum, mend bool) (counted int, said string, settled bool, err error) {
	for range recountTries {
		_, unchanged, err := s.DB().IfUnchanged(ctx, "count "+s.String(), one.hash, func(do func(args ...any) (any, error)) ([]redisdb.Cmd, error) {
			counted = 0
			seen := map[string]bool{} // a scan may return a field twice
			err := scanKey(do, "HSCAN", one.hash, func(flat []string) error {
				for i := 0; i+1 < len(flat); i += 2 {
					if n := one.each(flat[i+1]); n != 0 && flat[i] != "" && !seen[flat[i]] {
						seen[flat[i]] = true
						counted += n
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			reply, err := do("HGET", s.Keys().Count, one.field)
			if said = redisdb.Text(reply); err != nil || !mend {
				return nil, err
			}
			return []redisdb.Cmd{{"HSET", s.Keys().Count, one.field, counted}}, nil
		})
		if err != nil {
			return counted, "", false, err
		}
		if unchanged {
			return counted, said, true, nil
		}
	}
	return 0, "", false, nil
}

// checkClaim checks the fields of the claim against the flight list, both read at one instant.
func (a *auditor) checkClaim(ctx context.Context, s *protocol.Shard) error {
	replies, err := s.DB().ReadAtomic(ctx, "read the claim of "+s.String(), redisdb.Cmd{"HGETALL", s.Keys().Claim}, redisdb.Cmd{"LLEN", s.Keys().Flight})
	if err != nil {
		return err
	}
	fields := redisdb.Map(replies[0])
	if holder := fields["instance"]; holder != "" {
		a.holders[holder] = append(a.holders[holder], s)
	}
	for _, v := range judgeClaim(fields, int(redisdb.Int(replies[1]))) {
		a.addFaults(Fault{Kind: v.kind, Queue: s.Queue, Shard: s.Index, What: v.what})
	}
	return nil
}
