package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
	"github.com/lowkiq/lowkiq/rebalance"
)

// A wall around the Raft port alone: gossip says that the other process is alive, and no connection to it
// succeeds. Raft tries again for ever and the process outside is never ready, so people are told: by the leader,
// which tries to call it, and by the process itself, which nobody calls. That one tries to call the leader, so that
// it can tell whose address it is.

// unreached are living processes whose Raft address cannot be connected to.
type unreached struct {
	mu      sync.Mutex
	lasting map[string]string // by address: what is wrong, in words; guarded by mu
	own     string            // what is wrong with this process's own address, in words; guarded by mu
}

// observe takes in which addresses fail and which processes are alive, and returns what is new and which
// addresses are well again.
func (u *unreached) observe(now time.Time, ttl time.Duration, failing []rebalance.Failing, alive []rebalance.Peer) (news, over []string) {
	names := make(map[string]string, len(alive)) // by address
	for _, p := range alive {
		names[p.Address] = p.Name
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	lasting := map[string]string{}
	for _, f := range failing {
		name, living := names[f.Address]
		if !living || now.Sub(f.Since) < ttl/2 || now.Sub(f.Last) > 2*ttl {
			continue
		}
		text, before := u.lasting[f.Address]
		if !before {
			text = fmt.Sprintf("node %s is alive by gossip, and its Raft address %s cannot be connected to: %v; look at firewalls of the port above the gossip port, and at certificates", name, f.Address, f.Err)
			news = append(news, text)
		}
		lasting[f.Address] = text
	}
	for _, address := range slices.Sorted(maps.Keys(u.lasting)) {
		if lasting[address] == "" {
			over = append(over, address)
		}
	}
	u.lasting = lasting
	return news, over
}

// warnings are what lasts, in words.
func (u *unreached) warnings() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := slices.Sorted(maps.Values(u.lasting))
	if u.own != "" {
		list = append(list, u.own)
	}
	return list
}

// uncalled is what a process says of its own address when it follows no leader.
func uncalled(address, leader string) string {
	return fmt.Sprintf("this node follows no leader: node %s leads by gossip, and nobody connects to this node's Raft address %s; look at firewalls of the port above the gossip port, at advertise, and at certificates", leader, address)
}

// tell takes in what a process says of its own address, "" for nothing; true if that is new.
func (u *unreached) tell(text string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.own
	u.own = text
	return text != "" && was == ""
}

// loneliness follows how long a process has had no leader.
type loneliness struct{ since, tried time.Time }

// observe reports whether it is time to try the leader's address, and whether nobody has called for so long that
// people are to know.
func (l *loneliness) observe(now time.Time, ttl time.Duration, status rebalance.Status) (try, tell bool) {
	if status.Server == "" || status.Leader != "" {
		*l = loneliness{}
		return false, false
	}
	if l.since.IsZero() {
		l.since = now
	}
	lonely := now.Sub(l.since)
	if try = lonely >= ttl/3 && now.Sub(l.tried) >= ttl/2; try {
		l.tried = now
	}
	return try, lonely >= ttl*5/6
}

// watchRaft looks at Raft's connections until ctx is done.
func (c *Cluster) watchRaft(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.TTL / 6)
	defer tick.Stop()
	var lonely loneliness
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.lookAtRaft(ctx, now, &lonely)
		}
	}
}

func (c *Cluster) lookAtRaft(ctx context.Context, now time.Time, lonely *loneliness) {
	ttl, failing := c.cfg.TTL, c.listener.Failing()
	try, tell := lonely.observe(now, ttl, c.agent.Status())
	if len(failing) == 0 && !try && !tell && len(c.unreached.warnings()) == 0 {
		return
	}
	alive := c.alive()
	news, over := c.unreached.observe(now, ttl, failing, alive)
	leader, found := leaderOf(alive, c.agent.Status())
	text := ""
	if _, leased := c.cfg.Instance(); tell && found && !c.listener.Called() && leased {
		text = uncalled(c.listener.Address(), leader.Name)
	}
	if c.unreached.tell(text) {
		news = append(news, text)
	}
	for _, text := range news {
		c.cfg.Log.Warn("raft address out of reach", "detail", text)
	}
	for _, address := range over {
		c.cfg.Log.Info("raft address not out of reach any more", "address", address)
	}
	if try && found {
		c.listener.Probe(ctx, leader.Address)
	}
}

// leaderOf finds the living process that leads this process's group by what the others say. Where nobody follows
// a leader, as after its death, there is none: then Raft's own calls tell enough.
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

// alive are the processes that are alive by gossip, with the addresses of their leases where those are known.
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

// hostsApart says which nodes cannot reach each other although they want to be one cluster:
// those of other hosts than this node's, if the gossip of one end is on a loopback
// address. They share their Redis and nothing else: each host's nodes would elect and
// plan for themselves.
func hostsApart(own identity.Lease, live []identity.Lease) (found []string) {
	for _, other := range live {
		if own.Process.Host == "" || other.Process.Host == "" || other.Process.Host == own.Process.Host {
			continue
		}
		if mine, theirs := hosts.Loopback(own.Gossip), hosts.Loopback(other.Gossip); mine || theirs {
			address := other.Gossip
			if mine {
				address = own.Gossip
			}
			found = append(found, fmt.Sprintf("node %s of another host cannot be reached, or cannot reach this one: gossip at %s; set node.bind or node.advertise", other.Node, address))
		}
	}
	return found
}

// warnOfHostsApart shows in the status what it finds, and logs it once; again only when all was well
// meanwhile.
func (c *Cluster) warnOfHostsApart(live []identity.Lease) {
	own := identity.Lease{Process: c.cfg.Process, Gossip: cmp.Or(c.gossip.Address(), c.cfg.Bind)}
	found := hostsApart(own, live)
	was := c.cache.apart.Swap(&found)
	if len(found) > 0 && (was == nil || len(*was) == 0) {
		c.cfg.Log.Warn("nodes of several hosts on loopback addresses", "detail", found[0], "nodes", len(found))
	}
}
