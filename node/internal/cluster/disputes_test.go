package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/membership"
)

// TestDisputes checks that gossip counts against a lease for two ttls. Then the lease counts.
func TestDisputes(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	lease := identity.Lease{Node: "n1", Boot: "A", Queues: map[string]int{"orders": 1}}
	leaves := lease
	leaves.Draining = true
	says := func(state membership.State, draining bool) []membership.Member {
		return []membership.Member{{Instance: membership.Instance{Node: "n1", Boot: "A", N: 1}, State: state, Meta: membership.Meta{Draining: draining}}}
	}
	var d disputes
	var w warnings
	for _, tt := range []struct {
		name     string
		at       time.Duration
		lease    identity.Lease
		members  []membership.Member
		draining bool   // what the leader plans by
		news     string // "" = none
		warnings int
	}{
		{"they agree", 0, lease, says(membership.Alive, false), false, "", 0},
		{"a drain is heard by gossip first", ttl, lease, says(membership.Alive, true), true, "", 0},
		{"the lease follows", 2 * ttl, leaves, says(membership.Alive, true), true, "", 0},
		{"for ever", 9 * ttl, leaves, says(membership.Alive, true), true, "", 0},
		{"gossip alone says so", 10 * ttl, lease, says(membership.Alive, true), true, "", 0},
		{"for almost 2 ttl", 12*ttl - 1, lease, says(membership.Alive, true), true, "", 0},
		{"for 2 ttl", 12 * ttl, lease, says(membership.Alive, true), false, "n1 is draining by gossip", 1},
		{"and longer", 20 * ttl, lease, says(membership.Alive, true), false, "", 1},
		{"the node really drains", 21 * ttl, leaves, says(membership.Alive, true), true, "", 0},
		{"gossip says that it is dead", 22 * ttl, lease, says(membership.Dead, false), false, "", 0},
		{"for 2 ttl", 24 * ttl, lease, says(membership.Dead, false), false, "n1 is dead by gossip", 1},
		{"it has left", 25 * ttl, lease, says(membership.Left, false), false, "n1 is left by gossip", 1},
		{"all is well", 26 * ttl, lease, says(membership.Alive, false), false, "", 0},
	} {
		found, _ := w.replace(disputed, d.update(tt.at, ttl, []identity.Lease{tt.lease}, tt.members))
		news := strings.Join(found, "; ")
		if (news == "") != (tt.news == "") || !strings.Contains(news, tt.news) {
			t.Errorf("%s: got news %q, want %q", tt.name, news, tt.news)
		}
		view := viewOf([]identity.Lease{tt.lease}, w.withoutDisputed(tt.members))
		if len(view.Peers) != 1 || view.Peers[0].Draining != tt.draining || !view.Peers[0].Leased {
			t.Errorf("%s: got peers %+v, want one that is leased, draining %v", tt.name, view.Peers, tt.draining)
		}
		if got := len(w.list()); got != tt.warnings {
			t.Errorf("%s: got %d warnings, want %d", tt.name, got, tt.warnings)
		}
	}
}
