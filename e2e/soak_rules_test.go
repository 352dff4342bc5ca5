//go:build linux

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Two queues of a soak have rules of their own, and a flow: in one a push takes the place of those that wait, in the other
// what waits for too long goes to the morgue.
const (
	latestQueue   = "latest"
	expiringQueue = "expiring"
)

var (
	latestRules  = rules.Push{Coalesce: rules.CoalesceLatest, Debounce: rules.Debounce{Quiet: 200 * time.Millisecond, Most: time.Second}}
	expiryRule   = rules.Expire{After: 2 * time.Second, To: rules.ExpireMorgue}
	heldGroups   = rules.Groups{By: "/", Limit: rules.Limit{Concurrency: 3, Rate: rules.Rate{N: 60, Per: time.Second}, Burst: 5}} // ids are paths
	heldLimit    = rules.Limit{Concurrency: 5, Rate: rules.Rate{N: 130, Per: time.Second}, Burst: 10}
	heldPrefixes = []string{"system_test/", "db/", "store/", "cluster/", "snapshot/", "DOC/", "command/"} // of many ids of queueName
)

// holdBack has a queue of a soak wait, and remember.
func holdBack(cfg *node.QueueConfig) {
	cfg.Groups = heldGroups
	cfg.Expire = rules.Expire{After: 8000 * time.Hour, To: rules.ExpireDrop}
	cfg.Journal = rules.Journal{Runs: rules.JournalAll, Keep: 1_000_000}
	switch cfg.Name {
	case latestQueue:
		cfg.Push = latestRules
	case expiringQueue:
		cfg.Expire = expiryRule
	}
}

// promised is what the judge is told of the rules of a soak.
//
// A limit holds under each fault but one: if Redis's clock is set on, leases end of nodes that do not know yet, and what
// they hold of a limit is free at once. They know by their next renewal, or end at 0.9 ttl if they are cut off. Frozen,
// killed and cut-off nodes hold what they have until their leases end in Redis, by when their calls have ended.
//
// A change of the rules holds from a node's second renewal on, for one that is cut off from its next lease on.
type promised struct {
	ttl    time.Duration
	limit  judge.Limit // of queueName, in force
	limits []judge.Limit
	holds  []judge.Hold
}

// settles is when a change has reached every node, and what a jump of the clock has done is over.
func (p *promised) settles(at time.Duration) time.Duration { return at + 2*p.ttl }

// limitOf is a limit for the judge. Each shard has one lane: so many ids may have been let go and not have begun.
func limitOf(queue string, l rules.Limit, from time.Duration) judge.Limit {
	return judge.Limit{
		Queue: queue, From: from, Concurrency: l.Concurrency, Rate: float64(l.Rate.N) / l.Rate.Per.Seconds(), Burst: l.WithDefaults().Burst, Late: soakShards}
}

// begin is what the configuration says of queues.
func (p *promised) begin(queues []string) {
	for _, name := range queues {
		groups := limitOf(name, heldGroups.Limit, 0)
		groups.By, groups.Late = heldGroups.By, heldGroups.Concurrency // who has been let go is among those
		p.limits = append(p.limits, groups)
		if name != queueName {
			p.limits = append(p.limits, limitOf(name, heldLimit, 0))
		}
	}
	p.limit = limitOf(queueName, heldLimit, 0)
}

// changed notes that another limit was put in force between two moments.
func (p *promised) changed(l rules.Limit, from, to time.Duration) {
	p.limit.To = p.settles(to)
	p.limits = append(p.limits, p.limit)
	p.limit = limitOf(queueName, l, from)
}

// jumped notes that the clock of Redis was set on between two moments.
func (p *promised) jumped(queues []string, from, to time.Duration) {
	for _, name := range queues {
		for _, by := range []string{"", heldGroups.By} {
			p.limits = append(p.limits, judge.Limit{Queue: name, By: by, From: from, To: p.settles(to)})
		}
	}
}

// held notes that ids were held from one moment to another.
func (p *promised) held(prefix string, from, to time.Duration) {
	if from += p.ttl; from < to {
		p.holds = append(p.holds, judge.Hold{Queue: queueName, Prefix: prefix, From: from, To: to})
	}
}

func (p *promised) config() judge.Config {
	return judge.Config{
		MaxDuplicates: -1, MaxUncaused: -1, Limits: append(p.limits, p.limit), Holds: p.holds, Latest: []string{latestQueue}}
}

// flowOfRules pushes to the queues with rules of their own until it is stopped: to a few ids again and again, and to ids
// that come twice.
func (s *soak) flowOfRules(ctx context.Context) {
	tick := time.NewTicker(flowPause)
	defer tick.Stop()
	push := func(to int, id string, n int) {
		score := float64(n)
		q := s.f.queues[len(fleetQueues)+to]
		if s.f.tryPushTo(q, lowkiq.Push{ID: id, Payload: fmt.Append(nil, n), Score: &score}) != nil {
			s.f.flow.failed.Add(1)
		}
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			push(0, fmt.Sprint("l", n%4), n)
			push(1, fmt.Sprint("e", n/2), n)
		}
	}
}

// excuseExpired tells the judge which payloads are in the morgue, as they have expired; nothing else is.
func (s *soak) excuseExpired() {
	s.f.t.Helper()
	type place struct {
		id     string
		score  float64
		digest uint64
	}
	buried := map[place]bool{}
	jobs := browse.Of(s.f.queues[len(fleetQueues)+1])
	for query := (browse.Query{State: browse.StateMorgue, Range: browse.Range{Limit: 1000}}); ; {
		page, err := jobs.Page(s.f.t.Context(), query)
		if err != nil {
			s.f.t.Fatal(err)
		}
		for _, job := range page.Jobs {
			if !strings.HasPrefix(job.Error, "expired:") || job.Cut {
				s.f.t.Errorf("the morgue has %q, cut off: %v, for %q; want all of what has expired", job.ID, job.Cut, job.Error)
			}
			for _, p := range job.Payloads {
				buried[place{job.ID, p.Score, judge.Digest(p.Data)}] = true
			}
		}
		if query.Cursor = page.Next; query.Cursor == "" {
			break
		}
	}
	s.f.excuse(func(p judge.Pushed) bool { return p.Queue == expiringQueue && buried[place{p.ID, p.Score, p.Digest}] })
	s.expired = len(buried)
}
