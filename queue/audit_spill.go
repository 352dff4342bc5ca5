package queue

import (
	"context"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/packed"
)

// Payloads of crowded ids: each is a member of spill and a field of spillx, and a crowded
// record counts it (lua/lib/spill.lua).

// spillFaults are the answers of lua/audit_spill.lua.
var spillFaults = map[byte]string{
	'1': "a payload in the spill has no score",
	'2': "a payload in the spill has a score and no place",
	'3': "a payload in the spill belongs to no record",
}

// spill looks at all entries, some at a time; each look is atomic.
func (a *auditor) spill(ctx context.Context, s *Shard) error {
	found := map[string]string{}
	err := s.scan(s.send(ctx), "HSCAN", s.keys.Spillx, func(flat []string) error {
		return a.spillPart(ctx, s, evens(flat), false, found)
	})
	if err != nil {
		return err
	}
	err = s.scan(s.send(ctx), "ZSCAN", s.keys.Spill, func(flat []string) error {
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
func (a *auditor) spillPart(ctx context.Context, s *Shard, names []string, placed bool, found map[string]string) error {
	var part []packed.Spilled
	bytes := 0
	flush := func() error {
		err := s.judgeSpill(ctx, part, found)
		part, bytes = part[:0], 0
		return err
	}
	for _, name := range names {
		e, ok := packed.ParseSpill(name, placed)
		if !ok {
			found[""] = fmt.Sprintf("the spill has an entry that cannot be read: %.40q", name)
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

func (s *Shard) judgeSpill(ctx context.Context, part []packed.Spilled, found map[string]string) error {
	if len(part) == 0 {
		return nil
	}
	args := make([]any, 0, 4*len(part))
	for _, e := range part {
		args = append(args, e.Space, e.ID, e.Key, e.Payload)
	}
	reply, err := s.c.run(ctx, s.c.db.Scripts.AuditSpill, s.keys.ForSpill(), args...)
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
