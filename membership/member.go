package membership

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is the state of an instance as gossip shows it.
type State uint8

const (
	Unknown State = iota // gossip does not know it; it is not known to be dead
	Alive                // its process answers, or has not been silent for long enough
	Dead                 // its process stopped answering
	Left                 // its process left the cluster
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

// Instance is a holder of a lease, written `<node>/<boot>.<n>`. A process that lost its lease continues as n + 1.
type Instance struct {
	Node string // the stable name
	Boot string // id of the run of the process
	N    int    // number of the lease within the run
}

// ParseInstance parses the text that Instance.String returns.
func ParseInstance(s string) (Instance, error) {
	slash, dot := strings.LastIndexByte(s, '/'), strings.LastIndexByte(s, '.')
	if slash <= 0 || dot < slash+2 {
		return Instance{}, fmt.Errorf("instance %q must be node/boot.n", s)
	}
	n, err := strconv.Atoi(s[dot+1:])
	if err != nil || n < 0 {
		return Instance{}, fmt.Errorf("instance %q must end in a dot and a number", s)
	}
	return Instance{Node: s[:slash], Boot: s[slash+1 : dot], N: n}, nil
}

// String returns `<node>/<boot>.<n>`.
func (i Instance) String() string { return fmt.Sprintf("%s.%d", i.memberName(), i.N) }

// memberName returns the name of the process in gossip.
func (i Instance) memberName() string { return i.Node + "/" + i.Boot }

// Meta is the data that a process publishes about itself through gossip. Its encoding must be
// shorter than MaxMeta, so it has no text whose length an operator chooses.
type Meta struct {
	N        int    `json:"n"`           // the current instance's number
	Raft     int    `json:"r,omitempty"` // TCP port of its Raft listener
	Draining bool   `json:"d,omitempty"` // it gives its shards away
	RaftInfo string `json:"s,omitempty"` // state of its Raft server; opaque here
	Leaving  bool   `json:"l,omitempty"` // Run sets it before the process leaves
}

// MaxMeta is the limit of an encoded Meta in bytes.
const MaxMeta = 512

func (m Meta) encodeMeta() ([]byte, error) {
	data, err := json.Marshal(m)
	if err == nil && len(data) >= MaxMeta {
		err = fmt.Errorf("it has %d bytes and must have fewer than %d", len(data), MaxMeta)
	}
	if err != nil {
		return nil, fmt.Errorf("encode gossip meta: %w", err)
	}
	return data, nil
}

// decodeMeta returns an empty Meta for data that it cannot read, because a newer version may publish another form.
func decodeMeta(data []byte) Meta {
	var m Meta
	if json.Unmarshal(data, &m) != nil {
		return Meta{}
	}
	return m
}

// Member is a process's current instance as gossip shows it.
type Member struct {
	Instance Instance
	Address  string // host:port of its gossip
	Meta     Meta
	State    State
	Since    time.Time // when this process learned of the state
}

// forget is how long the table keeps a departed process. Its state is then Unknown, which proves nothing.
const forget = 10 * time.Minute

// table holds the processes that gossip shows. Memberlist writes it from its callbacks, under its
// own locks, so no method waits.
type table struct {
	changed chan struct{} // one slot

	mu      sync.Mutex // guards members and meta
	members map[string]Member
	meta    []byte // this process's Meta, encoded
}

var (
	_ memberlist.EventDelegate = (*table)(nil)
	_ memberlist.Delegate      = (*table)(nil)
)

func newTable(meta []byte) *table {
	return &table{changed: make(chan struct{}, 1), members: map[string]Member{}, meta: meta}
}

// NotifyJoin records a process that is alive, for the first time or again.
func (t *table) NotifyJoin(n *memberlist.Node) { t.setState(n, Alive) }

// NotifyUpdate records the new Meta of a process.
func (t *table) NotifyUpdate(n *memberlist.Node) { t.setState(n, Alive) }

// NotifyLeave records a process that died or left. Memberlist does not tell which, so a process
// that leaves publishes it in its Meta first.
func (t *table) NotifyLeave(n *memberlist.Node) {
	if decodeMeta(n.Meta).Leaving {
		t.setState(n, Left)
		return
	}
	t.setState(n, Dead)
}

// setState records the state of a process.
func (t *table) setState(n *memberlist.Node, state State) {
	meta := decodeMeta(n.Meta)
	instance, err := ParseInstance(n.Name + ".0")
	if err != nil {
		return // no node of lowkiq has such a name
	}
	instance.N = meta.N
	now := time.Now()
	t.mu.Lock()
	m := Member{Instance: instance, Address: n.Address(), Meta: meta, State: state, Since: now}
	if was, ok := t.members[n.Name]; ok && was.State == state {
		m.Since = was.Since
	}
	t.members[n.Name] = m
	t.removeForgotten(now)
	t.mu.Unlock()
	trySend(t.changed)
}

// removeForgotten removes processes that departed long ago. The caller holds the lock.
func (t *table) removeForgotten(now time.Time) {
	maps.DeleteFunc(t.members, func(_ string, m Member) bool { return m.State != Alive && now.Sub(m.Since) > forget })
}

// trySend puts a value into a channel with room for one value. A value that is there says the same.
func trySend(c chan struct{}) {
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

// findMember returns the member of the instance's process.
func (t *table) findMember(i Instance) (Member, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.members[i.memberName()]
	return m, ok
}

func (t *table) setMeta(meta []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meta = meta
}

// NodeMeta returns this process's Meta, encoded.
func (t *table) NodeMeta(int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.meta
}

// NotifyMsg and GetBroadcasts do nothing, because only membership travels by gossip.
func (t *table) NotifyMsg([]byte)                {}
func (t *table) GetBroadcasts(int, int) [][]byte { return nil }

// departed is a process that has died or left. Memberlist tells a process that joins only about living processes. That process
// would wait for a full ttl before it took over the shards of a process that others know to be dead. So the members of a
// cluster tell it about departed processes as well.
type departed struct {
	Process string        `json:"process"` // node/boot
	Address string        `json:"address"`
	Meta    Meta          `json:"meta"`
	Left    bool          `json:"left,omitempty"`
	For     time.Duration `json:"for"` // ns
}

// Bounds of the departed processes in a message and in the table.
const (
	maxDeparted     = 1000
	maxDepartedText = maxDeparted * 4096 // bytes of their JSON; a byte of a name may take six
	maxAddress      = 64                 // bytes of an IP address with its port
)

// LocalState returns the latest departed processes, for a process that joins or is joined.
func (t *table) LocalState(join bool) []byte {
	if !join {
		return nil
	}
	gone := slices.DeleteFunc(t.snapshot(), func(m Member) bool { return m.State == Alive || time.Since(m.Since) >= forget })
	slices.SortStableFunc(gone, func(a, b Member) int { return b.Since.Compare(a.Since) })
	var all []departed
	for _, m := range gone[:min(len(gone), maxDeparted)] {
		all = append(all, departed{m.Instance.memberName(), m.Address, m.Meta, m.State == Left, time.Since(m.Since)})
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic("membership: departed: " + err.Error()) // plain strings and numbers always marshal
	}
	return text
}

// MergeRemoteState adds departed processes that the table lacks. They are removed at the same time as from the tables of
// others. It ignores entries that no process can have published, and stops when the table has maxDeparted departed processes.
func (t *table) MergeRemoteState(text []byte, _ bool) {
	var all []departed
	if len(text) > maxDepartedText || json.Unmarshal(text, &all) != nil {
		return
	}
	now := time.Now()
	t.mu.Lock()
	t.removeForgotten(now)
	gone := 0
	for _, m := range t.members {
		if m.State != Alive {
			gone++
		}
	}
	for _, d := range all {
		if gone >= maxDeparted {
			break
		}
		m, ok := d.toMember(now)
		if _, known := t.members[d.Process]; known || !ok {
			continue
		}
		t.members[d.Process] = m
		gone++
	}
	t.mu.Unlock()
	trySend(t.changed)
}

// toMember returns the departed process as a member. It returns false if no process can have
// published it, or if it departed too long ago.
func (d departed) toMember(now time.Time) (Member, bool) {
	instance, err := ParseInstance(d.Process + ".0")
	if err != nil || len(d.Process) > maxProcess || len(d.Address) > maxAddress || d.For < 0 || d.For >= forget {
		return Member{}, false
	}
	if _, err := d.Meta.encodeMeta(); err != nil {
		return Member{}, false
	}
	m := Member{Instance: instance, Address: d.Address, Meta: d.Meta, State: Dead, Since: now.Add(-d.For)}
	if m.Instance.N = d.Meta.N; d.Left {
		m.State = Left
	}
	return m, true
}
