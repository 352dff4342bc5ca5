package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Follow-ups that wait in a shard, in the form of lua/lib/send_on.lua.

// outgoingEntries is how many follow-ups a request reads. Each may have a large payload.
const outgoingEntries = 20

// checkOutgoing checks the follow-ups that wait in a shard, and the number of the last one. Nothing changes a follow-up, so it
// needs no second look.
func (a *auditor) checkOutgoing(ctx context.Context, s *protocol.Shard) error {
	const what = "read follow-ups"
	newest, err := s.DB().ReadAtomic(ctx, what, redisdb.Cmd{"XREVRANGE", s.Keys().Out, "+", "-", "COUNT", 1}, redisdb.Cmd{"HGET", s.Keys().Count, "out"})
	if err != nil || len(redisdb.List(newest[0])) == 0 {
		return err
	}
	last, from := redisdb.Text(redisdb.List(redisdb.List(newest[0])[0])[0]), "-"
	var found []Fault
	for {
		reply, err := s.DB().Do(ctx, what, "XRANGE", s.Keys().Out, from, last, "COUNT", outgoingEntries)
		if err != nil {
			return err
		}
		page := redisdb.List(reply)
		for _, entry := range page {
			parts := redisdb.List(entry)
			id := redisdb.Text(parts[0])
			from = "(" + id
			if err := judgeOutgoing(id, redisdb.Map(parts[1])); err != nil {
				what := fmt.Sprintf("follow-up %s, which waits, cannot be delivered: %v", id, err)
				found = append(found, Fault{Kind: FollowUpDamaged, Queue: s.Queue, Shard: s.Index, What: what, within: id, record: []byte(what)})
			}
		}
		if len(page) < outgoingEntries {
			break
		}
	}
	said := redisdb.Text(newest[1])
	if n, err := strconv.ParseUint(said, 10, 64); len(found) == 0 && (err != nil || n < parseStreamID(last).ms) {
		what := fmt.Sprintf("the counter out is %q, but follow-up %s waits", said, last)
		found = append(found, Fault{Kind: FollowUpNumber, Queue: s.Queue, Shard: s.Index, What: what})
	}
	a.addShardFaults(found)
	return nil
}

// judgeOutgoing returns what is wrong with a follow-up.
func judgeOutgoing(id string, fields map[string]string) error {
	number, rest, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil || n < 1 || n >= 1<<53: // scripts could not count on
		return fmt.Errorf("its number is %s and must be from 1 to 2^53", number)
	case rest != "0":
		return fmt.Errorf("its number is %s, and must be above that of the follow-up before it", number)
	}
	for _, name := range []string{"q", "i", "p", "s", "a", "e"} {
		if _, ok := fields[name]; !ok {
			return fmt.Errorf("it has no field %s", name)
		}
	}
	if err := protocol.CheckName("queue", fields["q"]); err != nil {
		return err
	}
	if fields["i"] == "" {
		return errors.New("its id must not be empty")
	}
	if score, err := strconv.ParseFloat(fields["s"], 64); fields["s"] != "" && (err != nil || math.IsNaN(score) || math.IsInf(score, 0)) {
		return fmt.Errorf("its score is %.40q and must be a number, or empty", fields["s"])
	}
	if _, err := strconv.ParseInt(fields["a"], 10, 64); fields["a"] != "" && err != nil {
		return fmt.Errorf("its due time is %.40q and must be a number of microseconds, or empty", fields["a"])
	}
	return nil
}
