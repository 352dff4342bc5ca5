package protocol

import (
	"context"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Groups put ids off, by their rule or because a handler answered so. When that ends, the ids are made due, and ask
// again whether they may begin.

// GroupRule returns the rule that Regroup stored last in the shard before the claim. If the present rule differs,
// ids may wait by the old rule.
func (c *Claim) GroupRule() string { return c.groupRule }

// Regroup makes the ids of the shard due that their groups have put off, and returns how many. It stores the rule
// for the shard's next owner. While other nodes may follow another rule, the rule to store is "?", which equals
// no rule.
func (c *Claim) Regroup(ctx context.Context, rule string) (released int, err error) {
	if err := resetGroup(ctx, c.registry.db, c.Queue, ""); err != nil {
		return 0, err
	}
	if released, err = c.Shard.makeSetDue(ctx, c.keys.Postponed, 0, "group", func(string) bool { return false }); err != nil {
		return released, err
	}
	if _, err := c.Run(ctx, c.registry.db.Scripts.Regroup, c.Instance, c.fence, rule); err != nil {
		return released, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	return released, nil
}

// LetGo ends a handler's stop of a group. The ids that the group has put off are due now. It reports whether the
// group was stopped or ids were put off. After an error it may be called again.
func (q *Queue) LetGo(ctx context.Context, group string) (stopped bool, err error) {
	db := q.registry.db
	is, err := db.Pipeline(ctx, "read a group", redisdb.Cmd{"HGET", db.Keys.Groups(q.Name), "g" + group})
	if err != nil {
		return false, err
	}
	now, err := db.Time(ctx)
	if err != nil {
		return false, err
	}
	// Ids may wait longer than Redis keeps the group's entry, so the shards are searched in any case.
	stopped = is[0] != nil && parseGroup(group, redisdb.Text(is[0])).Till.After(now)
	if err := resetGroup(ctx, db, q.Name, group); err != nil {
		return true, err
	}
	for _, s := range q.shards {
		n, err := s.makeSetDue(ctx, s.keys.Postponed, 0, "group", func(id string) bool { return !strings.HasPrefix(id, group) })
		if stopped = stopped || n > 0; err != nil {
			return stopped, err
		}
	}
	return stopped, nil
}

// resetGroup makes Redis forget when ids of a group ask again, and until when a handler has stopped the group. With
// group "" it makes Redis forget when the ids of all groups ask again, and no stop ends.
func resetGroup(ctx context.Context, db *redisdb.DB, queue, group string) error {
	if _, err := db.Run(ctx, db.Scripts.GroupReset, []string{db.Keys.Groups(queue)}, group); err != nil {
		return fmt.Errorf("groups of queue %q: %w", queue, err)
	}
	return nil
}
