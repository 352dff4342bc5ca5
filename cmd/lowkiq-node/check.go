package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
)

type checkCommand struct {
	connect.Flags `embed:""`
	Output        string   `short:"o" enum:"table,json" default:"table" help:"table or json."`
	Orphans       bool     `help:"Also search all keys of the cluster for keys that belong to nothing."`
	Repair        bool     `help:"Repair what can be repaired safely, after a question. Without an answer nothing is changed."`
	Yes           bool     `short:"y" help:"Answer the question with yes."`
	Queues        []string `arg:"" optional:"" name:"queue" help:"Names of queues. Default: all."`
}

// Run audits, and repairs if --repair is given.
func (c *checkCommand) Run(s *terminal.Streams, grammar *kong.Context) error {
	if c.Yes && !c.Repair {
		return exit.Fail(exit.Usage, "--yes belongs to --repair")
	}
	cfg, err := c.LoadConfig(grammar)
	if err != nil {
		return err
	}
	ctx, stop := signals.UntilInterrupted()
	defer stop()
	client, err := connect.OpenClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	err = c.auditAndRepair(ctx, s, client)
	switch {
	case ctx.Err() != nil:
		return exit.Fail(exit.Interrupted, "interrupted; the remaining shards were not checked")
	case errors.Is(err, lowkiq.ErrUnknownQueue):
		return exit.WithCode(exit.Usage, err)
	}
	return err
}

// auditAndRepair audits, and repairs faults if --repair is given. Nothing is changed without --yes or a confirmation.
// With -o json nobody is asked.
func (c *checkCommand) auditAndRepair(ctx context.Context, s *terminal.Streams, client *protocol.Client) error {
	found, err := c.runAudit(ctx, s, client)
	if err != nil {
		return err
	}
	repairable := countRepairable(found.Faults)
	if !c.Repair || repairable == 0 {
		return c.printReport(s, found, 0)
	}
	if !c.Yes {
		unmended, yes := c.printReport(s, found, 0), false
		if c.Output != "json" {
			if yes, err = terminal.Confirm(ctx, s, fmt.Sprintf("Repair %s?", terminal.CountNoun(repairable, "fault"))); err != nil {
				return err
			}
		}
		if !yes {
			fmt.Fprintln(s.Err, "nothing was changed; check --repair --yes repairs")
			return unmended
		}
	}
	found, repaired, err := c.repairFaults(ctx, s, client, found)
	if err != nil {
		return err
	}
	return c.printReport(s, found, repaired)
}

func countRepairable(faults []audit.Fault) (n int) {
	for _, f := range faults {
		if f.Repair != "" {
			n++
		}
	}
	return n
}

// runAudit audits. Meanwhile stderr shows a progress bar.
func (c *checkCommand) runAudit(ctx context.Context, s *terminal.Streams, client *protocol.Client) (audit.Report, error) {
	var shown *terminal.Bar
	defer func() {
		if shown != nil {
			shown.Clear()
		}
	}()
	return audit.Run(ctx, client, audit.Config{Queues: c.Queues, Orphans: c.Orphans, Progress: func(done, total int64) {
		if shown == nil {
			shown = terminal.NewBar(s.Err, total, "checking")
		}
		shown.Set(int(min(done, total)))
	}})
}

// maxRounds bounds the rounds of repairs. A repair may reveal a fault that another repair mends.
const maxRounds = 5

// repairFaults repairs until an audit finds nothing more to repair, and returns that audit with the number of repairs.
func (c *checkCommand) repairFaults(ctx context.Context, s *terminal.Streams, client *protocol.Client, found audit.Report) (audit.Report, int, error) {
	repaired := 0
	for range maxRounds {
		before := repaired
		shown := terminal.NewBar(s.Err, int64(len(found.Faults)), "repairing")
		for i, f := range found.Faults {
			done, err := audit.Repair(ctx, client, f)
			if err != nil {
				return found, repaired, err
			}
			if done {
				repaired++
			}
			shown.Set(i + 1)
		}
		shown.Clear()
		var err error
		if found, err = c.runAudit(ctx, s, client); err != nil || repaired == before {
			return found, repaired, err
		}
	}
	return found, repaired, nil
}

// errNoTerminal refuses a destructive command that nobody can confirm.
var errNoTerminal = exit.Fail(exit.Usage, "this cannot be undone, and there is no terminal to ask; give --yes, or --dry-run to count")

// checkAnswer is the output of -o json.
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

// printReport prints the faults. It returns the exit code as an error.
func (c *checkCommand) printReport(s *terminal.Streams, found audit.Report, repaired int) error {
	var err error
	if c.Output == "json" {
		err = json.NewEncoder(terminal.EscapingWriter{Writer: s.Out}).Encode(answerOf(found, repaired))
	} else {
		err = reportTable(s, found, repaired)
	}
	switch {
	case err != nil:
		return exit.Fail(exit.Failed, "stdout: %w", err)
	case len(found.Faults) > 0:
		return exit.Quietly(exit.Faults)
	}
	return nil
}

// answerOf returns the answer for -o json. Its lists are never null. A fault of no particular shard or id leaves these
// fields out.
func answerOf(found audit.Report, repaired int) checkAnswer {
	answer := checkAnswer{Queues: found.Queues, Shards: found.Shards, Jobs: found.Jobs, Aside: found.Aside, More: found.More,
		Faults: []checkFault{}, Unsettled: append([]string{}, found.Unsettled...), Repaired: repaired, Gone: append([]string{}, found.Gone...)}
	for _, f := range found.Faults {
		fault := checkFault{Kind: f.Kind, Queue: f.Queue, What: f.What, Repair: f.Repair}
		if f.Shard >= 0 {
			fault.Shard = &f.Shard
		}
		if f.ID != "" {
			id := web.JobIDOf(f.ID)
			fault.JobID = &id
		}
		answer.Faults = append(answer.Faults, fault)
	}
	return answer
}

// reportTable prints the faults, the effect of repairs and a summary line. It returns the error of the summary line.
func reportTable(s *terminal.Streams, found audit.Report, repaired int) error {
	if len(found.Faults) > 0 {
		s.PrintTable("FAULT QUEUE SHARD ID REPAIR WHAT", func(row func(string, ...any)) {
			for _, f := range found.Faults {
				row("%s\t%s\t%s\t%s\t%s\t%s", f.Kind, cmp.Or(f.Queue, "-"), shardName(f.Shard), shortLine(f.ID, 40), repairWord(f), shortLine(f.What, 200))
			}
		})
		repairText(s, found.Faults)
		personText(s, found.Faults)
		fmt.Fprintln(s.Out)
	}
	if found.More > 0 {
		s.Printf("%d more ids look wrong in the same shards; repair these first, or check a single queue\n", found.More)
	}
	for _, sum := range found.Unsettled {
		s.Printf("not settled, because it kept moving: %s\n", sum)
	}
	if found.Aside > 0 {
		s.Printf("%d records that could not be read were moved aside by repairs\n", found.Aside)
	}
	if n := len(found.Gone); n > 0 {
		s.Printf("%s gone, which nodes will forget in an hour or two: %s\n", terminal.CountNoun(n, "instance"), firstNames(found.Gone, 3))
	}
	if repaired > 0 {
		s.Printf("%d repaired\n", repaired)
	}
	faults := len(found.Faults) + found.More
	text := fmt.Sprintf("%s in %s, %s, %s", terminal.CountNoun(faults, "fault"), terminal.CountNoun(found.Queues, "queue"),
		terminal.CountNoun(found.Shards, "shard"), terminal.CountNoun(found.Jobs, "job"))
	if faults > 0 {
		text += fmt.Sprintf("; a repair would mend %d", countRepairable(found.Faults))
	}
	return s.Printf("%s\n", text)
}

// firstNames lists the first n names.
func firstNames(names []string, n int) string {
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

// repairText prints, once for each kind of fault, what a repair would do.
func repairText(s *terminal.Streams, faults []audit.Fault) {
	said := map[audit.FaultKind]bool{}
	for _, f := range faults {
		if f.Repair == "" || said[f.Kind] {
			continue
		}
		if len(said) == 0 {
			s.Printf("\nA repair would:\n")
		}
		said[f.Kind] = true
		s.Printf("  %s: %s\n", f.Kind, f.Repair)
	}
}

// personText prints in full the faults that a person must mend, because the table cuts long texts.
func personText(s *terminal.Streams, faults []audit.Fault) {
	begun := false
	for _, f := range faults {
		if f.Kind != audit.RegistryDamaged {
			continue
		}
		if !begun {
			s.Printf("\nA person must mend:\n")
		}
		begun = true
		s.Printf("  %s\n", f.What)
	}
}

func shardName(index int) string {
	if index < 0 {
		return "-"
	}
	return strconv.Itoa(index)
}
