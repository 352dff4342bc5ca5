package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
)

// maxDisputeTTLs is how long, in ttls, the view believes gossip against a lease.
//
// Gossip may say that a process is dead, has left or drains, while its lease lives and says nothing of the kind. At first
// gossip is right more often, because it is faster than the lease. But it may be wrong for ever. A process refutes a wrong word
// about itself with a higher incarnation number, and a forged packet with the highest number cannot be refuted. So after
// maxDisputeTTLs the lease counts, and a warning tells people.
//
// Neither choice endangers I1. The view decides who should own a shard, and claims decide who may.
const maxDisputeTTLs = 2

// disputes records since when gossip contradicts the lease of a process, by boot. Only the agent's goroutine uses it.
type disputes map[string]time.Duration

// contradiction returns gossip's word against a process that works, "" if there is none.
func contradiction(m membership.Member) string {
	switch {
	case m.State == membership.Dead, m.State == membership.Left:
		return m.State.String()
	case m.State == membership.Alive && m.Meta.Draining:
		return "draining"
	}
	return ""
}

// disputeKey names a dispute by its process and by gossip's word.
func disputeKey(m membership.Member) string { return m.Instance.Boot + " " + contradiction(m) }

// update compares leases and gossip. It returns the warnings about disputes that have lasted for maxDisputeTTLs, by disputeKey.
func (d *disputes) update(
	now, ttl time.Duration, live []identity.Lease, members []membership.Member,
) map[string]string {
	leases := make(map[string]identity.Lease, len(live))
	for _, info := range live {
		leases[info.Boot] = info
	}
	since, lasting := disputes{}, map[string]string{}
	for _, m := range members {
		info, leased := leases[m.Instance.Boot]
		says := contradiction(m)
		if !leased || says == "" || says == "draining" && info.Draining {
			continue
		}
		began, before := (*d)[info.Boot]
		if !before {
			began = now
		}
		if since[info.Boot] = began; now-began >= maxDisputeTTLs*ttl {
			lasting[disputeKey(m)] = fmt.Sprintf("node %s is %s by gossip and has a living lease that says otherwise, "+
				"for %d ttl; the lease counts; check firewalls of the gossip port, and who has the gossip key",
				info.Node, says, maxDisputeTTLs)
		}
	}
	*d = since
	return lasting
}

// withoutDisputed returns the members except those that have contradicted a lease for too long.
func (w *warnings) withoutDisputed(members []membership.Member) []membership.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m membership.Member) bool {
		return contradiction(m) != "" && w.contains(disputed, disputeKey(m))
	})
}
