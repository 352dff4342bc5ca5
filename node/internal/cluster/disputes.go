package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
)

// disputeTTLs is for how many ttls gossip is believed against a lease: it is faster, and may be
// wrong for ever, as a packet with the highest incarnation cannot be refuted by the process that it
// speaks of. From then on the lease counts, and people are told.
const disputeTTLs = 2

// disputes say since when gossip says something else of a process than its lease, by boot. They
// belong to the agent's goroutine.
type disputes map[string]time.Duration

// against is what gossip says against a process that works, "" if nothing.
func against(m membership.Member) string {
	switch {
	case m.State == membership.Dead, m.State == membership.Left:
		return m.State.String()
	case m.State == membership.Alive && m.Meta.Draining:
		return "draining"
	}
	return ""
}

// dispute names one: a process, and what gossip says.
func dispute(m membership.Member) string { return m.Instance.Boot + " " + against(m) }

// observe compares leases and gossip and returns those that last.
func (d *disputes) observe(
	now, ttl time.Duration, live []identity.Lease, members []membership.Member,
) map[string]string {
	leases := make(map[string]identity.Lease, len(live))
	for _, info := range live {
		leases[info.Boot] = info
	}
	since, lasting := disputes{}, map[string]string{}
	for _, m := range members {
		info, leased := leases[m.Instance.Boot]
		says := against(m)
		if !leased || says == "" || says == "draining" && info.Draining {
			continue
		}
		began, before := (*d)[info.Boot]
		if !before {
			began = now
		}
		if since[info.Boot] = began; now-began >= disputeTTLs*ttl {
			lasting[dispute(m)] = fmt.Sprintf("node %s is %s by gossip and has a living lease that says otherwise, "+
				"for %d ttl: the lease is believed; look at firewalls of the gossip port, and at who has the gossip key",
				info.Node, says, disputeTTLs)
		}
	}
	*d = since
	return lasting
}

// believed returns the members whose word counts: without those that dispute a lease for long.
func (w *warnings) believed(members []membership.Member) []membership.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m membership.Member) bool {
		return against(m) != "" && w.has(disputed, dispute(m))
	})
}
