package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// checkRecurring says what is wrong with what recurs by the configuration.
func checkRecurring(file map[string]recurring.Spec) error {
	if len(file) > recurring.MaxEntries {
		return fmt.Errorf("recurring: %d entries, at most %d are allowed", len(file), recurring.MaxEntries)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file)) {
		errs = append(errs, file[name].Check(name))
	}
	return errors.Join(errs...)
}

// recur pushes what recurs until ctx ends. The leader does at once, others what is late by a ttl; a node
// in no cluster always leads: several of them push the same, and once.
func (n *Node) recur(ctx context.Context) error {
	begun := sinceBoot()
	firer := &recurring.Firer{
		Leads:    n.leads,
		Files:    func(ctx context.Context) ([]string, bool) { return n.recurringFiles(ctx, n.cluster.Load()) },
		Patience: n.cfg.TTL,
		File:     n.cfg.Recurring,
		Since: func(ctx context.Context) (time.Time, error) {
			now, err := n.client.Time(ctx)
			return now.Add(begun - sinceBoot()), err
		},
		Late: func(late time.Duration) { n.metrics.RecurringLate.Set(late.Seconds()) }, Missed: n.metrics.RecurringMissed,
		Warn: func(op string, err error) {
			if ctx.Err() == nil && !n.outages.note(op, err) {
				n.log.Warn(op+": failed", "err", err)
			}
		},
		Log: n.log,
	}
	firer.Run(ctx, recurring.Of(n.client))
	return nil
}

// recurringFiles are the names that the leases of now say files have.
func (n *Node) recurringFiles(ctx context.Context, c *cluster.Cluster) (names []string, known bool) {
	if c != nil {
		live, _, known := c.Live()
		for _, info := range live {
			names = append(names, info.Recurring...)
		}
		return names, known
	}
	live, err := leased(ctx, n.client.Leases())
	if err != nil {
		return nil, false
	}
	for _, info := range live {
		names = append(names, info.Recurring...)
	}
	return names, true
}

// leads reports whether this node leads; one in no cluster always does.
func (n *Node) leads() bool {
	c := n.cluster.Load()
	return c == nil || c.Status().Leading
}
