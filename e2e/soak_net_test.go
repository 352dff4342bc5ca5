//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// soakNetEnv is 1 in the process of a soak that has a network of its own; 0 asks for proxies.
const soakNetEnv = "LOWKIQ_SOAK_NET"

// hosts is the network of one cluster: a bridge with Redis and the test on it, and a network
// namespace of its own for each node. All of it lies in the private network namespace of
// the test's process and goes with it.
type hosts struct {
	t      *testing.T
	number int // of the cluster: no two share a bridge

	mu   sync.Mutex
	made map[string]string // node -> address; guarded by mu
}

// inOwnNetwork runs this test again in a network namespace of its own, if root can have one,
// and reports whether it did; the test that called has nothing left to do then.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	switch os.Getenv(soakNetEnv) {
	case "1":
		t.Log("network namespaces: one for each node")
		return false
	case "0":
		t.Log("no network namespaces, as asked for: proxies")
		return false
	}
	for _, tool := range []string{"unshare", "ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Logf("NO NETWORK NAMESPACES: they need root, unshare, ip and iptables; faults of the network are those of proxies")
			return false
		}
	}
	const prepare = `set -e; mkdir -p /run/netns; mount -t tmpfs none /run/netns; ip link set lo up; exec "$@"`
	argv := append([]string{"--net", "--mount", "--kill-child", "--fork", "sh", "-c", prepare, "sh"}, os.Args...)
	again := exec.CommandContext(t.Context(), "unshare", argv...)
	again.Env = append(os.Environ(), soakNetEnv+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		t.Errorf("the soak in a network namespace of its own: %v", err)
	}
	return true
}

// newHosts makes the network of a cluster, nil outside of a network namespace of the test's own.
func newHosts(t *testing.T, number int) *hosts {
	t.Helper()
	if os.Getenv(soakNetEnv) != "1" {
		return nil
	}
	h := &hosts{t: t, number: number, made: map[string]string{}}
	h.must("ip", "link", "add", h.bridge(), "type", "bridge")
	h.must("ip", "addr", "add", h.redis()+"/24", "dev", h.bridge())
	h.must("ip", "link", "set", h.bridge(), "up")
	return h
}

func (h *hosts) bridge() string { return fmt.Sprintf("lk%d", h.number) }

// redis is the address of Redis and of the test.
func (h *hosts) redis() string { return fmt.Sprintf("10.213.%d.1", h.number) }

func (h *hosts) space(node string) string { return fmt.Sprintf("lk%d-%s", h.number, node) }

// address is that of a node, which gets its host now if it has none yet.
func (h *hosts) address(node string) string {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.made[node] == "" {
		address, space, link := fmt.Sprintf("10.213.%d.%d", h.number, 10+len(h.made)), h.space(node), fmt.Sprintf("lk%d.%s", h.number, node)
		h.must("ip", "netns", "add", space)
		h.must("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
		h.must("ip", "link", "set", link, "master", h.bridge(), "up")
		h.must("ip", "-n", space, "addr", "add", address+"/24", "dev", "eth0")
		h.must("ip", "-n", space, "link", "set", "eth0", "up")
		h.must("ip", "-n", space, "link", "set", "lo", "up")
		h.made[node] = address
	}
	return h.made[node]
}

// on is what comes before the command line of a process on a node's host.
func (h *hosts) on(node string) []string {
	h.t.Helper()
	h.address(node)
	return []string{"ip", "netns", "exec", h.space(node)}
}

// rule adds a rule to a host's firewall: "INPUT", or "OUTPUT", and what iptables(8) takes.
func (h *hosts) rule(node, chain string, match ...string) {
	h.t.Helper()
	h.must("ip", append([]string{"netns", "exec", h.space(node), "iptables", "-w", "-A", chain}, match...)...)
}

// heal ends all rules of a host.
func (h *hosts) heal(node string) {
	h.t.Helper()
	h.must("ip", "netns", "exec", h.space(node), "iptables", "-w", "-F")
}

func (h *hosts) must(name string, args ...string) {
	h.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}
