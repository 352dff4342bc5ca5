package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

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
}

// process names a process for ever: another one with the same pid has another start.
type process struct {
	Host  string `json:"host,omitempty"`  // boot id of the host; "" = unknown
	PIDs  string `json:"pids,omitempty"`  // PID namespace
	PID   int    `json:"pid,omitempty"`   // in that namespace
	Start string `json:"start,omitempty"` // clock ticks since the host's boot
}

// identity is what outlives an instance's lease, in the index of instances.
type identity struct {
	process
	TTL int64 `json:"ttl_ms"` // of its lease: how long it may need to notice its loss
	// Children: it has handlers in child processes, which may live on for a moment.
	Children bool `json:"children,omitempty"`
}

// gone reports whether the other process is proven to exist no more: it ran on this
// host, in this PID namespace, and nothing has its pid and start (design, section 6).
func (p process) gone(other process) bool {
	if p.Host == "" || p.Host != other.Host || p.PIDs != other.PIDs || other.PID == 0 || other.Start == "" || p == other {
		return false
	}
	start, err := processStartTicks(other.PID)
	if os.IsNotExist(err) {
		return !exists(other.PID) // a host may hide other users' processes from /proc
	}
	return errors.Is(err, errEnded) || err == nil && start != other.Start
}

// errEnded is the answer for a process that has ended and waits for its parent.
var errEnded = errors.New("the process has ended")

func thisProcess() process {
	host, err1 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	start, err3 := processStartTicks(os.Getpid())
	if err1 != nil || err2 != nil || err3 != nil {
		return process{} // not Linux: death is never proven this way
	}
	return process{Host: strings.TrimSpace(string(host)), PIDs: pids, PID: os.Getpid(), Start: start}
}

// processStartTicks reads field 22 of /proc/PID/stat. A zombie has ended.
func processStartTicks(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if os.IsNotExist(err) {
			if _, err := os.Stat("/proc/self/stat"); err != nil {
				return "", fmt.Errorf("no /proc: %v", err)
			}
		}
		return "", err
	}
	// The name in parentheses may hold spaces and parentheses itself.
	i := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text[i+1:]))
	if i < 0 || len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat: unexpected %q", pid, text)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", errEnded
	}
	return fields[19], nil
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
