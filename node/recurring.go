package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/node/internal/cluster"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// checkRecurring returns the faults of the configured recurring entries, joined, or nil.
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

// runRecurring pushes the jobs of recurring entries until ctx ends. The leader pushes them at once. Other nodes push ticks that
// are late by a ttl. A node in no cluster always counts as leader. If several nodes push a tick, it is stored once.
func (n *Node) runRecurring(ctx context.Context) error {
	begun := sinceBoot()
	firer := &recurring.Firer{
		Leads:    n.isLeader,
		Files:    func(ctx context.Context) ([]recurring.Process, bool) { return n.recurringFiles(ctx, n.cluster.Load()) },
		Boot:     n.boot,
		Patience: n.cfg.TTL,
		File:     n.cfg.Recurring,
		Since: func(ctx context.Context) (time.Time, error) {
			now, err := n.client.Time(ctx)
			return now.Add(begun - sinceBoot()), err
		},
		Late: func(late time.Duration) { n.metrics.RecurringLate.Set(late.Seconds()) }, Missed: n.metrics.RecurringMissed,
		Warn: func(op string, err error) {
			if ctx.Err() == nil && !n.outages.reportFailure(op, err) {
				n.log.Warn(op+": failed", "err", err)
			}
		},
		Log: n.log,
	}
	firer.Run(ctx, recurring.Of(n.client))
	return nil
}

// recurringFiles returns the live processes with the names of the entries in their files, as their leases say. known is
// false if the leases could not be read.
func (n *Node) recurringFiles(ctx context.Context, c *cluster.Cluster) (all []recurring.Process, known bool) {
	var live []identity.Lease
	if c != nil {
		live, _, known = c.RecentLeases()
	} else {
		byName, err := identity.Live(ctx, n.client.Leases())
		live, known = slices.Collect(maps.Values(byName)), err == nil
	}
	for _, info := range live {
		all = append(all, recurring.Process{Boot: info.Boot, Names: info.Recurring})
	}
	return all, known
}

// isLeader reports whether this node leads. A node in no cluster always does.
func (n *Node) isLeader() bool {
	c := n.cluster.Load()
	return c == nil || c.Status().Leading
}
