//go:build linux

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

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
	pids    map[string]int    // by the port from which a node sends gossip; guarded by mu
	close   []io.Closer
	running sync.WaitGroup
}

// passage is a TCP connection through a relay.
type passage struct {
	owner, caller int // pids
	ends          [2]net.Conn
}

func newRelays(t *testing.T) *relays {
	d := &relays{t: t, conns: map[*passage]bool{}, pids: map[string]int{}}
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
	_, port, _ := net.SplitHostPort(bind)
	d.mu.Lock()
	d.pids[port] = p.pid()
	d.mu.Unlock()
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
			d.mu.Lock()
			blocked := d.blocked(p.pid(), d.pids[strconv.Itoa(from.(*net.UDPAddr).Port)])
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
	caller := d.caller(in)
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

// caller returns the pid of the node that has dialed a connection, 0 if it has closed it.
func (d *relays) caller(conn net.Conn) int {
	inode, err := inodeOf(conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		d.t.Errorf("the socket that dialed %s: %v", conn.LocalAddr(), err)
	}
	if inode == 0 {
		return 0
	}
	d.mu.Lock()
	pids := slices.Collect(maps.Values(d.pids))
	d.mu.Unlock()
	for _, pid := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if link, _ := os.Readlink(fd); link == fmt.Sprintf("socket:[%d]", inode) {
				return pid
			}
		}
	}
	return 0
}

// socketID is inet_diag_sockid of linux/inet_diag.h. Ports and addresses are in network byte order.
type socketID struct {
	LocalPort, RemotePort [2]byte
	Local, Remote         [16]byte
	Interface             uint32
	Cookie                [2]uint32
}

// inodeOf asks the kernel for the inode of a TCP socket of this host. It does not read /proc/net/tcp, which also lists
// the thousands of closed sockets that other tests leave.
func inodeOf(local, remote *net.TCPAddr) (uint32, error) {
	type (
		request struct { // inet_diag_req_v2
			unix.NlMsghdr
			Family, Protocol, Extensions, _ uint8
			States                          uint32
			ID                              socketID
		}
		answer struct { // inet_diag_msg
			unix.NlMsghdr
			Family, State, Timer, Retransmissions uint8
			ID                                    socketID
			Expires, Received, Unsent, UID, Inode uint32
		}
	)
	id := socketID{Cookie: [2]uint32{math.MaxUint32, math.MaxUint32}} // no cookie
	binary.BigEndian.PutUint16(id.LocalPort[:], uint16(local.Port))
	binary.BigEndian.PutUint16(id.RemotePort[:], uint16(remote.Port))
	copy(id.Local[:], local.IP.To4())
	copy(id.Remote[:], remote.IP.To4())
	ask := request{Family: unix.AF_INET, Protocol: unix.IPPROTO_TCP, States: math.MaxUint32, ID: id}
	ask.Len, ask.Type, ask.Flags = uint32(binary.Size(ask)), unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_REQUEST
	message, err := binary.Append(nil, binary.NativeEndian, ask)
	if err != nil {
		return 0, err
	}
	kernel, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(kernel)
	if err := unix.Sendto(kernel, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	got := make([]byte, 4096)
	n, _, err := unix.Recvfrom(kernel, got, 0)
	if err != nil {
		return 0, err
	}
	var said answer
	if _, err := binary.Decode(got[:n], binary.NativeEndian, &said.NlMsghdr); err != nil {
		return 0, err
	}
	if said.Type == unix.NLMSG_ERROR {
		var refused struct{ Code int32 }
		if _, err := binary.Decode(got[binary.Size(said.NlMsghdr):n], binary.NativeEndian, &refused); err != nil {
			return 0, err
		}
		return 0, unix.Errno(-refused.Code)
	}
	_, err = binary.Decode(got[:n], binary.NativeEndian, &said)
	return said.Inode, err
}
