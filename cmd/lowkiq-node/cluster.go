package main

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

// Commands that ask any node about the cluster.

type shardsCommand struct {
	nodeFlags `embed:""`
	Queue     string `placeholder:"NAME" help:"Only the shards of this queue."`
}

// Run prints the owner of each shard.
func (c *shardsCommand) Run(with *session) error {
	var all []status.Shard
	if err := with.fetchJSON("/api/v1/shards", &all); err != nil {
		return err
	}
	shown := []status.Shard{}
	for _, shard := range all {
		if c.Queue == "" || shard.Queue == c.Queue {
			shown = append(shown, shard)
		}
	}
	if c.Queue != "" && len(shown) == 0 {
		return exit.Fail(exit.Usage, "unknown queue %q%s", c.Queue, suggest.Among(c.Queue, queuesOf(all)))
	}
	return with.printValue(shown, func() {
		with.PrintTable("QUEUE SHARD STATE LAG ASSIGNED OWNER FENCE", func(row func(string, ...any)) {
			for _, shard := range shown {
				row("%s\t%d\t%s\t%s\t%s\t%s\t%d", shard.Queue, shard.Index, shard.State, formatSeconds(shard.Lag),
					cmp.Or(shard.Assigned, "-"), cmp.Or(shard.Owner, "-"), shard.Fence)
			}
		})
	})
}

// queuesOf returns the names of the queues of shards.
func queuesOf(shards []status.Shard) (names []string) {
	for _, shard := range shards {
		names = append(names, shard.Queue)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

type membersCommand struct {
	nodeFlags `embed:""`
}

// Run prints which nodes seem alive.
func (c *membersCommand) Run(with *session) error {
	var members []status.Member
	return with.getAndPrint("/api/v1/members", &members, func() {
		with.PrintTable("NODE STATE DRAINING ADDRESS SINCE INSTANCE", func(row func(string, ...any)) {
			for _, m := range members {
				row("%s\t%s\t%t\t%s\t%s\t%s", m.Node, m.State, m.Draining, m.Address,
					time.UnixMilli(int64(m.Since*1000)).UTC().Format(time.RFC3339), m.Instance)
			}
		})
	})
}

type planCommand struct {
	nodeFlags `embed:""`
	Add       []string `sep:"," placeholder:"NODE" help:"A node that would join, with weight 1 and handlers for every queue. May be repeated."`
	Remove    []string `sep:"," placeholder:"NODE" help:"A node that would leave. May be repeated."`
}

// Run prints the moves that would follow.
func (c *planCommand) Run(with *session) error {
	query := url.Values{}
	for name, nodes := range map[string][]string{"add": c.Add, "remove": c.Remove} {
		if len(nodes) > 0 {
			query.Set(name, strings.Join(nodes, ","))
		}
	}
	var plan web.Plan
	return with.getAndPrint("/api/v1/plan?"+query.Encode(), &plan, func() {
		if len(plan.Moves) == 0 {
			with.Printf("nothing would move\n")
			return
		}
		with.PrintTable("QUEUE SHARD FROM TO REASON", func(row func(string, ...any)) {
			for _, m := range plan.Moves {
				row("%s\t%d\t%s\t%s\t%s", m.Queue, m.Index, cmp.Or(m.From, "-"), cmp.Or(m.To, "-"), m.Reason)
			}
		})
		with.Printf("\n%s would move\n", terminal.CountNoun(len(plan.Moves), "shard"))
	})
}

type drainCommand struct {
	nodeFlags `embed:""`
	Undo      bool   `help:"Let it take shards again."`
	Name      string `arg:"" name:"name" help:"Name of the node."`
}

// Run drains a node, or lets it take shards again.
func (c *drainCommand) Run(with *session) error {
	path := "/api/v1/nodes/" + escapeSegment(c.Name) + "/drain"
	answer, err := with.Post(with.ctx, path, web.Drain{Undo: c.Undo})
	if err != nil {
		return err
	}
	var now web.Drained
	if err := decodeAnswer(path, answer, &now); err != nil {
		return err
	}
	switch {
	case with.asJSON:
		err = terminal.WriteJSON(with.Out, answer)
	case !now.Noticed:
	case c.Undo:
		err = with.Printf("node %s takes shards again\n", c.Name)
	case now.Shards == 0:
		err = with.Printf("node %s has given its shards away\n", c.Name)
	default:
		err = with.Printf("node %s gives its shards away, and still owns %s: batches in flight end first, and another node must handle "+
			"their queues (lowkiq-node shards)\n",
			c.Name, terminal.CountNoun(now.Shards, "shard"))
	}
	if err == nil && !now.Noticed {
		return exit.Fail(exit.Failed, "node %s (%s) got the request, and its lease does not say that it heard it: it still owns %s; it may "+
			"have lost its link to Redis: look at its log, and ask again",
			c.Name, now.Instance, terminal.CountNoun(now.Shards, "shard"))
	}
	return err
}

type whyCommand struct {
	nodeFlags `embed:""`
	Queue     string `placeholder:"NAME" help:"Queue of the id. Default: the queue that has it."`
	ID        string `arg:"" optional:"" name:"key" help:"A queue, or the id of a job. An id with the name of a queue needs --queue."`

	queues []string // all queues, if none is named
}

// explainQueue prints why a queue cannot go faster.
func (c *whyCommand) explainQueue(with *session, name string) error {
	var one status.Queue
	return with.getAndPrint(queuePath(name, ""), &one, func() {
		rest := ""
		if one.Reshard.Moves() {
			rest = fmt.Sprintf(", without %s that must move to the new shards", terminal.CountNoun(one.Reshard.Of-one.Reshard.Moved, "job"))
		}
		with.Printf("%s: %s ready, the oldest job due for %s, %d in flight%s\n", one.Name, terminal.CountNoun(one.Jobs.Ready, "id"),
			formatSeconds(one.Lag), one.Jobs.InFlight, rest)
		if len(one.Causes) == 0 {
			with.Printf("nothing is known that keeps it from going faster\n")
		}
		for _, cause := range one.Causes {
			with.Printf("- %s\n", cause.String())
		}
	})
}

// Run prints why a queue cannot go faster, or where an id is and why it is not being handled.
func (c *whyCommand) Run(with *session) error {
	switch {
	case c.ID == "" && c.Queue == "":
		return exit.Fail(exit.Usage, "give a queue or the id of a job, as in: lowkiq-node why orders, lowkiq-node why 17 --queue orders")
	case c.ID == "":
		return c.explainQueue(with, c.Queue)
	case c.Queue == "":
		var all web.Queues
		if err := with.fetchJSON("/api/v1/queues", &all); err != nil {
			return err
		}
		for _, q := range all.Queues {
			if q.Name == c.ID {
				return c.explainQueue(with, q.Name)
			}
			c.queues = append(c.queues, q.Name)
		}
	}
	answers, err := c.findID(with)
	if err != nil {
		return err
	}
	if len(answers) > 1 {
		var names []string
		for _, a := range answers {
			names = append(names, a.Queue)
		}
		return exit.Fail(exit.Usage, "id %q is in several queues: name one with --queue (%s)", c.ID, strings.Join(names, ", "))
	}
	one := answers[0]
	err = with.printValue(one, func() {
		where := ""
		if one.Queue != "" {
			where = fmt.Sprintf(" (queue %s, shard %d)", one.Queue, one.Shard)
		}
		with.Printf("%s%s: %s: %s\n", one.ID, where, one.State, one.Reason)
	})
	if err == nil && one.State == status.Absent {
		return exit.Quietly(exit.Usage) // the exit code of jobs show; the answer has said the rest
	}
	return err
}

// findID asks about the named queue, or about all queues. For all queues it returns the answers of the queues that have the
// id. There is at least one answer.
func (c *whyCommand) findID(with *session) (found []status.Why, err error) {
	queues := []string{c.Queue}
	if c.Queue == "" {
		queues = c.queues
	}
	for _, name := range queues {
		var one status.Why
		if err := with.fetchJSON("/api/v1/why?"+url.Values{"queue": {name}, "id": {c.ID}}.Encode(), &one); err != nil {
			return nil, err
		}
		if one.State != status.Absent || len(queues) == 1 {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		reason := fmt.Sprintf("no queue has a job %q: %s (queues: %s)", c.ID, status.WhyAbsent(slices.Contains(queues, protocol.Workflows)), strings.Join(queues, ", "))
		found = append(found, status.Why{ID: c.ID, Shard: -1, State: status.Absent, Reason: reason})
	}
	return found, nil
}
