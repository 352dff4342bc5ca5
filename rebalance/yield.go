package rebalance

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
)

// A leader without Redis keeps Raft's leadership, and nobody plans: no join, no drain, and
// the dead keep their shards. So a leader that has not planned for planPatience hands over
// to a process that could. If no other one could either, nothing would be gained, and it
// stays.

// planPatience is how long a leader may be unable to plan before another one is to lead.
func (a *Agent) planPatience() time.Duration { return a.cfg.TTL * 3 / 4 }

// leads reports whether this process's Raft server leads, and notes since when.
func (a *Agent) leads() bool {
	if a.server == nil || a.server.raft.State() != raft.Leader {
		a.term, a.planned, a.asked = nil, time.Time{}, asked{}
		return false
	}
	if a.planned.IsZero() {
		a.planned = time.Now()
	}
	return true
}

// viewPatience bounds a look at the cluster: a leader that waits for Redis must not
// miss the moment to hand over.
func (a *Agent) viewPatience() time.Duration {
	whole := a.cfg.TTL / 2
	left := a.untilYield()
	if !a.leads() || left <= 0 {
		return whole
	}
	return min(whole, max(left, a.cfg.TTL/12))
}

// untilYield is how long a leader may still be without a plan.
func (a *Agent) untilYield() time.Duration { return time.Until(a.planned.Add(a.planPatience())) }

// able reports whether this process could plan: it has read the cluster's state for a
// while without a failure, and may work.
func (a *Agent) able(now time.Time, view View) bool {
	return view.Leased && a.steady.sure && now.Sub(a.failed) >= a.cfg.TTL/2
}

// yield hands leadership over if this leader has been unable to plan for too long and
// another voter says that it is able. It says after how long to look again.
func (a *Agent) yield(ctx context.Context) time.Duration {
	if left := a.untilYield(); left > 0 {
		return left
	}
	servers, err := a.server.servers()
	if err != nil {
		return a.cfg.TTL
	}
	successors := successors(servers, a.cfg.Source.Heard(), a.server.id)
	rand.Shuffle(len(successors), func(i, j int) { successors[i], successors[j] = successors[j], successors[i] })
	for _, s := range successors {
		a.log.Warn("this leader cannot plan: it hands leadership over", "to", string(s.ID), "since", time.Since(a.planned).Round(time.Millisecond))
		ctx, cancel := context.WithTimeout(ctx, a.server.election)
		err := a.server.transferTo(ctx, s)
		cancel()
		if err == nil {
			return a.cfg.TTL
		}
		a.log.Warn("leadership not handed over", "to", string(s.ID), "err", err)
	}
	return a.cfg.TTL
}

// successors are the voters other than self whose process says that it could plan.
func successors(servers []raft.Server, heard []Peer, self string) (list []raft.Server) {
	able := map[string]bool{}
	for _, p := range heard {
		able[p.Seat.Server] = p.Seat.Able && !p.Draining
	}
	for _, s := range servers {
		if s.Suffrage == raft.Voter && string(s.ID) != self && able[string(s.ID)] {
			list = append(list, s)
		}
	}
	return list
}
