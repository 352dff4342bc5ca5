package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
)

// A firewall may block the Raft port alone: gossip says that the other process is alive, and no
// connection to it succeeds. Raft tries again for ever and the process outside is never ready, so
// people are told: by the leader, which tries to call it, and by the process itself, which is not
// called. That one tries to call the leader, so that it can tell whose address it is.

// outOfReach are the living processes whose Raft address has failed for a while, and is still
// tried, by address.
func outOfReach(
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
				"look at firewalls of the port above the gossip port, and at certificates", name, f.Address, f.Err)
		}
	}
	return found
}

// leaderless follows how long a process has had no leader.
type leaderless struct{ since, tried time.Time }

// observe reports whether it is time to try the leader's address, and whether no call has come for
// so long that people are to know.
func (l *leaderless) observe(now time.Time, ttl time.Duration, status rebalance.Status) (try, tell bool) {
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

// watchRaft looks at Raft's connections until ctx is done.
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
			c.lookAtRaft(ctx, now, &alone)
			if still.observe(c.agent.Turns(), int(stillFor(c.cfg.TTL)/(c.cfg.TTL/6))) {
				c.cfg.Hung(fmt.Sprintf("the cluster part of node %s has made no progress for %s", c.cfg.Node, stillFor(c.cfg.TTL)))
			}
		}
	}
}

// stillFor is for how long the agent may take no turn: as long as Raft may take to answer it, and longer than all that a
// turn waits for.
func stillFor(ttl time.Duration) time.Duration { return max(5*ttl, 15*time.Second) }

// standstill follows whether the agent takes turns. It counts looks, not time: a process that was frozen goes on as before.
type standstill struct {
	turns uint64
	looks int // since the last turn
}

// observe reports whether the agent has taken no turn for as many looks.
func (s *standstill) observe(turns uint64, looks int) bool {
	if turns != s.turns {
		*s = standstill{turns: turns}
		return false
	}
	s.looks++
	return s.looks == looks
}

func (c *Cluster) lookAtRaft(ctx context.Context, now time.Time, alone *leaderless) {
	ttl, failing := c.cfg.TTL, c.listener.Failing()
	try, tell := alone.observe(now, ttl, c.agent.Status())
	var alive []rebalance.Peer
	if len(failing) > 0 || try || tell { // of a thousand processes, once in a ttl/6
		alive = c.alive()
	}
	leader, found := leaderOf(alive, c.agent.Status())
	own := map[string]string{}
	if _, leased := c.cfg.Instance(); tell && found && leased && !c.listener.Called() {
		own["this node"] = fmt.Sprintf("this node follows no leader: node %s leads by gossip, and nobody connects to this "+
			"node's Raft address %s; look at firewalls of the port above the gossip port, at advertise, and at certificates",
			leader.Name, c.listener.Address())
	}
	news, over := c.warnings.set(unreachable, outOfReach(now, ttl, failing, alive))
	alsoNews, _ := c.warnings.set(uncalled, own)
	c.tell(unreachable, append(news, alsoNews...))
	for _, address := range over {
		c.cfg.Log.Info("raft address not out of reach any more", "address", address)
	}
	if try && found {
		c.listener.Probe(ctx, leader.Address)
	}
}

// tell logs what is new.
func (c *Cluster) tell(by source, news []string) {
	for _, text := range news {
		c.cfg.Log.Warn(string(by), "detail", text)
	}
}

// leaderOf finds the living process that leads this process's group by what the others say. Where
// none of them follows a leader, as after its death, there is none: then Raft's own calls tell
// enough.
func leaderOf(alive []rebalance.Peer, status rebalance.Status) (rebalance.Peer, bool) {
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

// alive are the processes that are alive by gossip, with the addresses of their leases where those
// are known.
func (c *Cluster) alive() []rebalance.Peer {
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

// outside are the nodes that cannot reach this one, or cannot be reached, although they want to be
// one cluster: those of other hosts than this node's, if the gossip of one end is on a loopback
// address. They share their Redis and nothing else: each host's nodes would elect and plan for
// themselves.
func outside(own identity.Lease, live []identity.Lease) map[string]string {
	found := map[string]string{}
	for _, other := range live {
		if own.Process.Host == "" || other.Process.Host == "" || other.Process.Host == own.Process.Host {
			continue
		}
		if mine, theirs := hosts.Loopback(own.Gossip), hosts.Loopback(other.Gossip); mine || theirs {
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

// warnOf shows in the status what a look at all leases finds.
func (c *Cluster) warnOf(live []identity.Lease) {
	own := identity.Lease{Process: c.cfg.Process, Gossip: cmp.Or(c.gossip.Address(), c.cfg.Bind)}
	apart := outside(own, live)
	if news, _ := c.warnings.set(hostsApart, apart); len(news) > 0 && len(news) == len(apart) { // once
		c.cfg.Log.Warn(string(hostsApart), "detail", news[0], "nodes", len(news))
	}
	news, _ := c.warnings.set(disputed, c.disputes.observe(c.cfg.Now(), c.cfg.TTL, live, c.gossip.Members()))
	c.tell(disputed, news)
}
