package membership

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is what gossip says of an instance.
type State uint8

const (
	Unknown State = iota // not known to gossip: neither dead nor left
	Alive                // its process answers, or has not been missed for long enough
	Dead                 // its process stopped answering
	Left                 // its process said goodbye
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	case Left:
		return "left"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Instance is a `<node>/<boot>.<n>`: one holder of leases; a process that lost its
// lease goes on as n + 1.
type Instance struct {
	Node string // the stable name
	Boot string // the run of the process
	N    int    // counts the leases of the run
}

// ParseInstance undoes Instance.String.
func ParseInstance(s string) (Instance, error) {
	slash, dot := strings.LastIndexByte(s, '/'), strings.LastIndexByte(s, '.')
	if slash <= 0 || dot < slash+2 {
		return Instance{}, fmt.Errorf("instance %q: want node/boot.n", s)
	}
	n, err := strconv.Atoi(s[dot+1:])
	if err != nil || n < 0 {
		return Instance{}, fmt.Errorf("instance %q: want a number after the dot", s)
	}
	return Instance{Node: s[:slash], Boot: s[slash+1 : dot], N: n}, nil
}

// String returns `<node>/<boot>.<n>`.
func (i Instance) String() string { return fmt.Sprintf("%s.%d", i.process(), i.N) }

// process returns the name under which gossip knows the process.
func (i Instance) process() string { return i.Node + "/" + i.Boot }

// Meta is what a process says of itself through gossip. Encoded it must be shorter
// than MaxMeta, so it holds nothing that an operator may make long.
type Meta struct {
	N        int    `json:"n"`           // the current instance's number
	Raft     int    `json:"r,omitempty"` // TCP port of its Raft listener
	Draining bool   `json:"d,omitempty"` // it gives its shards away
	RaftInfo string `json:"s,omitempty"` // what the node has to say of its Raft server; opaque here
	Leaving  bool   `json:"l,omitempty"` // set by Run on its way out
}

// MaxMeta is the limit of an encoded Meta, bytes.
const MaxMeta = 512

func (m Meta) encode() ([]byte, error) {
	data, err := json.Marshal(m)
	if err == nil && len(data) >= MaxMeta {
		err = fmt.Errorf("%d bytes, want fewer than %d", len(data), MaxMeta)
	}
	if err != nil {
		return nil, fmt.Errorf("encode gossip meta: %w", err)
	}
	return data, nil
}

// decodeMeta returns an empty Meta for what it cannot read: a newer version may say
// more than this one understands.
func decodeMeta(data []byte) Meta {
	var m Meta
	if json.Unmarshal(data, &m) != nil {
		return Meta{}
	}
	return m
}

// Member is what gossip says of a process's current instance.
type Member struct {
	Instance Instance
	Address  string // host:port of its gossip
	Meta     Meta
	State    State
	Since    time.Time // when this process learned of the state
}

// forget is how long the departed are remembered. A process that comes back after
// that is new again; one that does not is "unknown", which proves nothing.
const forget = 10 * time.Minute

// table is what gossip has told this process of the others. Memberlist writes it from its
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
