package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
)

// A firewall may block the Raft port alone. Gossip then says that the other process is alive, and no Raft connection to it
// succeeds. Raft tries without end, and the process outside never becomes ready. So two sides warn people. The leader warns,
// because it cannot connect, and so does the process outside, because nobody connects to it. The process outside tries to
// connect to the leader, so that it can name the leader's address.

// findUnreachable returns a warning for each living process whose Raft address has failed for half a
// ttl and is still tried, by address.
func findUnreachable(
	now time.Time, ttl time.Duration, failing []rebalance.Failing, alive []rebalance.Peer,
) map[string]string {
	names := make(map[string]string, len(alive)) // by address
	for _, p := range alive {
		names[p.Address] = p.Name
	}
	found := map[string]string{}
	for _, f := range failing {
		if name, living := names[f.Address]; living && now.Sub(f.Since) >= ttl/2 && now.Sub(f.Last) <= 2*ttl {
			found[f.Address] = fmt.Sprintf("node %s is alive by gossip, and its Raft address %s cannot be connected to: %v; "+
				"check firewalls of the port above the gossip port, and certificates", name, f.Address, f.Err)
		}
	}
	return found
}

// leaderless records how long a process has had no leader.
type leaderless struct{ since, tried time.Time }

// update reports whether it is time to try the leader's address, and whether people must be told
// because nobody has connected for too long.
func (l *leaderless) update(now time.Time, ttl time.Duration, status rebalance.Status) (try, tell bool) {
	if status.Server == "" || status.Leader != "" {
		*l = leaderless{}
		return false, false
	}
	if l.since.IsZero() {
		l.since = now
	}
	lasts := now.Sub(l.since)
	if try = lasts >= ttl/3 && now.Sub(l.tried) >= ttl/2; try {
		l.tried = now
	}
	return try, lasts >= ttl*5/6
}

// watchRaft checks Raft's connections until ctx is done.
func (c *Cluster) watchRaft(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.TTL / 6)
	defer tick.Stop()
	var alone leaderless
	var still standstill
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.checkRaft(ctx, now, &alone)
			if still.update(c.agent.Turns(), int(maxStandstill(c.cfg.TTL)/(c.cfg.TTL/6))) {
				c.cfg.OnHung(fmt.Sprintf("the cluster part of node %s has made no progress for %s", c.cfg.Node, maxStandstill(c.cfg.TTL)))
			}
		}
	}
}

// maxStandstill returns the maximum time without a turn of the agent. Raft may take that long to
// answer a turn, and everything else that a turn waits for takes less.
func maxStandstill(ttl time.Duration) time.Duration { return max(5*ttl, 15*time.Second) }

// standstill detects an agent that takes no turn. It counts checks and not time, because a process
// that was frozen has not hung.
type standstill struct {
	turns  uint64
	checks int // since the last turn
}

// update reports, once, that the agent has taken no turn for that many checks.
func (s *standstill) update(turns uint64, looks int) bool {
	if turns != s.turns {
		*s = standstill{turns: turns}
		return false
	}
	s.checks++
	return s.checks == looks
}

// checkRaft updates the warnings about Raft's connections.
func (c *Cluster) checkRaft(ctx context.Context, now time.Time, alone *leaderless) {
	ttl, failing := c.cfg.TTL, c.listener.Failing()
	try, tell := alone.update(now, ttl, c.agent.Status())
	var alive []rebalance.Peer
	if len(failing) > 0 || try || tell { // otherwise a check of a thousand processes would cost too much
		alive = c.alivePeers()
	}
	leader, found := findLeader(alive, c.agent.Status())
	own := map[string]string{}
	if _, leased := c.cfg.Instance(); tell && found && leased && !c.listener.Called() {
		own["this node"] = fmt.Sprintf("this node follows no leader: node %s leads by gossip, and nobody connects to this "+
			"node's Raft address %s; check firewalls of the port above the gossip port, advertise, and certificates",
			leader.Name, c.listener.Address())
	}
	news, over := c.warnings.replace(unreachable, findUnreachable(now, ttl, failing, alive))
	alsoNews, _ := c.warnings.replace(uncalled, own)
	c.logNew(unreachable, append(news, alsoNews...))
	for _, address := range over {
		c.cfg.Log.Info("raft address not out of reach any more", "address", address)
	}
	if try && found {
		c.listener.Probe(ctx, leader.Address)
	}
}

// logNew logs new warnings.
func (c *Cluster) logNew(by source, news []string) {
	for _, text := range news {
		c.cfg.Log.Warn(string(by), "detail", text)
	}
}

// findLeader finds the living process of this process's group that another living process follows. It finds none if nobody
// follows a leader, as after the leader's death. Raft's own calls tell enough then.
func findLeader(alive []rebalance.Peer, status rebalance.Status) (rebalance.Peer, bool) {
	followed := make(map[string]bool, len(alive)) // by server id
	for _, p := range alive {
		followed[p.RaftInfo.Leader] = true
	}
	for _, p := range alive {
		if followed[p.RaftInfo.Server] && rebalance.SameGroup(p.RaftInfo.Server, status.Server) {
			return p, true
		}
	}
	return rebalance.Peer{}, false
}

// alivePeers returns the other processes that are alive in gossip, with the addresses of their leases where these are known.
func (c *Cluster) alivePeers() []rebalance.Peer {
	members := c.gossip.Members()
	lives := make(map[string]bool, len(members)) // by boot
	for _, m := range members {
		lives[m.Instance.Boot] = m.State == membership.Alive
	}
	var leases []identity.Lease
	if recent := c.cache.recent.Load(); recent != nil {
		leases = recent.live
	}
	return slices.DeleteFunc(viewOf(leases, members).Peers, func(p rebalance.Peer) bool {
		return p.Boot == c.cfg.Boot || !lives[p.Boot]
	})
}

// findHostsApart returns a warning for each node that this node cannot form a cluster with. The two
// run on different hosts, and one of them gossips on a loopback address. They share a Redis, but the
// nodes of each host would elect a leader and make plans for themselves.
func findHostsApart(own identity.Lease, live []identity.Lease) map[string]string {
	found := map[string]string{}
	for _, other := range live {
		if own.Process.Host == "" || other.Process.Host == "" || other.Process.Host == own.Process.Host {
			continue
		}
		if mine, theirs := hosts.IsLoopback(own.Gossip), hosts.IsLoopback(other.Gossip); mine || theirs {
			address := other.Gossip
			if mine {
				address = own.Gossip
			}
			found[other.Boot] = fmt.Sprintf("node %s of another host cannot be reached, or cannot reach this one: "+
				"gossip at %s; set node.bind or node.advertise", other.Node, address)
		}
	}
	return found
}

// warnAbout updates the warnings that come from a read of all leases.
func (c *Cluster) warnAbout(live []identity.Lease) {
	own := identity.Lease{Process: c.cfg.Process, Gossip: cmp.Or(c.gossip.Address(), c.cfg.Bind)}
	apart := findHostsApart(own, live)
	if news, _ := c.warnings.replace(hostsApart, apart); len(news) > 0 && len(news) == len(apart) { // once
		c.cfg.Log.Warn(string(hostsApart), "detail", news[0], "nodes", len(news))
	}
	news, _ := c.warnings.replace(disputed, c.disputes.update(c.cfg.Now(), c.cfg.TTL, live, c.gossip.Members()))
	c.logNew(disputed, news)
}
