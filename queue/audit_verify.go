package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

const (
	verifyIDs = 50 // ids of one script: their records are copied
	// verifyEntries is how many entries of ready lists one script looks through: about a
	// millisecond. A longer list is looked through for one id at a time.
	verifyEntries = 100_000
)

// verify looks again, atomically, at each id that a sweep points at.
func (a *auditor) verify(ctx context.Context, s *Shard, v *sight) (found []Fault, err error) {
	suspected := map[string][]FaultKind{}
	var ids []string
	for id, t := range v.ids {
		kinds := t.kinds()
		if len(kinds)+len(t.broken) > 0 || t.record.form == 's' || t.parked.form == 's' || t.dead.form == 's' {
			suspected[id] = kinds
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var open []string
	for few := range slices.Chunk(ids, verifyIDs) {
		traces, err := s.traces(ctx, few, false)
		if err != nil {
			return nil, err
		}
		for _, t := range traces {
			sure, maybe := t.weigh()
			if slices.ContainsFunc(suspected[t.id], func(k FaultKind) bool { return slices.Contains(maybe, k) && !slices.Contains(sure, k) }) {
				open = append(open, t.id)
				continue
			}
			t.ready = 0
			found = a.judged(ctx, found, s, t, v.ids[t.id], sure)
		}
	}
	return a.verifyOpen(ctx, found, s, v, open)
}

// verifyOpen looks for ids in the ready list, which takes as long as it is.
func (a *auditor) verifyOpen(ctx context.Context, found []Fault, s *Shard, v *sight, ids []string) ([]Fault, error) {
	reply, err := s.c.db.Do(ctx, "count "+s.String(), "LLEN", s.keys.Ready)
	if err != nil {
		return nil, err
	}
	size := redisdb.Int(reply)
	several := max(1, min(verifyIDs, verifyEntries/int(size+1)))
	for few := range slices.Chunk(ids, several) {
		if len(found) >= a.cfg.Most {
			a.out.More += len(few) // not looked at, and more likely faults than not
			continue
		}
		began := time.Now()
		traces, err := s.traces(ctx, few, true)
		if err != nil {
			return nil, err
		}
		for _, t := range traces {
			found = a.judged(ctx, found, s, t, v.ids[t.id], t.kinds())
		}
		if err := breathe(ctx, time.Since(began)); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// breathe leaves Redis to others for a while after a script that took long.
func breathe(ctx context.Context, took time.Duration) error {
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

// judged adds the faults of an id that are sure. A record that could not be decoded is read again, whole.
func (a *auditor) judged(ctx context.Context, found []Fault, s *Shard, t, swept *trace, sure []FaultKind) []Fault {
	for _, v := range t.judge() {
		if slices.Contains(sure, v.kind) {
			found = append(found, Fault{Kind: v.kind, Queue: s.Queue, Shard: s.Index, ID: t.id, What: v.what})
		}
	}
	for _, b := range swept.broken {
		key := map[string]string{"jobs": s.keys.Jobs, "parked": s.keys.Parked, "morgue": s.keys.Morgue}[b.within]
		reply, err := s.c.db.Do(ctx, "read a record", "HGET", key, t.id)
		record := redisdb.Text(reply)
		if reply == nil || err != nil || !unreadable(t.id, record) || b.within == "jobs" && record == "x" {
			continue
		}
		if packed.IsLater(record) {
			found = append(found, Fault{Kind: LaterRecord, Queue: s.Queue, Shard: s.Index, ID: t.id,
				What: fmt.Sprintf("its record in %s is of form %q, of a later release: look with the command of that release", b.within, record[0])})
			continue
		}
		found = append(found, Fault{Kind: DamagedRecord, Queue: s.Queue, Shard: s.Index, ID: t.id,
			What: fmt.Sprintf("its record in %s cannot be read: %.40q", b.within, record), record: []byte(record), within: b.within})
	}
	return found
}

// traceValues is how many values lua/audit.lua answers per id.
const traceValues = 15

// traces asks where ids are, all at one instant.
func (s *Shard) traces(ctx context.Context, ids []string, ready bool) ([]*trace, error) {
	look := "0"
	if ready {
		look = "1"
	}
	reply, err := s.c.run(ctx, s.c.db.Scripts.Audit, s.keys.ForMorgue(), withIDs([]any{look}, ids)...)
	if err != nil {
		return nil, err
	}
	flat, ok := reply.([]any)
	if !ok || len(flat) != traceValues*len(ids) {
		return nil, fmt.Errorf("audit answered %d values for %d ids", len(flat), len(ids))
	}
	traces := make([]*trace, len(ids))
	for i, id := range ids {
		traces[i] = traceOf(id, flat[traceValues*i:traceValues*(i+1)])
	}
	return traces, nil
}

// traceOf reads what lua/audit.lua says of one id.
func traceOf(id string, r []any) *trace {
	text := func(i int) string { v, _ := r[i].(string); return v }
	count := func(i int) int { v, _ := r[i].(int64); return int(v) }
	return &trace{
		id: id, record: headlineOf(text(0)), parked: headlineOf(text(1)), dead: headlineOf(text(2)),
		due: placeOf(text(3)), retry: placeOf(text(4)), blocked: placeOf(text(5)), deadPlace: placeOf(text(6)),
		flight: count(7), suspects: count(8), crashes: text(9) != "", ready: count(10),
		spilled: count(11), spilledDead: count(12), stale: count(13) > 0, late: count(14) > 0,
	}
}

// placeOf reads a score; "" is no place.
func placeOf(text string) place {
	if text == "" {
		return place{}
	}
	at, _ := strconv.ParseFloat(text, 64)
	return place{in: true, at: int64(at)}
}
