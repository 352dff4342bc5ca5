package cluster

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/identity"
	"github.com/lowkiq/lowkiq/membership"
)

// Gossip is faster than leases, and may be wrong for ever: a packet with the highest
// incarnation cannot be refuted by the process that it speaks of. So what gossip says
// against a lease is believed for disputeTTLs only. From then on the lease counts, and
// people are told.
const disputeTTLs = 2

// disputes are processes of which gossip says something else than their lease.
type disputes struct {
	mu    sync.Mutex // guards since and lasting
	since map[string]time.Duration
	// lasting says what gossip claims of processes, by boot, against their leases for long.
	lasting map[string]string
}

// disputed is what gossip says against a living lease, "" if nothing.
func disputed(info identity.Lease, m membership.Member) string {
	switch {
	case m.State == membership.Dead, m.State == membership.Left:
		return m.State.String()
	case m.State == membership.Alive && m.Meta.Draining && !info.Draining:
		return "draining"
	}
	return ""
}

// observe compares leases and gossip and returns what is new of what lasts, in words.
func (d *disputes) observe(now, ttl time.Duration, live []identity.Lease, members []membership.Member) (news []string) {
	said := make(map[string]membership.Member, len(members))
	for _, m := range members {
		said[m.Instance.Boot] = m
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	since, lasting := map[string]time.Duration{}, map[string]string{}
	for _, info := range live {
		m, known := said[info.Boot]
		claim := disputed(info, m)
		if !known || claim == "" {
			continue
		}
		began, before := d.since[info.Boot]
		if !before {
			began = now
		}
		since[info.Boot] = began
		if now-began < disputeTTLs*ttl {
			continue
		}
		lasting[info.Boot] = fmt.Sprintf("node %s is %s by gossip and has a living lease that says otherwise, for %d ttl: the lease is believed; look at firewalls of the gossip port, and at who has the gossip key", info.Node, claim, disputeTTLs)
		if d.lasting[info.Boot] != lasting[info.Boot] {
			news = append(news, lasting[info.Boot])
		}
	}
	d.since, d.lasting = since, lasting
	return news
}

// believed returns the members whose word counts: without those that dispute a lease for
// long.
func (d *disputes) believed(members []membership.Member) []membership.Member {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lasting) == 0 {
		return members
	}
	return slices.DeleteFunc(slices.Clone(members), func(m membership.Member) bool { return d.lasting[m.Instance.Boot] != "" })
}

// warnings are what lasts, in words.
func (d *disputes) warnings() (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, text := range d.lasting {
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}
