//go:build linux

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// relays are what the nodes of a fleet reach each other through: each node advertises a
// host of its own on the loopback network, where its relay passes gossip and Raft on.
// A process that is cut off passes no relay in either direction; Redis has none.
type relays struct {
	t *testing.T

	mu      sync.Mutex
	cut     int               // pid of the process cut off; guarded by mu
	conns   map[*passage]bool // guarded by mu
	close   []io.Closer
	running sync.WaitGroup
}

// passage is a TCP connection through a relay.
type passage struct {
	owner, caller int // pids
	ends          [2]net.Conn
}

func newRelays(t *testing.T) *relays {
	d := &relays{t: t, conns: map[*passage]bool{}}
	t.Cleanup(func() {
		d.isolate(-1)
		for _, c := range d.close {
			c.Close()
		}
		d.running.Wait()
	})
	return d
}

func nextPort(address string) string {
	host, port, _ := net.SplitHostPort(address)
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// up starts a node behind a relay.
func (d *relays) up(f *fleet, number int) {
	f.t.Helper()
	bind, host := redistest.Addresses(f.t, 2)[0], fmt.Sprintf("127.0.1.%d", number)
	relay := strings.Replace(bind, "127.0.0.1", host, 1)
	p := f.up(fmt.Sprintf("n%d", number), func(s *settings) { s.Bind, s.Advertise = bind, host })
	d.passUDP(p, relay, bind)
	d.passTCP(p, relay, bind)
	d.passTCP(p, nextPort(relay), nextPort(bind))
}

// isolate cuts off the process with a pid, -1 for all, 0 for none.
func (d *relays) isolate(pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = pid
	for c := range d.conns {
		if d.blocked(c.owner, c.caller) {
			c.ends[0].Close()
			c.ends[1].Close()
		}
	}
}

// blocked is called with mu held.
func (d *relays) blocked(owner, caller int) bool {
	return d.cut == -1 || d.cut > 0 && (d.cut == owner || d.cut == caller)
}

func (d *relays) passUDP(p *process, relay, bind string) {
	conn, err := net.ListenPacket("udp", relay)
	if err != nil {
		d.t.Fatal(err)
	}
	to, err := net.ResolveUDPAddr("udp", bind)
	if err != nil {
		d.t.Fatal(err)
	}
	d.close = append(d.close, conn)
	d.running.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			caller := d.caller("udp", from.(*net.UDPAddr).Port, 0)
			d.mu.Lock()
			blocked := d.blocked(p.pid(), caller)
			d.mu.Unlock()
			if !blocked {
				_, _ = conn.WriteTo(buf[:n], to) // gossip may be lost
			}
		}
	})
}

func (d *relays) passTCP(p *process, relay, bind string) {
	listener, err := net.Listen("tcp", relay)
	if err != nil {
		d.t.Fatal(err)
	}
	d.close = append(d.close, listener)
	d.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.running.Go(func() { d.pass(p, conn, bind) })
		}
	})
}

func (d *relays) pass(p *process, in net.Conn, bind string) {
	defer in.Close()
	caller := d.caller("tcp", in.RemoteAddr().(*net.TCPAddr).Port, in.LocalAddr().(*net.TCPAddr).Port)
	out, err := net.Dial("tcp", bind)
	if err != nil {
		return
	}
	defer out.Close()
	c := &passage{p.pid(), caller, [2]net.Conn{in, out}}
	d.mu.Lock()
	blocked := d.blocked(c.owner, c.caller)
	d.conns[c] = true
	d.mu.Unlock()
	defer func() { d.mu.Lock(); delete(d.conns, c); d.mu.Unlock() }()
	if blocked {
		return
	}
	d.running.Go(func() { _, _ = io.Copy(out, in); out.Close() })
	_, _ = io.Copy(in, out)
}

// caller is the pid of the test's process that has a socket with a local port, and with
// a remote one if that is not 0; 0 if none has.
func (d *relays) caller(network string, local, remote int) int {
	d.mu.Lock()
	cut := d.cut
	d.mu.Unlock()
	if network == "udp" && cut <= 0 {
		return 0 // it makes no difference
	}
	inode := socketOf(network, local, remote)
	if inode == "" {
		return 0
	}
	for _, pid := range offspring() {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if link, _ := os.Readlink(fd); link == "socket:["+inode+"]" {
				return pid
			}
		}
	}
	return 0
}

// offspring lists the children of this process.
func offspring() (pids []int) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// socketOf is the inode of a socket in /proc/net, "" if there is none.
func socketOf(network string, local, remote int) string {
	file, err := os.Open("/proc/self/net/" + network)
	if err != nil {
		return ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		word := strings.Fields(lines.Text())
		if len(word) > 9 && strings.HasSuffix(word[1], fmt.Sprintf(":%04X", local)) &&
			(remote == 0 || strings.HasSuffix(word[2], fmt.Sprintf(":%04X", remote))) {
			return word[9]
		}
	}
	return ""
}
