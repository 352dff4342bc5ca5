package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Groups put ids off, by a rule or as a handler said. When that ends, ids are made due where they wait, and ask again.

// GroupRule is the rule of groups by which ids of the shard that their groups have put off were made due last, before the claim.
func (c *Claim) GroupRule() string { return c.groupRule }

// Regroup makes ids of the shard due that their groups have put off, as another rule holds now. It returns how many those were.
func (c *Claim) Regroup(ctx context.Context, rule string) (released int, err error) {
	if err := resetGroup(ctx, c.registry.db, c.Queue, ""); err != nil {
		return 0, err
	}
	if released, err = c.Shard.release(ctx, c.keys.Postponed, 0, "group", func(string) bool { return false }); err != nil {
		return released, err
	}
	if _, err := c.Run(ctx, c.registry.db.Scripts.Regroup, c.Instance, c.fence, rule); err != nil {
		return released, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	return released, nil
}

// LetGo lets a group go on of which a handler lets none begin for some time: that is over, and its ids that were put off are due now. It reports
// whether anything waited for that. After an error it may be called again.
func (q *Queue) LetGo(ctx context.Context, group string) (stopped bool, err error) {
	db := q.registry.db
	is, err := db.Pipeline(ctx, "read a group", redisdb.Cmd{"HGET", db.Keys.Groups(q.Name), "g" + group})
	if err != nil {
		return false, err
	}
	now, err := db.Time(ctx)
	if err != nil || is[0] == nil {
		return false, err
	}
	stopped = parseGroup(group, redisdb.Text(is[0])).Till.After(now)
	if err := resetGroup(ctx, db, q.Name, group); err != nil {
		return true, err
	}
	for _, s := range q.shards {
		n, err := s.release(ctx, s.keys.Postponed, 0, "group", func(id string) bool { return !strings.HasPrefix(id, group) })
		if stopped = stopped || n > 0; err != nil {
			return stopped, err
		}
	}
	return stopped, nil
}

// resetGroup forgets when ids of a group are to ask again, and for how long a handler lets none begin; "": when ids of all groups are to.
func resetGroup(ctx context.Context, db *redisdb.DB, queue, group string) error {
	if _, err := db.Run(ctx, db.Scripts.GroupReset, []string{db.Keys.Groups(queue)}, group); err != nil {
		return fmt.Errorf("groups of queue %q: %w", queue, err)
	}
	return nil
}
