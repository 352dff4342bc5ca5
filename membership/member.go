package membership

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// State is what gossip says of an instance.
type State uint8

const (
	Unknown State = iota // never heard of: neither dead nor left
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
