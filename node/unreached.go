package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

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

// watchReach looks at Raft's connections until ctx is done.
func (c *cluster) watchReach(ctx context.Context) error {
	tick := time.NewTicker(c.node.cfg.TTL / 6)
	defer tick.Stop()
	var lonely loneliness
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.lookAtReach(ctx, now, &lonely)
		}
	}
}

func (c *cluster) lookAtReach(ctx context.Context, now time.Time, lonely *loneliness) {
	ttl, failing := c.node.cfg.TTL, c.listener.Failing()
	try, tell := lonely.observe(now, ttl, c.agent.Status())
	if len(failing) == 0 && !try && !tell && len(c.unreached.warnings()) == 0 {
		return
	}
	alive := c.alive()
	news, over := c.unreached.observe(now, ttl, failing, alive)
	leader, found := leaderOf(alive, c.agent.Status())
	text := ""
	if in := c.node.current.Load(); tell && found && !c.listener.Called() && in != nil && in.keeper.Holds() {
		text = uncalled(c.listener.Address(), leader.Name)
	}
	if c.unreached.tell(text) {
		news = append(news, text)
	}
	for _, text := range news {
		c.node.log.Warn("raft address out of reach", "detail", text)
	}
	for _, address := range over {
		c.node.log.Info("raft address not out of reach any more", "address", address)
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
func (c *cluster) alive() []rebalance.Peer {
	members := c.gossip.Members()
	lives := make(map[string]bool, len(members)) // by boot
	for _, m := range members {
		lives[m.Instance.Boot] = m.State == membership.Alive
	}
	var leases []LeaseInfo
	if recent := c.sight.recent.Load(); recent != nil {
		leases = recent.live
	}
	return slices.DeleteFunc(viewOf(leases, members).Peers, func(p rebalance.Peer) bool {
		return p.Boot == c.node.boot || !lives[p.Boot]
	})
}
