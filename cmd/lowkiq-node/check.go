package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/web"
)

type checkCommand struct {
	source  `embed:""`
	Output  string   `short:"o" enum:"table,json" default:"table" help:"table or json."`
	Orphans bool     `help:"Look through all keys of the cluster, too, for ones that belong to nothing."`
	Repair  bool     `help:"Mend what is safe to mend, after a question. Without an answer nothing is changed."`
	Yes     bool     `short:"y" help:"Answer the question with yes."`
	Queues  []string `arg:"" optional:"" name:"queue" help:"Names of queues. Default: all."`
}

// Run audits, and repairs if that is wanted.
func (c *checkCommand) Run(s *streams, grammar *kong.Context) error {
	if c.Yes && !c.Repair {
		return fail(exitUsage, "--yes belongs to --repair")
	}
	cfg, err := c.load(grammar)
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted()
	defer stop()
	client, err := openRedis(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	err = c.check(ctx, s, client)
	switch {
	case ctx.Err() != nil:
		return fail(exitInterrupted, "interrupted: the shards that follow were not looked at")
	case errors.Is(err, lowkiq.ErrUnknownQueue):
		return &exitError{exitUsage, err}
	}
	return err
}

func (c *checkCommand) check(ctx context.Context, s *streams, client *queue.Client) error {
	found, err := c.audit(ctx, s, client)
	if err != nil {
		return err
	}
	repairable := countRepairable(found.Faults)
	if !c.Repair || repairable == 0 {
		return c.report(s, found, 0)
	}
	if !c.Yes {
		unmended, yes := c.report(s, found, 0), false
		if c.Output != "json" {
			if yes, err = confirm(ctx, s, fmt.Sprintf("Repair %s?", count(repairable, "fault"))); err != nil {
				return err
			}
		}
		if !yes {
			fmt.Fprintln(s.err, "nothing was changed; check --repair --yes repairs")
			return unmended
		}
	}
	found, repaired, err := c.repair(ctx, s, client, found)
	if err != nil {
		return err
	}
	return c.report(s, found, repaired)
}

func countRepairable(faults []audit.Fault) (n int) {
	for _, f := range faults {
		if f.Repair != "" {
			n++
		}
	}
	return n
}

func (c *checkCommand) audit(ctx context.Context, s *streams, client *queue.Client) (audit.Report, error) {
	var shown *bar
	defer func() {
		if shown != nil {
			shown.clear()
		}
	}()
	return audit.Run(ctx, client, audit.Config{Queues: c.Queues, Orphans: c.Orphans, Progress: func(done, total int64) {
		if shown == nil {
			shown = newBar(s.err, total, "checking")
		}
		shown.at(int(min(done, total)))
	}})
}

// rounds bounds the repairs: one may bring to light what another one mends.
const rounds = 5

// repair mends until an audit finds nothing more to mend, and returns that audit.
func (c *checkCommand) repair(ctx context.Context, s *streams, client *queue.Client, found audit.Report) (audit.Report, int, error) {
	repaired := 0
	for range rounds {
		before := repaired
		shown := newBar(s.err, int64(len(found.Faults)), "repairing")
		for i, f := range found.Faults {
			done, err := audit.Repair(ctx, client, f)
			if err != nil {
				return found, repaired, err
			}
			if done {
				repaired++
			}
			shown.at(i + 1)
		}
		shown.clear()
		var err error
		if found, err = c.audit(ctx, s, client); err != nil || repaired == before {
			return found, repaired, err
		}
	}
	return found, repaired, nil
}

// errNoTerminal refuses what destroys and would have to be confirmed.
var errNoTerminal = fail(exitUsage, "this cannot be undone, and there is no terminal to ask: want --yes, or --dry-run to count")

// confirm asks a person. Without one the answer is no. An error says that ctx ended meanwhile.
func confirm(ctx context.Context, s *streams, question string) (yes bool, err error) {
	if !terminal(s.in) {
		return false, nil
	}
	fmt.Fprintf(s.err, "%s [y/N] ", question)
	said := make(chan bool, 1)
	go func() { // a terminal cannot be read for a time; the process ends soon
		line, err := bufio.NewReader(s.in).ReadString('\n')
		answer := strings.ToLower(strings.TrimSpace(line))
		said <- err == nil && (answer == "y" || answer == "yes")
	}()
	select {
	case yes = <-said:
		return yes, nil
	case <-ctx.Done():
		fmt.Fprintln(s.err)
		return false, ctx.Err()
	}
}

// checkAnswer is what -o json prints.
type checkAnswer struct {
	Queues    int          `json:"queues"`
	Shards    int          `json:"shards"`
	Jobs      int64        `json:"jobs"`
	Aside     int64        `json:"aside"`
	Faults    []checkFault `json:"faults"`
	More      int          `json:"more"`
	Unsettled []string     `json:"unsettled"`
	Repaired  int          `json:"repaired"`
	Gone      []string     `json:"gone"`
}

type checkFault struct {
	Kind  audit.FaultKind `json:"kind"`
	Queue string          `json:"queue,omitempty"`
	Shard *int            `json:"shard,omitempty"`
	*web.JobID
	What   string `json:"what"`
	Repair string `json:"repair"`
}

// report prints what was found. It returns the exit code as an error.
func (c *checkCommand) report(s *streams, found audit.Report, repaired int) error {
	var err error
	if c.Output == "json" {
		err = json.NewEncoder(s.out).Encode(answerOf(found, repaired))
	} else {
		err = reportTable(s, found, repaired)
	}
	switch {
	case err != nil:
		return fail(exitFailed, "stdout: %w", err)
	case len(found.Faults) > 0:
		return &exitError{code: exitFaults}
	}
	return nil
}

func answerOf(found audit.Report, repaired int) checkAnswer {
	answer := checkAnswer{Queues: found.Queues, Shards: found.Shards, Jobs: found.Jobs, Aside: found.Aside, More: found.More,
		Faults: []checkFault{}, Unsettled: append([]string{}, found.Unsettled...), Repaired: repaired, Gone: append([]string{}, found.Gone...)}
	for _, f := range found.Faults {
		one := checkFault{Kind: f.Kind, Queue: f.Queue, What: f.What, Repair: f.Repair}
		if f.Shard >= 0 {
			one.Shard = &f.Shard
		}
		if f.ID != "" {
			id := web.JobIDOf(f.ID)
			one.JobID = &id
		}
		answer.Faults = append(answer.Faults, one)
	}
	return answer
}

func reportTable(s *streams, found audit.Report, repaired int) error {
	if len(found.Faults) > 0 {
		s.table("FAULT QUEUE SHARD ID REPAIR WHAT", func(row func(string, ...any)) {
			for _, f := range found.Faults {
				row("%s\t%s\t%s\t%s\t%s\t%s", f.Kind, cmp.Or(f.Queue, "-"), shardName(f.Shard), short(f.ID, 40), repairWord(f), short(f.What, 200))
			}
		})
		repairText(s, found.Faults)
		personText(s, found.Faults)
		fmt.Fprintln(s.out)
	}
	if found.More > 0 {
		s.say("%d ids more look wrong in the same shards: repair these, or look at one queue\n", found.More)
	}
	for _, sum := range found.Unsettled {
		s.say("not settled, for it moved all the while: %s\n", sum)
	}
	if found.Aside > 0 {
		s.say("%d records that could not be read were moved aside by repairs\n", found.Aside)
	}
	if n := len(found.Gone); n > 0 {
		s.say("%s gone, which nodes will forget in an hour or two: %s\n", count(n, "instance"), some(found.Gone, 3))
	}
	if repaired > 0 {
		s.say("%d repaired\n", repaired)
	}
	faults := len(found.Faults) + found.More
	text := fmt.Sprintf("%s in %s, %s, %s", count(faults, "fault"), count(found.Queues, "queue"), count(found.Shards, "shard"), count(found.Jobs, "job"))
	if faults > 0 {
		text += fmt.Sprintf("; a repair would mend %d", countRepairable(found.Faults))
	}
	return s.say("%s\n", text)
}

// some names the first n of a list.
func some(names []string, n int) string {
	text := strings.Join(names[:min(n, len(names))], ", ")
	if more := len(names) - n; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func repairWord(f audit.Fault) string {
	if f.Repair == "" {
		return "-"
	}
	return "yes"
}

// repairText says, once for each kind of fault, what a repair would do.
func repairText(s *streams, faults []audit.Fault) {
	said := map[audit.FaultKind]bool{}
	for _, f := range faults {
		if f.Repair == "" || said[f.Kind] {
			continue
		}
		if len(said) == 0 {
			s.say("\nA repair would:\n")
		}
		said[f.Kind] = true
		s.say("  %s: %s\n", f.Kind, f.Repair)
	}
}

// personText says in full what a person must mend: the table cuts long texts.
func personText(s *streams, faults []audit.Fault) {
	begun := false
	for _, f := range faults {
		if f.Kind != audit.RegistryDamaged {
			continue
		}
		if !begun {
			s.say("\nA person must mend:\n")
		}
		begun = true
		s.say("  %s\n", f.What)
	}
}

func shardName(index int) string {
	if index < 0 {
		return "-"
	}
	return strconv.Itoa(index)
}
