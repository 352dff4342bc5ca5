package node

import (
	"cmp"
	"fmt"

	"github.com/lowkiq/lowkiq/internal/hosts"
)

// strays says which nodes cannot reach each other although they want to be one cluster:
// those of other hosts than this node's, if the gossip of one end is on a loopback
// address. They share their Redis and nothing else: each host's nodes would elect and
// plan for themselves.
func strays(own LeaseInfo, live []LeaseInfo) (found []string) {
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

// warnOfStrays shows in the status what it finds, and logs it once; again only when all was well
// meanwhile.
func (c *cluster) warnOfStrays(live []LeaseInfo) {
	own := LeaseInfo{Process: c.node.process, Gossip: cmp.Or(c.gossip.Address(), c.node.cfg.Bind)}
	found := strays(own, live)
	was := c.sight.strays.Swap(&found)
	if len(found) > 0 && (was == nil || len(*was) == 0) {
		c.node.log.Warn("nodes of several hosts on loopback addresses", "detail", found[0], "nodes", len(found))
	}
}
