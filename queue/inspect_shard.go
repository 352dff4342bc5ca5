package queue

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// load reads the records of ids from a hash, their spilled payloads included. Ids
// without one are left out.
func (s *Shard) load(ctx context.Context, hash, space string, ids []string) ([]Listed, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	records, err := s.c.rdb.HMGet(ctx, hash, ids...).Result()
	if err != nil {
		return nil, s.c.explain("read jobs of "+s.String(), err)
	}
	jobs := make([]Listed, 0, len(ids))
	for i, id := range ids {
		record, ok := records[i].(string)
		if !ok || record == "x" {
			continue
		}
		job, _, err := decodeJob(id, record, nil)
		if err != nil {
			return nil, err
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

// spilled reads the payloads of a crowded id; see lua/spill.lua.
func (s *Shard) spilled(ctx context.Context, space, id string) ([]lowkiq.Payload, error) {
	prefix := space + strconv.Itoa(len(id)) + ":" + id + ":"
	members, err := s.c.rdb.ZRangeByLex(ctx, s.keys.spill, &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + ":"}).Result()
	if err != nil {
		return nil, s.c.explain("read payloads of "+s.String(), err)
	}
	payloads := make([]lowkiq.Payload, 0, len(members))
	for part := range slices.Chunk(members, 1000) {
		fields := make([]string, len(part))
		for i, member := range part {
			fields[i] = prefix + member[len(prefix)+12:]
		}
		values, err := s.c.rdb.HMGet(ctx, s.keys.spillx, fields...).Result()
		if err != nil {
			return nil, s.c.explain("read payloads of "+s.String(), err)
		}
		for i, value := range values {
			if text, ok := value.(string); ok && len(text) > 13 {
				score, _ := strconv.ParseFloat(text[13:], 64)
				payloads = append(payloads, lowkiq.Payload{Score: score, Data: []byte(fields[i][len(prefix):])})
			}
		}
	}
	sortPayloads(payloads)
	return payloads, nil
}

// scan walks through a hash without blocking Redis.
func (s *Shard) scan(ctx context.Context, hash string, see func(field, value string)) error {
	var cursor uint64
	for {
		flat, next, err := s.c.rdb.HScan(ctx, hash, cursor, "", 1000).Result()
		if err != nil {
			return s.c.explain("scan "+s.String(), err)
		}
		for i := 0; i+1 < len(flat); i += 2 {
			if flat[i] != "" { // see the end of lua/claim.lua
				see(flat[i], flat[i+1])
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// readyJobs reads the ready end of the range: ids on probation, then the ready list.
func (s *Shard) readyJobs(ctx context.Context, r Range) ([]Listed, error) {
	first, last := int64(0), int64(r.limit())-1
	if r.Reverse {
		first, last = -int64(r.limit()), -1
	}
	var jobs []Listed
	for _, key := range []string{s.keys.suspects, s.keys.ready} {
		ids, err := s.c.rdb.LRange(ctx, key, first, last).Result()
		if err != nil {
			return nil, s.c.explain("list "+s.String(), err)
		}
		part, err := s.load(ctx, s.keys.jobs, "w", ids)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, part...)
	}
	for i := range jobs {
		jobs[i].State = Ready
	}
	return jobs, nil
}

// timed reads jobs from a sorted set of times (us).
func (s *Shard) timed(ctx context.Context, key string, state State, r Range) ([]Listed, error) {
	by := &redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: int64(r.limit())}
	if !r.MinTime.IsZero() {
		by.Min = strconv.FormatInt(r.MinTime.UnixMicro(), 10)
	}
	if !r.MaxTime.IsZero() {
		by.Max = strconv.FormatInt(r.MaxTime.UnixMicro(), 10)
	}
	ask := s.c.rdb.ZRangeByScore
	if r.Reverse {
		ask = s.c.rdb.ZRevRangeByScore
	}
	ids, err := ask(ctx, key, by).Result()
	if err != nil {
		return nil, s.c.explain("list "+s.String(), err)
	}
	hash, space := s.keys.jobs, "w"
	if state == Dead {
		hash, space = s.keys.morgue, "m"
	}
	jobs, err := s.load(ctx, hash, space, ids)
	for i := range jobs {
		jobs[i].State = state
	}
	return jobs, err
}

// flightAt finds the flight to which a place in the flight list belongs; see
// lua/settle.lua. It is 0 if the claim's fields know none.
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

// top keeps the smallest n values.
type top struct {
	n     int
	order func(x, y string) int
	ids   []string
}

func newTop(n int, order func(x, y string) int) *top { return &top{n: n, order: order} }

func (t *top) add(id string) {
	t.ids = append(t.ids, id)
	if len(t.ids) >= 2*t.n {
		t.ids = t.list()
	}
}

func (t *top) list() []string {
	slices.SortFunc(t.ids, t.order)
	t.ids = slices.Compact(t.ids)
	return t.ids[:min(len(t.ids), t.n)]
}
