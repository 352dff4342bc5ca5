// Package identity says who a worker process is, what it tells the others in its lease, and when
// another process is proven to have ended (I1, I4).
//
// A node has a stable name. Each run of its process is a boot. What holds a lease is an instance,
// "<node>/<boot>.<n>": a process that loses its lease goes on as instance n+1.
package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/procs"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/rebalance"
)

// Lease is what a lease says of its instance. The text stays the same until something changes, so
// that readers need not parse it again.
type Lease struct {
	Node     string             `json:"node"`
	Boot     string             `json:"boot"`
	Instance string             `json:"instance"`
	Start    time.Time          `json:"start"` // by Redis's clock
	Weight   int                `json:"weight,omitempty"`
	Gossip   string             `json:"gossip,omitempty"` // host:port
	Raft     string             `json:"raft,omitempty"`   // host:port
	RaftInfo rebalance.RaftInfo `json:"seat"`
	HTTP     string             `json:"http,omitempty"`
	Version  string             `json:"version,omitempty"`
	Queues   map[string]int     `json:"queues"` // handled queues, and how many shards of each are owned
	Draining bool               `json:"draining,omitempty"`
	TTL      int64              `json:"ttl_ms"`
	Process  Process            `json:"process"`
	Refused  []string           `json:"refused,omitempty"` // stuck operations: what Redis refuses, and why
	// Unready are the queues whose handler cannot work, and why. The process is not given shards of
	// them while another node could take them.
	Unready map[string]string `json:"unready,omitempty"`
	// Unlogged is how many lines of its log the process has dropped, if some of late.
	Unlogged int64 `json:"unlogged,omitempty"`
	// Features are what the process reads beyond the forms of 0.1; see queue.Features.
	Features []string `json:"features,omitempty"`
	// Paused are the handled queues of which the process begins nothing any more, as they are paused.
	Paused []string `json:"paused,omitempty"`
	// Recurring are the names of what recurs by the process's file.
	Recurring []string `json:"recurring,omitempty"`
}

// RefusedFor is what a lease says of operations that Redis refuses on a shard, "" if nothing.
func (l Lease) RefusedFor(s lowkiq.Shard) string {
	for _, text := range l.Refused {
		if about, found := strings.CutPrefix(text, fmt.Sprintf("shard %s: ", s)); found {
			return about
		}
	}
	return ""
}

// MayBegin names the instances that may still begin jobs of a queue that was paused before they were
// read: they handle it, and their leases do not say that they have noticed. One whose lease cannot be
// read is among them; one that has no lease begins nothing.
func MayBegin(queue string, instances []queuelease.Instance) (names []string) {
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		info, err := ParseLease(other.Lease)
		_, handles := info.Queues[queue]
		if err != nil || handles && !slices.Contains(info.Paused, queue) {
			names = append(names, other.Name)
		}
	}
	return names
}

// Process names a process for ever: another one with the same pid has another start.
type Process struct {
	Host  string `json:"host,omitempty"`  // boot id of the host; "" = unknown
	PIDs  string `json:"pids,omitempty"`  // PID namespace
	Times string `json:"times,omitempty"` // time namespace: Start means nothing in another one
	PID   int    `json:"pid,omitempty"`   // in that namespace
	Start string `json:"start,omitempty"` // clock ticks since the host's boot
	// Addresses of the host, separated by blanks. Copies of one virtual machine have all of the
	// above in common.
	Addresses string `json:"addresses,omitempty"`
}

// Identity is what the index of instances keeps of an instance beyond the end of its lease.
type Identity struct {
	Process
	TTL int64 `json:"ttl_ms"` // of its lease: how long it may need to notice its loss
	// Children: it has handlers in child processes, which may live on for a while. Each has a guard
	// that lives as long and names this process; see procs.Guarded.
	Children bool `json:"children,omitempty"`
}

// Ended reports whether the instance's process and all of its child processes are proven to exist
// no more. Children may outlive a killed node on a machine that gives them no time to end, and so
// may their guards, which end last. Where guards cannot be seen nothing is proven: the lease has to
// run out.
func (p Process) Ended(id Identity) bool {
	if !p.Gone(id.Process) {
		return false
	}
	if !id.Children {
		return true
	}
	guarded, err := procs.Guarded(procs.Name(id.PID, id.Start))
	return err == nil && !guarded
}

// Gone reports whether the other process is proven to exist no more: it ran on this host, in the
// namespaces of pids and time of p, this process, and nothing has its pid and start. What is not
// known proves nothing. See "The protocol of a worker" in docs/design.md.
func (p Process) Gone(other Process) bool {
	sameNamespaces := p.Host != "" && p.Host == other.Host && p.PIDs != "" && p.PIDs == other.PIDs && p.Times != "" && p.Times == other.Times
	if !sameNamespaces || other.PID == 0 || other.Start == "" || p == other {
		return false
	}
	start, err := procs.Start(other.PID)
	ended := errors.Is(err, procs.ErrEnded) || err == nil && start != other.Start
	if os.IsNotExist(err) {
		ended = !exists(other.PID) // a host may hide other users' processes from /proc
	}
	return ended && other.sameAddresses() && p.unmoved()
}

// sameAddresses reports whether this host has all the addresses of the process's host.
func (p Process) sameAddresses() bool {
	all, err := net.InterfaceAddrs()
	if err != nil || p.Addresses == "" {
		return false
	}
	here := map[string]bool{}
	for _, address := range all {
		here[ipOf(address)] = true
	}
	for _, address := range strings.Fields(p.Addresses) {
		if !here[address] {
			return false
		}
	}
	return true
}

// unmoved reports whether this process is still where it was when p was made, and not restored from
// a checkpoint on another host.
func (p Process) unmoved() bool {
	now := This()
	now.Addresses = p.Addresses
	return now == p
}

// This is the process that asks. It is empty outside Linux, where no death is proven.
func This() Process {
	host, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	times, err3 := os.Readlink("/proc/self/ns/time")
	if os.IsNotExist(err3) {
		times, err3 = "none", nil // before Linux 5.6 all share one
	}
	start, err4 := procs.Start(os.Getpid())
	if errors.Join(err1, err2, err3, err4) != nil {
		return Process{}
	}
	return Process{
		Host: strings.TrimSpace(string(host)), PIDs: pids, Times: times, PID: os.Getpid(), Start: start,
		Addresses: hostAddresses(),
	}
}

// addressesMost bounds what a lease says of its host's addresses: a router or a host of many
// containers has thousands. The first ones are those of its network cards.
const addressesMost = 8

// hostAddresses are those at which others may reach this host; of a host without a network its
// loopback's.
func hostAddresses() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	var outer, loopback []string
	for _, address := range all {
		switch ip := net.ParseIP(ipOf(address)); {
		case ip.IsLoopback():
			loopback = append(loopback, ip.String())
		case ip.IsGlobalUnicast():
			outer = append(outer, ip.String())
		}
	}
	if outer == nil {
		outer = loopback
	}
	return strings.Join(outer[:min(addressesMost, len(outer))], " ")
}

// ipOf is the address of an interface without its network's size.
func ipOf(address net.Addr) string {
	if network, ok := address.(*net.IPNet); ok {
		return network.IP.String()
	}
	return address.String()
}

// NewBoot names a run of a process.
func NewBoot() string { return ulid.Make().String() }

// Instance names the nth instance of a boot.
func Instance(node, boot string, n int) string { return fmt.Sprintf("%s/%s.%d", node, boot, n) }

// NodeOf is the node's name in an instance's name.
func NodeOf(instance string) string {
	name, _, _ := strings.Cut(instance, "/")
	return name
}

// SameBoot reports whether two instances are runs of one process.
func SameBoot(x, y string) bool {
	i, j := strings.LastIndexByte(x, '.'), strings.LastIndexByte(y, '.')
	return i > 0 && j > 0 && x[:i] == y[:j]
}

// ParseLease reads what a lease says.
func ParseLease(value []byte) (Lease, error) {
	var lease Lease
	if err := json.Unmarshal(value, &lease); err != nil {
		return lease, fmt.Errorf("lease: %w", err)
	}
	return lease, nil
}

// Parse reads what the index of instances says of an instance, nil if it is not in the index.
func Parse(value []byte) (Identity, bool) {
	var id Identity
	if value == nil || json.Unmarshal(value, &id) != nil {
		return Identity{}, false
	}
	return id, true
}
