package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Sums of a shard: counters, flights, payloads of crowded ids.

// sum is a counter and what it counts, all in one hash, so that watching the hash is
// enough: whoever changes the counter changes the hash.
type sum struct {
	kind        FaultKind
	field, hash string
	what        string
	each        func(record string) int
}

func (s *Shard) sums() []sum {
	return []sum{
		{TombCount, "tombs", s.keys.Jobs, "marks of deleted jobs", func(record string) int {
			if record == "x" {
				return 1
			}
			return 0
		}},
		{MorgueCount, "morgue", s.keys.Morgue, "payloads in the morgue", func(record string) int { return headlineOf(record).n }},
	}
}

// sums checks the counters. Where the sweep gives the same sum, that is enough; else it is
// counted again while nothing changes.
func (a *auditor) sums(ctx context.Context, s *Shard, v *sight) error {
	for i, seen := range []int{v.tombs, v.dead} {
		one := s.sums()[i]
		if one.kind == MorgueCount && v.deadBroken {
			continue // what a damaged record holds nobody can count
		}
		reply, err := s.c.db.Do(ctx, "read counters of "+s.String(), "HGET", s.keys.Count, one.field)
		if err != nil {
			return err
		}
		text := redisdb.Text(reply)
		if n, err := strconv.Atoi(text); err == nil && n == seen || text == "" && seen == 0 {
			continue
		}
		counted, said, settled, err := s.recount(ctx, one, false)
		if err != nil {
			return err
		}
		switch {
		case !settled:
			a.out.Unsettled = append(a.out.Unsettled, fmt.Sprintf("shard %s: %s", s, one.what))
		case said != strconv.Itoa(counted) && (said != "" || counted != 0):
			a.add(Fault{Kind: one.kind, Queue: s.Queue, Shard: s.Index, What: fmt.Sprintf("the counter %s says %q, there are %d %s", one.field, said, counted, one.what)})
		}
	}
	return nil
}

// recountTries is how often a sum is counted that changes meanwhile.
const recountTries = 10

// recount counts a sum while its hash does not change, and puts the counter right if asked.
func (s *Shard) recount(ctx context.Context, one sum, mend bool) (counted int, said string, settled bool, err error) {
	for range recountTries {
		replies, unchanged, err := s.c.db.IfUnchanged(ctx, "count "+s.String(), one.hash, func(do func(args ...any) (any, error)) ([]redisdb.Cmd, error) {
			counted = 0
			seen := map[string]bool{} // a scan may show a field twice
			err := s.scan(do, "HSCAN", one.hash, func(flat []string) error {
				for i := 0; i+1 < len(flat); i += 2 {
					if n := one.each(flat[i+1]); n != 0 && flat[i] != "" && !seen[flat[i]] {
						seen[flat[i]] = true
						counted += n
					}
				}
				return nil
			})
			cmds := []redisdb.Cmd{{"HGET", s.keys.Count, one.field}}
			if mend {
				cmds = append(cmds, redisdb.Cmd{"HSET", s.keys.Count, one.field, counted})
			}
			return cmds, err
		})
		if err != nil {
			return counted, "", false, err
		}
		if unchanged {
			return counted, redisdb.Text(replies[0]), true, nil
		}
	}
	return 0, "", false, nil
}

// claim checks the fields of the claim against the flight list, read at one instant.
func (a *auditor) claim(ctx context.Context, s *Shard) error {
	replies, err := s.c.db.Atomic(ctx, "read the claim of "+s.String(), redisdb.Cmd{"HGETALL", s.keys.Claim}, redisdb.Cmd{"LLEN", s.keys.Flight})
	if err != nil {
		return err
	}
	fields := redisdb.Map(replies[0])
	if holder := fields["instance"]; holder != "" {
		a.holders[holder] = append(a.holders[holder], s)
	}
	for _, v := range judgeClaim(fields, int(redisdb.Int(replies[1]))) {
		a.add(Fault{Kind: v.kind, Queue: s.Queue, Shard: s.Index, What: v.what})
	}
	return nil
}

// soundFence reports whether the fields of a claim lead to a next one.
func soundFence(claim map[string]string) bool {
	text, ok := claim["fence"]
	if !ok && claim["instance"] == "" {
		return true // nobody ever had it
	}
	fence, err := strconv.ParseInt(text, 10, 64)
	// Beyond 2^53 the scripts could not add 1, and the fence would no longer grow.
	return err == nil && fence >= 1 && fence < 1<<53
}

// judgeClaim says what is wrong with a claim and its flights.
func judgeClaim(claim map[string]string, flying int) (found []finding) {
	add := func(kind FaultKind, format string, args ...any) {
		found = append(found, finding{kind, fmt.Sprintf(format, args...)})
	}
	if !soundFence(claim) {
		add(ClaimDamaged, "the fence is %q, want a number from 1 to 2^53: no node can claim the shard", claim["fence"])
	}
	last, _ := strconv.ParseInt(claim["pop"], 10, 64)
	open := 0
	for _, field := range slices.Sorted(maps.Keys(claim)) {
		text, ok := strings.CutPrefix(field, "#")
		if !ok {
			continue
		}
		number, err1 := strconv.ParseInt(text, 10, 64)
		n, err2 := strconv.Atoi(claim[field])
		if err1 != nil || err2 != nil || n < 1 || claim["instance"] != "" && number > last {
			add(ClaimDamaged, "flight %q has %q ids, and the last pop was %d", text, claim[field], last)
			continue
		}
		open += n
	}
	switch {
	case claim["instance"] == "" && (flying > 0 || open > 0):
		add(FlightUnowned, "%d ids are in flight, and nobody owns the shard", flying)
	case open != flying:
		add(FlightCount, "the claim counts %d ids in flight, there are %d; the next claim or release puts it right: drain the node", open, flying)
	}
	return found
}
