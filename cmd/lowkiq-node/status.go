package main

import (
	"cmp"
	"time"

	"github.com/lowkiq/lowkiq/status"
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

func queueTable(with *conversation, queues []status.Queue) {
	with.table("QUEUE STATE LAG READY SCHEDULED RETRY IN_FLIGHT BLOCKED MORGUE SHARDS PROCESSED FAILED", func(row func(string, ...any)) {
		for _, q := range queues {
			state := "running"
			switch {
			case q.Unhandled:
				state = "unhandled"
			case q.Paused:
				state = "paused"
			}
			row("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d", q.Name, state, seconds(q.Lag), q.Jobs.Ready, q.Jobs.Scheduled, q.Jobs.Retry,
				q.Jobs.InFlight, q.Jobs.Blocked, q.Morgue, q.Shards, q.Processed, q.Failed)
		}
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
