package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type statusCommand struct {
	nodeFlags `embed:""`
}

// Run prints the nodes and queues of the cluster.
func (c *statusCommand) Run(with *session) error {
	var status status.Status
	return with.getAndPrint("/api/v1/status", &status, func() {
		static := slices.ContainsFunc(status.Nodes, isStatic)
		if static && status.Leader == "" {
			with.Printf("cluster %s, static nodes\n\n", status.Cluster)
		} else {
			with.Printf("cluster %s, leader %s, generation %s.%d\n\n", status.Cluster, cmp.Or(status.Leader, "none"),
				cmp.Or(status.Generation.Record, "0"), status.Generation.Index)
		}
		for _, warning := range status.Warnings {
			with.Printf("warning: %s\n", warning)
		}
		if len(status.Warnings) > 0 {
			with.Printf("\n")
		}
		columns, format := "NODE STATE SHARDS LEASE_AGE VOTER VERSION HTTP INSTANCE", "%s\t%s\t%d\t%s\t%t\t%s\t%s\t%s"
		if static {
			columns, format = columns+" STATIC", format+"\t%s"
		}
		with.PrintTable(columns, func(row func(string, ...any)) {
			for _, n := range status.Nodes {
				cells := []any{n.Name, n.State, n.Shards, formatSeconds(n.LeaseAge), n.Voter, cmp.Or(n.Version, "-"), cmp.Or(n.HTTP, "-"), n.Instance}
				if static {
					cells = append(cells, cmp.Or(n.Static, "-"))
				}
				row(format, cells...)
			}
		})
		with.Printf("\n")
		queueTable(with, status.Queues)
	})
}

func isStatic(n status.Node) bool { return n.Static != "" }

// formatSeconds returns a number of seconds with only the digits that matter.
func formatSeconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d == 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

type errorsCommand struct {
	oneQueue `embed:""`
	State    string `enum:"failed,retry,blocked,morgue" default:"failed" help:"Errors of failed jobs (the default), of failed jobs that are not due (retry), of blocked jobs, or of buried jobs (morgue)."`
}

// Run prints the kinds of errors, those with most jobs first.
func (c *errorsCommand) Run(with *session) error {
	var answer web.Errors
	at := "NEWEST"
	if c.State == "failed" || c.State == "retry" {
		at = "LATEST_DUE" // of the next attempts
	}
	return with.getAndPrint(errorsPath(c.Queue, c.State), &answer, func() {
		with.PrintTable("JOBS PAYLOADS "+at+" KIND", func(row func(string, ...any)) {
			for _, g := range answer.Groups {
				row("%d\t%d\t%s\t%s", g.Jobs, g.Payloads, formatTime(g.Newest), cmp.Or(g.Kind, "-")) // unchanged, for --kind
			}
		})
		if !answer.All {
			with.Printf("of the newest %d jobs; there are more\n", answer.Examined)
		}
		c.printOthers(with)
	})
}

// printOthers prints how many jobs are in the states that were not asked for.
func (c *errorsCommand) printOthers(with *session) {
	var one status.Queue
	if with.fetchJSON(queuePath(c.Queue, ""), &one) != nil {
		return // the answer itself is printed already
	}
	failed := c.State == "failed" || c.State == "retry"
	for _, of := range []struct {
		state, what string
		n           int
		shown       bool
	}{
		{"failed", "failed, and wait for an attempt", one.Jobs.Failed, failed}, {"blocked", "blocked", one.Jobs.Blocked, c.State == "blocked"},
		{"morgue", "in the morgue (payloads)", one.Morgue, c.State == "morgue"},
	} {
		if of.n > 0 && !of.shown {
			with.Printf("%d more are %s: lowkiq-node errors %s --state %s\n", of.n, of.what, c.Queue, of.state)
		}
	}
}

func errorsPath(queue, state string) string {
	return queuePath(queue, "/errors") + "?" + url.Values{"state": {state}}.Encode()
}

// errorsOf returns the kinds of errors, those with most jobs first.
func errorsOf(with *session, queue, state string) (answer web.Errors, err error) {
	err = with.fetchJSON(errorsPath(queue, state), &answer)
	return answer, err
}

type statsCommand struct {
	nodeFlags `embed:""`
	Days      *int   `help:"Show the queues day by day for the last days, with today: 1 to 92."`
	Hours     *int   `help:"Show them hour by hour for the last hours, with this hour: 1 to 48."`
	Queue     string `short:"q" help:"Only this queue, with --days or --hours."`
}

// Run prints the figures of all queues, or of days.
func (c *statsCommand) Run(with *session) error {
	switch {
	case c.Days != nil && c.Hours != nil:
		return exit.Fail(exit.Usage, "--days and --hours exclude each other")
	case c.Days != nil:
		return c.printDays(with, "days", *c.Days)
	case c.Hours != nil:
		return c.printDays(with, "hours", *c.Hours)
	case c.Queue != "":
		return exit.Fail(exit.Usage, "--queue is for --days and --hours: lowkiq-node queues show %s has the figures of now", c.Queue)
	}
	var answer web.Stats
	return with.getAndPrint("/api/v1/stats", &answer, func() {
		with.PrintTable("QUEUE LAG IN_FLIGHT WAITING NEW FAILED MORGUE PROCESSED FAILURES", func(row func(string, ...any)) {
			line := func(name string, f web.Figures) {
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", name, formatSeconds(float64(f.Lag)), f.Busy, f.Enqueued, f.Fresh, f.Retries,
					f.Dead, f.Processed, f.Failed)
			}
			for _, name := range slices.Sorted(maps.Keys(answer.ByWorker)) {
				line(name, answer.ByWorker[name])
			}
			line("total", answer.Total)
		})
	})
}

// printDays prints the figures of days or of hours.
func (c *statsCommand) printDays(with *session, span string, n int) error {
	query := url.Values{span: {strconv.Itoa(n)}}
	if c.Queue != "" {
		query.Set("queue", c.Queue)
	}
	var answer web.Days
	return with.getAndPrint("/api/v1/stats/days?"+query.Encode(), &answer, func() {
		with.PrintTable("QUEUE DAY PUSHED RUNS PROCESSED FAILED RETRIED BURIED MEAN STD P50 P95 P99 WAIT_MEAN WAIT_STD WAIT_P50 WAIT_P95 "+
			"WAIT_P99", func(row func(string, ...any)) {
			for i := range answer.Days {
				d := &answer.Days[i]
				line := []any{d.Queue, d.Day, d.Pushed, d.Run.Count, d.Processed, d.Failed, d.Retried, d.Buried}
				for _, s := range []web.Spread{d.Run, d.Wait} {
					line = append(line, formatSeconds(s.Mean), formatSeconds(s.Deviation), formatSeconds(s.P50), formatSeconds(s.P95), formatSeconds(s.P99))
				}
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d"+strings.Repeat("\t%s", 10), line...)
			}
		})
		for i := range answer.Days {
			switch d := &answer.Days[i]; {
			case d.Unreadable == 1:
				with.Printf("%s %s: 1 of its counts cannot be read, and is left out\n", d.Queue, d.Day)
			case d.Unreadable > 1:
				with.Printf("%s %s: %d of its counts cannot be read, and are left out\n", d.Queue, d.Day, d.Unreadable)
			}
		}
	})
}

type redisCommand struct {
	nodeFlags `embed:""`
}

// Run prints the state of the Redis servers.
func (c *redisCommand) Run(with *session) error {
	var answer web.Redis
	return with.getAndPrint("/api/v1/redis", &answer, func() {
		with.PrintTable("ADDRESS VERSION ROLE UP CLIENTS MEMORY PEAK LIMIT POLICY", func(row func(string, ...any)) {
			for _, one := range answer.Servers {
				row("%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", one.Address, cmp.Or(one.Version, "-"), cmp.Or(one.Role, "-"), formatDays(one.UptimeDays),
					one.ConnectedClients, cmp.Or(one.UsedMemoryHuman, "-"), cmp.Or(one.PeakMemoryHuman, "-"),
					formatMegabytes(one.MaxMemory), cmp.Or(one.MaxMemoryPolicy, "-"))
			}
		})
	})
}

// formatDays returns a number of whole days.
func formatDays(n int) string {
	if n == 0 {
		return "<1d"
	}
	return fmt.Sprintf("%dd", n)
}

// formatMegabytes returns a limit in bytes as megabytes. 0 is no limit.
func formatMegabytes(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%.0fM", float64(n)/(1<<20))
}
