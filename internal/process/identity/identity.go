// Package identity says who a worker process is, what its lease tells the others, and when another
// process is proven to have ended (I1, I4).
//
// A node has a stable name. Each run of its process is a boot. An instance, "<node>/<boot>.<n>", holds
// a lease. A process that loses its lease goes on as instance n+1.
package identity

import (
	"context"
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
	"github.com/lowkiq/lowkiq/internal/process/procs"
	queuelease "github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/rebalance"
)

// Lease is the content of an instance's lease. Its text changes only if a field changes, so that
// readers need not parse it again.
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
	// Unready has the reason why a handler cannot work, by queue. The process gets no shards of such a
	// queue while another node could take them.
	Unready map[string]string `json:"unready,omitempty"`
	// Unlogged is the number of log lines that the process has dropped, 0 if it dropped none lately.
	Unlogged int64 `json:"unlogged,omitempty"`
	// Outgoing has the reasons why follow-ups wait to be delivered, by the queue of their shards.
	Outgoing map[string]string `json:"outgoing,omitempty"`
	// Features are the forms beyond those of 0.1 that the process can read; see protocol.Features.
	Features []string `json:"features,omitempty"`
	// Paused are the paused queues where the process begins nothing any more.
	Paused []string `json:"paused,omitempty"`
	// Waits says what lanes with a batch wait for, by queue.
	Waits map[string][]protocol.Wait `json:"waits,omitempty"`
	// Load is what the process uses, nil if it has not measured it yet.
	Load *Load `json:"load,omitempty"`
	// Recurring are the names of the recurring jobs in the process's file.
	Recurring []string `json:"recurring,omitempty"`
	// Static says which shards a static process owns. It is nil for other processes.
	Static *Share `json:"static,omitempty"`
}

// Share says which shards a static process owns. They are the shards whose index modulo Of is Number. If Of is 0, a function
// of the process's program chooses them.
type Share struct {
	Of     int `json:"of,omitempty"`
	Number int `json:"number"`
}

// String returns the share for people, "" for nil.
func (s *Share) String() string {
	switch {
	case s == nil:
		return ""
	case s.Of == 0:
		return "by a splitter"
	}
	return fmt.Sprintf("%d of %d", s.Number, s.Of)
}

// Includes reports whether the share is known to include the shards with an index.
func (s *Share) Includes(index int) bool { return s != nil && s.Of > 0 && index%s.Of == s.Number }

// Select returns the included shards.
func (s *Share) Select(shards []lowkiq.Shard) []lowkiq.Shard {
	return slices.DeleteFunc(shards, func(shard lowkiq.Shard) bool { return !s.Includes(shard.Index) })
}

// Load is what a process uses. It is measured every ten seconds, so that the text of the lease seldom changes.
type Load struct {
	CPU    float64 `json:"cpu"`       // mean number of CPUs in use since the measurement before
	Memory int64   `json:"memory_mb"` // resident memory in MiB; child processes do not count
	Slots  int     `json:"slots"`
	Busy   int     `json:"busy"` // slots in use
}

// RefusedFor returns the text about operations that Redis refuses on a shard, "" if there are none.
func (l Lease) RefusedFor(s lowkiq.Shard) string {
	for _, text := range l.Refused {
		if about, found := strings.CutPrefix(text, fmt.Sprintf("shard %s: ", s)); found {
			return about
		}
	}
	return ""
}

// Live returns the leases of all instances with a lease, by name. A lease that cannot be read is left out.
func Live(ctx context.Context, index *queuelease.Index) (map[string]Lease, error) {
	instances, err := index.All(ctx)
	if err != nil {
		return nil, err
	}
	live := map[string]Lease{}
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		if info, err := ParseLease(other.Lease); err == nil {
			live[other.Name] = info
		}
	}
	return live, nil
}

// MayBegin returns the instances that may still begin jobs of a queue. The queue must have been paused
// before the instances were read. Such an instance handles the queue, and its lease does not say that
// it has noticed the pause, or cannot be read. An instance without a lease begins nothing.
func MayBegin(queueName string, instances []queuelease.Instance) (names []string) {
	for _, other := range instances {
		if other.Lease == nil {
			continue
		}
		info, err := ParseLease(other.Lease)
		_, handles := info.Queues[queueName]
		if err != nil || handles && !slices.Contains(info.Paused, queueName) {
			names = append(names, other.Name)
		}
	}
	return names
}

// Process names a process for ever. Another process with the same pid has another Start.
type Process struct {
	Host  string `json:"host,omitempty"`  // boot id of the host; "" if unknown
	PIDs  string `json:"pids,omitempty"`  // PID namespace
	Times string `json:"times,omitempty"` // time namespace; Start has a meaning only inside it
	PID   int    `json:"pid,omitempty"`   // pid in that PID namespace
	Start string `json:"start,omitempty"` // clock ticks since the host's boot
	// Addresses are those of the host, separated by blanks. Copies of a virtual machine have all
	// other fields in common.
	Addresses string `json:"addresses,omitempty"`
}

// Identity is the part of an instance that the index of instances keeps beyond the end of its lease.
type Identity struct {
	Process
	TTL int64 `json:"ttl_ms"` // of its lease; the instance may need so long to notice the loss
	// Children says that the instance has handlers in child processes, which may outlive it for a
	// while. Each child has a guard, which lives as long and names this process; see procs.IsGuarded.
	Children bool `json:"children,omitempty"`
}

// IsGoneWithChildren reports whether the instance's process and all of its child processes are proven to exist no
// more. Children may outlive a killed node on a machine that gives them no time to end. Guards end
// after the children, so without guards there are no children. If guards cannot be seen, nothing is
// proven, and the lease must run out.
func (p Process) IsGoneWithChildren(id Identity) bool {
	if !p.IsGone(id.Process) {
		return false
	}
	if !id.Children {
		return true
	}
	guarded, err := procs.IsGuarded(procs.ProcessName(id.PID, id.Start))
	return err == nil && !guarded
}

// IsGone reports whether the other process is proven to exist no more. It must have run on the host of p,
// in the same PID and time namespaces, and nothing may have its pid and start now. An unknown field
// proves nothing. p must be this process. See "The protocol of a worker" in docs/design.md.
func (p Process) IsGone(other Process) bool {
	sameNamespaces := p.Host != "" && p.Host == other.Host && p.PIDs != "" && p.PIDs == other.PIDs && p.Times != "" && p.Times == other.Times
	if !sameNamespaces || other.PID == 0 || other.Start == "" || p == other {
		return false
	}
	start, err := procs.StartTime(other.PID)
	ended := errors.Is(err, procs.ErrEnded) || err == nil && start != other.Start
	if os.IsNotExist(err) {
		ended = !exists(other.PID) // a host may hide other users' processes from /proc
	}
	return ended && other.sameAddresses() && p.isUnmoved()
}

// sameAddresses reports whether this host has all addresses of the process's host.
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

// isUnmoved reports whether this process is still where it was when p was made. It is not if it was
// restored from a checkpoint on another host.
func (p Process) isUnmoved() bool {
	now := ThisProcess()
	now.Addresses = p.Addresses
	return now == p
}

// ThisProcess returns the calling process. It is empty outside Linux, where no death can be proven.
func ThisProcess() Process {
	host, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	times, err3 := os.Readlink("/proc/self/ns/time")
	if os.IsNotExist(err3) {
		times, err3 = "none", nil // before Linux 5.6 all processes share a time namespace
	}
	start, err4 := procs.StartTime(os.Getpid())
	if errors.Join(err1, err2, err3, err4) != nil {
		return Process{}
	}
	return Process{
		Host: strings.TrimSpace(string(host)), PIDs: pids, Times: times, PID: os.Getpid(), Start: start,
		Addresses: hostAddresses(),
	}
}

// maxAddresses is how many of its host's addresses a lease has. A router, or a host of many containers,
// has thousands. The first addresses are those of its network cards.
const maxAddresses = 8

// hostAddresses returns the addresses where others may reach this host. For a host without a
// network it returns the loopback addresses.
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
	return strings.Join(outer[:min(maxAddresses, len(outer))], " ")
}

// ipOf returns the address of an interface without the size of its network.
func ipOf(address net.Addr) string {
	if network, ok := address.(*net.IPNet); ok {
		return network.IP.String()
	}
	return address.String()
}

// NewBoot returns a new id for a run of a process.
func NewBoot() string { return ulid.Make().String() }

// InstanceName returns the name of the nth instance of a boot.
func InstanceName(node, boot string, n int) string { return fmt.Sprintf("%s/%s.%d", node, boot, n) }

// NodeOf returns the node's name in an instance's name.
func NodeOf(instance string) string {
	name, _, _ := strings.Cut(instance, "/")
	return name
}

// SameBoot reports whether two instances belong to the same process.
func SameBoot(x, y string) bool {
	i, j := strings.LastIndexByte(x, '.'), strings.LastIndexByte(y, '.')
	return i > 0 && j > 0 && x[:i] == y[:j]
}

// ParseLease reads the text of a lease.
func ParseLease(value []byte) (Lease, error) {
	var lease Lease
	if err := json.Unmarshal(value, &lease); err != nil {
		return lease, fmt.Errorf("lease: %w", err)
	}
	return lease, nil
}

// ParseIdentity reads an entry of the index of instances. It returns false if value is nil or unreadable.
func ParseIdentity(value []byte) (Identity, bool) {
	var id Identity
	if value == nil || json.Unmarshal(value, &id) != nil {
		return Identity{}, false
	}
	return id, true
}
