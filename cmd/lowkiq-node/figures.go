package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
)

type inFlightCommand struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	By         string `enum:",id,due" default:"" help:"Order: id (default) or due."`
}

// Help shows how.
func (*inFlightCommand) Help() string { return example("in-flight orders --limit 10") }

// Run prints what handlers have.
func (c *inFlightCommand) Run(s *streams) error {
	return c.list(s, c.oneQueue, "/in-flight", c.query(c.By, ""), jobTable)
}

type errorsCommand struct {
	oneQueue `embed:""`
	State    string `enum:"failed,retry,blocked,morgue" default:"failed" help:"Of failed jobs (the default), of those whose next attempt is not due (retry), of blocked or buried (morgue) ones."`
}

func (*errorsCommand) Help() string {
	return `Errors that differ in numbers, ids and quoted text only are one kind, in which a # stands for each of them, and a ? for each character that is not printed. --kind of other commands takes it as it is shown; -o json has those whole that a narrow terminal cuts off. It looks at the newest 5,000 jobs.

    lowkiq-node errors orders
    lowkiq-node errors orders --state morgue
    lowkiq-node morgue orders --kind 'no account #'
    lowkiq-node morgue requeue orders --kind 'no account #'

` + exitHelp
}

// Run prints the kinds of errors, most jobs first.
func (c *errorsCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var answer errorsAnswer
	return with.show(errorsPath(c.Queue, c.State), &answer, func(w io.Writer) {
		with.table(w, "JOBS PAYLOADS NEWEST KIND", func(row func(string, ...any)) {
			for _, g := range answer.Groups {
				row("%d\t%d\t%s\t%s", g.Jobs, g.Payloads, moment(g.Newest), cmp.Or(g.Kind, "-")) // as it is: --kind takes it
			}
		})
		if !answer.All {
			fmt.Fprintf(w, "of the newest %d jobs; there are more\n", answer.Examined)
		}
	})
}

// errorsAnswer is what a node says of errors.
type errorsAnswer struct {
	Groups []struct {
		Kind           string
		Jobs, Payloads int
		Newest         float64
	}
	Examined int
	All      bool
}

func errorsPath(queue, state string) string {
	return queuePath(queue, "/errors") + "?" + url.Values{"state": {state}}.Encode()
}

// errorsOf asks for the kinds of errors, most jobs first.
func errorsOf(with *conversation, queue, state string) (answer errorsAnswer, err error) {
	err = with.fetch(errorsPath(queue, state), &answer)
	return answer, err
}

type statsCommand struct {
	asking `embed:""`
}

func (*statsCommand) Help() string {
	return "The figures that Ruby Lowkiq's dashboard shows, in its words.\n\n" + example("stats -o json")
}

// rubyFigures are a queue's figures in the words of Ruby Lowkiq.
type rubyFigures struct{ Lag, Busy, Enqueued, Fresh, Retries, Dead, Processed, Failed int64 }

// Run prints the figures of all queues.
func (c *statsCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var answer struct {
		Total    rubyFigures
		ByWorker map[string]rubyFigures `json:"by_worker"`
	}
	return with.show("/api/v1/stats", &answer, func(w io.Writer) {
		with.table(w, "QUEUE LAG BUSY ENQUEUED FRESH RETRIES DEAD PROCESSED FAILED", func(row func(string, ...any)) {
			line := func(name string, f rubyFigures) {
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", name, seconds(float64(f.Lag)), f.Busy, f.Enqueued, f.Fresh, f.Retries, f.Dead, f.Processed, f.Failed)
			}
			for _, name := range slices.Sorted(maps.Keys(answer.ByWorker)) {
				line(name, answer.ByWorker[name])
			}
			line("total", answer.Total)
		})
	})
}

type redisCommand struct {
	asking `embed:""`
}

func (*redisCommand) Help() string { return example("redis") }

// Run prints what the Redis servers say of themselves.
func (c *redisCommand) Run(s *streams) error {
	with, err := c.ask(s)
	if err != nil {
		return err
	}
	defer with.stop()
	var answer struct {
		Servers []struct {
			Address, Version, Role string
			Uptime                 int    `json:"uptime_in_days"`
			Clients                int    `json:"connected_clients"`
			Used                   string `json:"used_memory_human"`
			Peak                   string `json:"used_memory_peak_human"`
			Most                   int64  `json:"maxmemory"`
			Policy                 string `json:"maxmemory_policy"`
		}
	}
	return with.show("/api/v1/redis", &answer, func(w io.Writer) {
		with.table(w, "ADDRESS VERSION ROLE UP CLIENTS MEMORY PEAK LIMIT POLICY", func(row func(string, ...any)) {
			for _, one := range answer.Servers {
				row("%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", one.Address, cmp.Or(one.Version, "-"), cmp.Or(one.Role, "-"), days(one.Uptime),
					one.Clients, cmp.Or(one.Used, "-"), cmp.Or(one.Peak, "-"), megabytes(one.Most), cmp.Or(one.Policy, "-"))
			}
		})
	})
}

// days prints a number of whole days.
func days(n int) string {
	if n == 0 {
		return "<1d"
	}
	return fmt.Sprintf("%dd", n)
}

// megabytes prints a limit in bytes; 0 is none.
func megabytes(n int64) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%.0fM", float64(n)/(1<<20))
}
