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

	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

type statusCommand struct {
	asking `embed:""`
}

// Run prints the cluster's nodes and queues.
func (c *statusCommand) Run(with *conversation) error {
	var status status.Status
	return with.show("/api/v1/status", &status, func() {
		with.say("cluster %s, leader %s, generation %s.%d\n\n", status.Cluster, cmp.Or(status.Leader, "none"),
			cmp.Or(status.Generation.Record, "0"), status.Generation.Index)
		for _, warning := range status.Warnings {
			with.say("warning: %s\n", warning)
		}
		if len(status.Warnings) > 0 {
			with.say("\n")
		}
		with.table("NODE STATE SHARDS LEASE_AGE VOTER HTTP INSTANCE", func(row func(string, ...any)) {
			for _, n := range status.Nodes {
				row("%s\t%s\t%d\t%s\t%t\t%s\t%s", n.Name, n.State, n.Shards, seconds(n.LeaseAge), n.Voter, cmp.Or(n.HTTP, "-"), n.Instance)
			}
		})
		with.say("\n")
		queueTable(with, status.Queues)
	})
}

// seconds prints a number of seconds with no more digits than matter.
func seconds(s float64) string {
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
	State    string `enum:"failed,retry,blocked,morgue" default:"failed" help:"Of failed jobs (the default), of those whose next attempt is not due (retry), of blocked or buried (morgue) ones."`
}

// Run prints the kinds of errors, most jobs first.
func (c *errorsCommand) Run(with *conversation) error {
	var answer web.Errors
	return with.show(errorsPath(c.Queue, c.State), &answer, func() {
		with.table("JOBS PAYLOADS NEWEST KIND", func(row func(string, ...any)) {
			for _, g := range answer.Groups {
				row("%d\t%d\t%s\t%s", g.Jobs, g.Payloads, moment(g.Newest), cmp.Or(g.Kind, "-")) // as it is: --kind takes it
			}
		})
		if !answer.All {
			with.say("of the newest %d jobs; there are more\n", answer.Examined)
		}
	})
}

func errorsPath(queue, state string) string {
	return queuePath(queue, "/errors") + "?" + url.Values{"state": {state}}.Encode()
}

// errorsOf asks for the kinds of errors, most jobs first.
func errorsOf(with *conversation, queue, state string) (answer web.Errors, err error) {
	err = with.fetch(errorsPath(queue, state), &answer)
	return answer, err
}

type statsCommand struct {
	asking `embed:""`
	Days   *int   `help:"What the queues did on each of the last days, today among them: 1 to 92."`
	Hours  *int   `help:"What they did in each of the last hours, this one among them: 1 to 48."`
	Queue  string `short:"q" help:"Only this queue, with --days or --hours."`
}

// Run prints the figures of all queues, or of days.
func (c *statsCommand) Run(with *conversation) error {
	switch {
	case c.Days != nil && c.Hours != nil:
		return fail(exitUsage, "--days and --hours are two questions: ask one of them")
	case c.Days != nil:
		return c.days(with, "days", *c.Days)
	case c.Hours != nil:
		return c.days(with, "hours", *c.Hours)
	case c.Queue != "":
		return fail(exitUsage, "--queue is for --days and --hours: lowkiq-node queues show %s has the figures of now", c.Queue)
	}
	var answer web.Stats
	return with.show("/api/v1/stats", &answer, func() {
		with.table("QUEUE LAG BUSY ENQUEUED FRESH RETRIES DEAD PROCESSED FAILED", func(row func(string, ...any)) {
			line := func(name string, f web.Figures) {
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", name, seconds(float64(f.Lag)), f.Busy, f.Enqueued, f.Fresh, f.Retries, f.Dead, f.Processed, f.Failed)
			}
			for _, name := range slices.Sorted(maps.Keys(answer.ByWorker)) {
				line(name, answer.ByWorker[name])
			}
			line("total", answer.Total)
		})
	})
}

// days prints the figures of days, or of hours.
func (c *statsCommand) days(with *conversation, span string, n int) error {
	query := url.Values{span: {strconv.Itoa(n)}}
	if c.Queue != "" {
		query.Set("queue", c.Queue)
	}
	var answer web.Days
	return with.show("/api/v1/stats/days?"+query.Encode(), &answer, func() {
		with.table("QUEUE DAY PUSHED RUNS PROCESSED FAILED RETRIED BURIED MEAN STD P50 P95 P99 WAIT_MEAN WAIT_STD WAIT_P50 WAIT_P95 WAIT_P99", func(row func(string, ...any)) {
			for i := range answer.Days {
				d := &answer.Days[i]
				line := []any{d.Queue, d.Day, d.Pushed, d.Run.Count, d.Processed, d.Failed, d.Retried, d.Buried}
				for _, s := range []web.Spread{d.Run, d.Wait} {
					line = append(line, seconds(s.Mean), seconds(s.Deviation), seconds(s.P50), seconds(s.P95), seconds(s.P99))
				}
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d"+strings.Repeat("\t%s", 10), line...)
			}
		})
		for i := range answer.Days {
			switch d := &answer.Days[i]; {
			case d.Unreadable == 1:
				with.say("%s %s: 1 of its parts cannot be read, and is left out\n", d.Queue, d.Day)
			case d.Unreadable > 1:
				with.say("%s %s: %d of its parts cannot be read, and are left out\n", d.Queue, d.Day, d.Unreadable)
			}
		}
	})
}

type redisCommand struct {
	asking `embed:""`
}

// Run prints what the Redis servers say of themselves.
func (c *redisCommand) Run(with *conversation) error {
	var answer web.Redis
	return with.show("/api/v1/redis", &answer, func() {
		with.table("ADDRESS VERSION ROLE UP CLIENTS MEMORY PEAK LIMIT POLICY", func(row func(string, ...any)) {
			for _, one := range answer.Servers {
				row("%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s", one.Address, cmp.Or(one.Version, "-"), cmp.Or(one.Role, "-"), days(one.UptimeDays),
					one.ConnectedClients, cmp.Or(one.UsedMemoryHuman, "-"), cmp.Or(one.PeakMemoryHuman, "-"), megabytes(one.MaxMemory), cmp.Or(one.MaxMemoryPolicy, "-"))
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
func megabytes(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%.0fM", float64(n)/(1<<20))
}
