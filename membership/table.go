package membership

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// forget is how long the departed are remembered. A process that comes back after
// that is new again; one that does not is "unknown", which proves nothing.
const forget = 10 * time.Minute

// table is what this process has heard of the others. Memberlist writes it from its
// callbacks, under its own locks, so nothing here waits for anything.
type table struct {
	changed chan struct{} // one slot

	mu      sync.Mutex // guards members and meta
	members map[string]Member
	meta    []byte // what this process says of itself
}

var (
	_ memberlist.EventDelegate = (*table)(nil)
	_ memberlist.Delegate      = (*table)(nil)
)

func newTable(meta []byte) *table {
	return &table{changed: make(chan struct{}, 1), members: map[string]Member{}, meta: meta}
}

// NotifyJoin notes a process that is alive, for the first time or again.
func (t *table) NotifyJoin(n *memberlist.Node) { t.note(n, Alive) }

// NotifyUpdate notes what a process says of itself.
func (t *table) NotifyUpdate(n *memberlist.Node) { t.note(n, Alive) }

// NotifyLeave notes a death or a goodbye. Memberlist does not tell which; a process
// that leaves says so in its meta first.
func (t *table) NotifyLeave(n *memberlist.Node) {
	if decodeMeta(n.Meta).Leaving {
		t.note(n, Left)
		return
	}
	t.note(n, Dead)
}

func (t *table) note(n *memberlist.Node, state State) {
	meta := decodeMeta(n.Meta)
	instance, err := ParseInstance(n.Name + ".0")
	if err != nil {
		return // not one of ours: no node can be called so
	}
	instance.N = meta.N
	now := time.Now()
	t.mu.Lock()
	m := Member{Instance: instance, Address: n.Address(), Meta: meta, State: state, Since: now}
	if was, ok := t.members[n.Name]; ok && was.State == state {
		m.Since = was.Since
	}
	t.members[n.Name] = m
	for name, m := range t.members {
		if m.State != Alive && now.Sub(m.Since) > forget {
			delete(t.members, name)
		}
	}
	t.mu.Unlock()
	wake(t.changed)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// snapshot returns all members, ordered by node and boot.
func (t *table) snapshot() []Member {
	t.mu.Lock()
	members := make([]Member, 0, len(t.members))
	for _, m := range t.members {
		members = append(members, m)
	}
	t.mu.Unlock()
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Instance.Node, b.Instance.Node), cmp.Compare(a.Instance.Boot, b.Instance.Boot))
	})
	return members
}

func (t *table) find(i Instance) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.members[i.process()]
	return m, ok
}

func (t *table) setMeta(meta []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meta = meta
}

// NodeMeta returns what this process says of itself.
func (t *table) NodeMeta(int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.meta
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState: nothing but membership
// travels by gossip.
func (t *table) NotifyMsg([]byte)                {}
func (t *table) GetBroadcasts(int, int) [][]byte { return nil }
func (t *table) LocalState(bool) []byte          { return nil }
func (t *table) MergeRemoteState([]byte, bool)   {}
