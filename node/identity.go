package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/lowkiq/lowkiq/internal/procs"
	"github.com/lowkiq/lowkiq/rebalance"
)

// LeaseInfo is what a lease says of its instance. It says the same until something
// changes, so that readers need not parse it again.
type LeaseInfo struct {
	Node     string         `json:"node"`
	Boot     string         `json:"boot"`
	Instance string         `json:"instance"`
	Start    time.Time      `json:"start"` // by Redis's clock
	Weight   int            `json:"weight,omitempty"`
	Gossip   string         `json:"gossip,omitempty"` // host:port
	Raft     string         `json:"raft,omitempty"`   // host:port
	Seat     rebalance.Seat `json:"seat"`
	HTTP     string         `json:"http,omitempty"`
	Version  string         `json:"version,omitempty"`
	Queues   map[string]int `json:"queues"` // handled queues, and how many shards of each are owned
	Draining bool           `json:"draining,omitempty"`
	TTL      int64          `json:"ttl_ms"`
	Process  process        `json:"process"`
	Refused  []string       `json:"refused,omitempty"` // operations that Redis refuses; see refusedOps
	// Unready are the queues whose handler cannot work, and why. They are not given shards of it
	// while another node could take them.
	Unready map[string]string `json:"unready,omitempty"`
	// Features are what the process reads beyond the forms of 0.1; see queue.Features.
	Features []string `json:"features,omitempty"`
}

// process names a process for ever: another one with the same pid has another start.
type process struct {
	Host  string `json:"host,omitempty"`  // boot id of the host; "" = unknown
	PIDs  string `json:"pids,omitempty"`  // PID namespace
	Times string `json:"times,omitempty"` // time namespace: Start means nothing in another one
	PID   int    `json:"pid,omitempty"`   // in that namespace
	Start string `json:"start,omitempty"` // clock ticks since the host's boot
	// Addresses of the host, separated by blanks. Copies of one virtual machine have all of
	// the above in common.
	Addresses string `json:"addresses,omitempty"`
}

// identity is what outlives an instance's lease, in the index of instances.
type identity struct {
	process
	TTL int64 `json:"ttl_ms"` // of its lease: how long it may need to notice its loss
	// Children: it has handlers in child processes, which may live on for a while. Each has a guard that lives as long and
	// names this process; see procs.Guarded.
	Children bool `json:"children,omitempty"`
}

// gone reports whether the other process is proven to exist no more: it ran on this
// host, in this process's namespaces of pids and time, and nothing has its pid and start
// (design, section 6). What is not known proves nothing.
func (p process) gone(other process) bool {
	if !p.near(other) || other.PID == 0 || other.Start == "" || p == other {
		return false
	}
	start, err := procs.Start(other.PID)
	ended := errors.Is(err, procs.ErrEnded) || err == nil && start != other.Start
	if os.IsNotExist(err) {
		ended = !exists(other.PID) // a host may hide other users' processes from /proc
	}
	return ended && other.sameAddresses() && p.unmoved()
}

// near reports whether the other process ran where this one looks, as far as names tell.
func (p process) near(other process) bool {
	return p.Host != "" && p.Host == other.Host && p.PIDs != "" && p.PIDs == other.PIDs && p.Times != "" && p.Times == other.Times
}

// sameAddresses reports whether this host has all the addresses of the process's host.
func (p process) sameAddresses() bool {
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

// unmoved reports whether this process is still where it was when p was made, and not
// restored from a checkpoint on another host.
func (p process) unmoved() bool {
	now := thisProcess()
	now.Addresses = p.Addresses
	return now == p
}

func thisProcess() process {
	host, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	times, err3 := os.Readlink("/proc/self/ns/time")
	if os.IsNotExist(err3) {
		times, err3 = "none", nil // before Linux 5.6 all share one
	}
	start, err4 := procs.Start(os.Getpid())
	if errors.Join(err1, err2, err3, err4) != nil {
		return process{} // not Linux: death is never proven this way
	}
	return process{
		Host: strings.TrimSpace(string(host)), PIDs: pids, Times: times, PID: os.Getpid(), Start: start, Addresses: hostAddresses(),
	}
}

// addressesMost bounds what a lease says of its host's addresses: a router or a host of
// many containers has thousands. The first ones are those of its network cards.
const addressesMost = 8

// hostAddresses are those at which others may reach this host; of a host without a
// network its loopback's.
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

func newBoot() string { return ulid.Make().String() }

func instanceName(node, boot string, n int) string { return fmt.Sprintf("%s/%s.%d", node, boot, n) }

// nodeOf is the node's name in an instance's name.
func nodeOf(instance string) string {
	name, _, _ := strings.Cut(instance, "/")
	return name
}

// sameBoot reports whether two instances are runs of one process.
func sameBoot(x, y string) bool {
	i, j := strings.LastIndexByte(x, '.'), strings.LastIndexByte(y, '.')
	return i > 0 && j > 0 && x[:i] == y[:j]
}

func parseLease(value []byte) (LeaseInfo, error) {
	var info LeaseInfo
	if err := json.Unmarshal(value, &info); err != nil {
		return info, fmt.Errorf("lease: %w", err)
	}
	return info, nil
}
