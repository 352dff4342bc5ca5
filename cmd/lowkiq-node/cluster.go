package main

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

// Commands that ask any node about the cluster.

type shardsCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Only the shards of this queue."`
}

// Run prints who owns which shard.
func (c *shardsCommand) Run(with *conversation) error {
	var all []status.Shard
	if err := with.fetch("/api/v1/shards", &all); err != nil {
		return err
	}
	shown := []status.Shard{}
	for _, shard := range all {
		if c.Queue == "" || shard.Queue == c.Queue {
			shown = append(shown, shard)
		}
	}
	if c.Queue != "" && len(shown) == 0 {
		return fail(exitUsage, "unknown queue %q (known: %s)", c.Queue, strings.Join(queuesOf(all), ", "))
	}
	return with.print(shown, func() {
		with.table("QUEUE SHARD STATE LAG ASSIGNED OWNER FENCE", func(row func(string, ...any)) {
			for _, shard := range shown {
				row("%s\t%d\t%s\t%s\t%s\t%s\t%d", shard.Queue, shard.Index, shard.State, seconds(shard.Lag),
					cmp.Or(shard.Assigned, "-"), cmp.Or(shard.Owner, "-"), shard.Fence)
			}
		})
	})
}

// queuesOf are the names of the queues that shards belong to.
func queuesOf(shards []status.Shard) (names []string) {
	for _, shard := range shards {
		names = append(names, shard.Queue)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

type membersCommand struct {
	asking `embed:""`
}

// Run prints who seems alive.
func (c *membersCommand) Run(with *conversation) error {
	var members []status.Member
	return with.show("/api/v1/members", &members, func() {
		with.table("NODE STATE DRAINING ADDRESS SINCE INSTANCE", func(row func(string, ...any)) {
			for _, m := range members {
				row("%s\t%s\t%t\t%s\t%s\t%s", m.Node, m.State, m.Draining, m.Address,
					time.UnixMilli(int64(m.Since*1000)).UTC().Format(time.RFC3339), m.Instance)
			}
		})
	})
}

type planCommand struct {
	asking `embed:""`
	Add    []string `sep:"," placeholder:"NODE" help:"A node that would come, with weight 1 and handlers for every queue; may be repeated."`
	Remove []string `sep:"," placeholder:"NODE" help:"A node that would go; may be repeated."`
}

// Run prints what would move.
func (c *planCommand) Run(with *conversation) error {
	query := url.Values{}
	for name, nodes := range map[string][]string{"add": c.Add, "remove": c.Remove} {
		if len(nodes) > 0 {
			query.Set(name, strings.Join(nodes, ","))
		}
	}
	var plan web.Plan
	return with.show("/api/v1/plan?"+query.Encode(), &plan, func() {
		if len(plan.Moves) == 0 {
			with.say("nothing would move\n")
			return
		}
		with.table("QUEUE SHARD FROM TO REASON", func(row func(string, ...any)) {
			for _, m := range plan.Moves {
				row("%s\t%d\t%s\t%s\t%s", m.Queue, m.Index, cmp.Or(m.From, "-"), cmp.Or(m.To, "-"), m.Reason)
			}
		})
		with.say("\n%s would move\n", count(len(plan.Moves), "shard"))
	})
}

type drainCommand struct {
	asking `embed:""`
	Undo   bool   `help:"Let it take shards again."`
	Name   string `arg:"" name:"name" help:"Name of the node."`
}

// Run empties a node, or lets it take shards again.
func (c *drainCommand) Run(with *conversation) error {
	now := "gives its shards away"
	if c.Undo {
		now = "takes shards again"
	}
	return with.change("/api/v1/nodes/"+url.PathEscape(c.Name)+"/drain", web.Drain{Undo: c.Undo}, "node %s %s\n", c.Name, now)
}

type whyCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Queue of the id. Default: the one that has it."`
	ID     string `arg:"" name:"key" help:"The job's id."`
}

// Run prints where an id is and what keeps it there.
func (c *whyCommand) Run(with *conversation) error {
	answers, err := c.find(with)
	if err != nil {
		return err
	}
	if len(answers) > 1 {
		var names []string
		for _, a := range answers {
			names = append(names, a.Queue)
		}
		return fail(exitUsage, "id %q is in several queues: name one with --queue (%s)", c.ID, strings.Join(names, ", "))
	}
	one := answers[0]
	err = with.print(one, func() {
		where := ""
		if one.Queue != "" {
			where = fmt.Sprintf(" (queue %s, shard %d)", one.Queue, one.Shard)
		}
		with.say("%s%s: %s: %s\n", one.ID, where, one.State, one.Reason)
	})
	if err == nil && one.State == status.Absent {
		return &exitError{code: exitUsage} // as jobs show has it; the answer says the rest
	}
	return err
}

// find asks the queue that is named, or all: then it returns the answers of those that
// have the id. There is at least one.
func (c *whyCommand) find(with *conversation) (found []status.Why, err error) {
	queues := []string{c.Queue}
	if c.Queue == "" {
		var all web.Queues
		if err := with.fetch("/api/v1/queues", &all); err != nil {
			return nil, err
		}
		queues = queues[:0]
		for _, q := range all.Queues {
			queues = append(queues, q.Name)
		}
	}
	for _, name := range queues {
		var one status.Why
		if err := with.fetch("/api/v1/why?"+url.Values{"queue": {name}, "id": {c.ID}}.Encode(), &one); err != nil {
			return nil, err
		}
		if one.State != status.Absent || len(queues) == 1 {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		reason := fmt.Sprintf("no queue has a job %q: it is done, or was never pushed (queues: %s)", c.ID, strings.Join(queues, ", "))
		found = append(found, status.Why{ID: c.ID, Shard: -1, State: status.Absent, Reason: reason})
	}
	return found, nil
}
