package queue

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// load reads the records of ids from a hash, their spilled payloads included. Ids
// without one are left out.
func (s *Shard) load(ctx context.Context, hash, space string, ids []string) ([]Listed, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	reply, err := s.c.db.Do(ctx, "read jobs of "+s.String(), withIDs([]any{"HMGET", hash}, ids)...)
	if err != nil {
		return nil, err
	}
	records := redisdb.List(reply)
	jobs := make([]Listed, 0, len(ids))
	for i, id := range ids {
		record, ok := records[i].(string)
		if !ok || record == "x" {
			continue
		}
		job, _, err := packed.Decode(id, record, nil)
		if err != nil {
			jobs = append(jobs, Listed{Shard: s.Index, Job: lowkiq.Job{ID: id}}.damaged(record))
			continue
		}
		if record[0] == 's' {
			if job.Payloads, err = s.spilled(ctx, space, id); err != nil {
				return nil, err
			}
		}
		jobs = append(jobs, Listed{Job: job, Shard: s.Index})
	}
	return jobs, nil
}

// spilled reads the payloads of a crowded id; see lua/lib/spill.lua.
func (s *Shard) spilled(ctx context.Context, space, id string) ([]lowkiq.Payload, error) {
	prefix := space + strconv.Itoa(len(id)) + ":" + id
	from := "[" + prefix + ":"
	var payloads []lowkiq.Payload
	for {
		reply, err := s.c.db.Do(ctx, "read payloads of "+s.String(), "ZRANGEBYLEX", s.keys.Spill, from, "("+prefix+";", "LIMIT", 0, 1000)
		if err != nil {
			return nil, err
		}
		members := redisdb.Texts(reply)
		if len(members) == 0 {
			return payloads, nil
		}
		for _, member := range members {
			if e, ok := packed.ParseSpill(member, true); ok {
				payloads = append(payloads, lowkiq.Payload{Score: packed.KeyScore(e.Key), Data: []byte(e.Payload)})
			}
		}
		from = "(" + members[len(members)-1]
	}
}

// flightAt finds the flight to which a place in the flight list belongs; see
// lua/lib/take_out.lua. It is 0 if the claim's fields know none.
func flightAt(claim map[string]string, place int64) int64 {
	sizes := map[int64]int64{}
	for field, value := range claim {
		if number, ok := strings.CutPrefix(field, "#"); ok {
			n, _ := strconv.ParseInt(number, 10, 64)
			sizes[n], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(sizes)) {
		if place -= sizes[n]; place < 0 {
			return n
		}
	}
	return 0
}

// flightSince is when a flight was popped, zero if the claim does not say.
func flightSince(claim map[string]string, flight int64) time.Time {
	us, err := strconv.ParseInt(claim["@"+strconv.FormatInt(flight, 10)], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
