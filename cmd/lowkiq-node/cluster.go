package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/web"
)

// Commands that ask any node about the cluster.

type shardsCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Only the shards of this queue."`
}

func (*shardsCommand) Help() string {
	return "States: owned; claiming (a live node is to take it); draining (its owner is to give it away); unowned.\n\nExamples:\n\n    lowkiq-node shards\n    lowkiq-node shards --queue orders -o json\n\n" + exitHelp
}

// Run prints who owns which shard.
func (c *shardsCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var all []web.ShardStatus
	if err := with.fetch("/api/v1/shards", &all); err != nil {
		return err
	}
	shown := []web.ShardStatus{}
	for _, shard := range all {
		if c.Queue == "" || shard.Queue == c.Queue {
			shown = append(shown, shard)
		}
	}
	if c.Queue != "" && len(shown) == 0 {
		return fail(exitUsage, "unknown queue %q (known: %s)", c.Queue, strings.Join(queuesOf(all), ", "))
	}
	return with.print(shown, func(w io.Writer) {
		with.table(w, "QUEUE SHARD STATE LAG ASSIGNED OWNER FENCE", func(row func(string, ...any)) {
			for _, shard := range shown {
				row("%s\t%d\t%s\t%s\t%s\t%s\t%d", shard.Queue, shard.Index, shard.State, seconds(shard.Lag),
					cmp.Or(shard.Assigned, "-"), cmp.Or(shard.Owner, "-"), shard.Fence)
			}
		})
	})
}

// queuesOf are the names of the queues that shards belong to.
func queuesOf(shards []web.ShardStatus) (names []string) {
	for _, shard := range shards {
		names = append(names, shard.Queue)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

type membersCommand struct {
	asking `embed:""`
}

func (*membersCommand) Help() string {
	return "What the node hears by gossip: a hint, never the proof of a death.\n\n" + example("members")
}

// Run prints who seems alive.
func (c *membersCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var members []web.MemberStatus
	return with.show("/api/v1/members", &members, func(w io.Writer) {
		with.table(w, "NODE STATE DRAINING ADDRESS SINCE INSTANCE", func(row func(string, ...any)) {
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

func (*planCommand) Help() string {
	return "Nothing is moved. Without --add and --remove: what the leader would still move now.\n\n" + example("plan --add n6 --remove n2")
}

// Run prints what would move.
func (c *planCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	query := url.Values{}
	for name, nodes := range map[string][]string{"add": c.Add, "remove": c.Remove} {
		if len(nodes) > 0 {
			query.Set(name, strings.Join(nodes, ","))
		}
	}
	var plan struct{ Moves []web.Move }
	return with.show("/api/v1/plan?"+query.Encode(), &plan, func(w io.Writer) {
		if len(plan.Moves) == 0 {
			fmt.Fprintln(w, "nothing would move")
			return
		}
		with.table(w, "QUEUE SHARD FROM TO REASON", func(row func(string, ...any)) {
			for _, m := range plan.Moves {
				row("%s\t%d\t%s\t%s\t%s", m.Queue, m.Index, cmp.Or(m.From, "-"), cmp.Or(m.To, "-"), m.Reason)
			}
		})
		fmt.Fprintf(w, "\n%s would move\n", count(len(plan.Moves), "shard"))
	})
}

type drainCommand struct {
	asking `embed:""`
	Undo   bool   `help:"Let it take shards again."`
	Name   string `arg:"" name:"name" help:"Name of the node."`
}

func (*drainCommand) Help() string {
	return "The node gives its shards to the others and goes on running without any, until --undo or its end. It may be asked through any node.\n\nExamples:\n\n    lowkiq-node drain n2\n    lowkiq-node drain --undo n2\n\n" + exitHelp
}

// Run empties a node, or lets it take shards again.
func (c *drainCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	body := map[string]bool{"undo": c.Undo}
	return with.change("/api/v1/nodes/"+url.PathEscape(c.Name)+"/drain", body, func(map[string]any) string {
		if c.Undo {
			return fmt.Sprintf("node %s takes shards again", c.Name)
		}
		return fmt.Sprintf("node %s gives its shards away", c.Name)
	})
}

type whyCommand struct {
	asking `embed:""`
	Queue  string `placeholder:"NAME" help:"Queue of the id. Default: the one that has it."`
	ID     string `arg:"" name:"key" help:"The job's id."`
}

func (*whyCommand) Help() string {
	return "Why is an id not being handled now? The exit code is 2 if there is no such job, as that of jobs show.\n\nExamples:\n\n    lowkiq-node why 17\n    lowkiq-node why 17 --queue orders -o json\n\n" + exitHelp
}

// whyAnswer is what a node says of one id.
type whyAnswer struct {
	ID     string   `json:"id"`
	Queue  string   `json:"queue"` // "" if no queue has the id
	Shard  int      `json:"shard"` // -1 then
	State  string   `json:"state"`
	Reason string   `json:"reason"`
	Due    *float64 `json:"due_s"`
	Since  *float64 `json:"since_s,omitempty"`
}

// Run prints where an id is and what keeps it there.
func (c *whyCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
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
	err = with.print(one, func(w io.Writer) {
		where := ""
		if one.Queue != "" {
			where = fmt.Sprintf(" (queue %s, shard %d)", one.Queue, one.Shard)
		}
		say(w, "%s%s: %s: %s\n", one.ID, where, one.State, one.Reason)
	})
	if err == nil && one.State == absent {
		return &exitError{code: exitUsage} // as jobs show has it; the answer says the rest
	}
	return err
}

// absent is the state of an id that no job has.
const absent = "absent"

// find asks the queue that is named, or all: then it returns the answers of those that
// have the id. There is at least one.
func (c *whyCommand) find(with *conversation) (found []whyAnswer, err error) {
	queues := []string{c.Queue}
	if c.Queue == "" {
		var all struct{ Queues []web.QueueStatus }
		if err := with.fetch("/api/v1/queues", &all); err != nil {
			return nil, err
		}
		queues = queues[:0]
		for _, q := range all.Queues {
			queues = append(queues, q.Name)
		}
	}
	for _, name := range queues {
		var one whyAnswer
		if err := with.fetch("/api/v1/why?"+url.Values{"queue": {name}, "id": {c.ID}}.Encode(), &one); err != nil {
			return nil, err
		}
		if one.State != absent || len(queues) == 1 {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		reason := fmt.Sprintf("no queue has a job %q: it is done, or was never pushed (queues: %s)", c.ID, strings.Join(queues, ", "))
		found = append(found, whyAnswer{ID: c.ID, Shard: -1, State: absent, Reason: reason})
	}
	return found, nil
}

// fetch gets a path and reads the answer.
func (c *conversation) fetch(path string, into any) error {
	answer, err := c.Get(c.ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fail(exitFailed, "%s: not what a lowkiq node answers: %w", path, err)
	}
	return nil
}

// print prints v as JSON with -o json, else as rows.
func (c *conversation) print(v any, rows func(io.Writer)) error {
	if !c.asJSON {
		rows(c.out.out)
		return nil
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return writeJSON(c.out.out, text.Bytes())
}
