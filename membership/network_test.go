package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// inBubble runs a story whose processes gossip in memory and in the bubble's time. A busy machine
// cannot make them miss each other.
func inBubble(t *testing.T, story func(t *testing.T, n *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // memberlist's Shutdown does not wait for its probes
		story(t, &network{ends: map[string]*transport{}, cut: map[string]int{}})
	})
}

var errCut = errors.New("network is cut")

// network connects the processes of a bubble. It may be cut.
type network struct {
	mu   sync.Mutex            // guards all below
	ends map[string]*transport // by address
	cut  map[string]int        // the island an address is on
	port int                   // last one given
	sent int                   // bytes of packets, of all processes
}

// packets returns how many bytes of packets have been sent so far.
func (n *network) packets() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent
}

// island puts addresses on an island. Only addresses on the same island reach each other. All begin
// on island 0.
func (n *network) island(number int, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addresses {
		n.cut[a] = number
	}
}

// open returns a new end of the network.
func (n *network) open() *transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.port++
	t := &transport{network: n, port: n.port, packets: make(chan *memberlist.Packet, 1000), streams: make(chan net.Conn, 1000)}
	t.address = net.JoinHostPort("127.0.0.1", fmt.Sprint(n.port))
	n.ends[t.address] = t
	return t
}

// other returns the end at an address if from reaches it.
func (n *network) other(from, to string) (*transport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	end, there := n.ends[to]
	if !there || n.cut[from] != n.cut[to] {
		return nil, errCut
	}
	return end, nil
}

// transport is one process's end of the network.
type transport struct {
	network *network
	address string
	port    int
	packets chan *memberlist.Packet
	streams chan net.Conn
}

var _ memberlist.Transport = (*transport)(nil)

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.IPv4(127, 0, 0, 1), t.port, nil
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *transport) StreamCh() <-chan net.Conn           { return t.streams }

// WriteTo loses packets that cannot arrive.
func (t *transport) WriteTo(b []byte, to string) (time.Time, error) {
	now := time.Now()
	t.network.mu.Lock()
	t.network.sent += len(b)
	t.network.mu.Unlock()
	if end, err := t.network.other(t.address, to); err == nil {
		select {
		case end.packets <- &memberlist.Packet{Buf: slices.Clone(b), From: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: t.port}, Timestamp: now}:
		default:
		}
	}
	return now, nil
}

func (t *transport) DialTimeout(to string, _ time.Duration) (net.Conn, error) {
	end, err := t.network.other(t.address, to)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case end.streams <- far:
		return near, nil
	default:
		return nil, errCut
	}
}

func (t *transport) Shutdown() error {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	delete(t.network.ends, t.address)
	return nil
}

// process is a running Gossip.
type process struct {
	*Gossip
	cancel context.CancelFunc
	done   chan struct{}
}

// leave ends the process in order.
func (p *process) leave() {
	p.cancel()
	<-p.done
}

func (p *process) instance() Instance { return Instance{p.cfg.Node, p.cfg.Boot, 1} }

// start starts a process, on loopback without a network, and waits until it has an address.
func start(t *testing.T, n *network, cfg Config) *process {
	t.Helper()
	if cfg.Cluster == "" {
		cfg.Cluster = "c"
	}
	cfg.Boot, cfg.Bind, cfg.Meta.N = "B"+cfg.Node, "127.0.0.1:0", 1
	if n != nil {
		cfg.transport = n.open()
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{g, cancel, make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := g.Run(ctx); err != nil {
			t.Errorf("%s: Run: %v", cfg.Node, err)
		}
	}()
	t.Cleanup(p.leave)
	eventually(t, "it listens", func() bool { return p.Address() != "" })
	return p
}

// startAll starts processes that join the first of them and waits until all see all.
func startAll(t *testing.T, n *network, cfg Config, names ...string) []*process {
	t.Helper()
	var all []*process
	for _, name := range names {
		cfg.Node = name
		if len(all) > 0 {
			cfg.Join = []string{all[0].Address()}
		}
		all = append(all, start(t, n, cfg))
	}
	eventually(t, "all see all", func() bool { return agree(all, Alive, all...) })
	return all
}

// agree reports whether all observers see this state of all observed processes.
func agree(observers []*process, state State, observed ...*process) bool {
	for _, p := range observers {
		for _, q := range observed {
			if p.State(q.instance()) != state {
				return false
			}
		}
	}
	return true
}

// patience is in the bubble's time. On loopback it must be enough for a machine that runs the tests
// of all packages at once.
const patience = time.Minute

// eventually waits for a condition and returns how long it took.
func eventually(t *testing.T, what string, condition func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Since(start) > patience {
			t.Fatalf("%s: not within %s", what, patience)
		}
		<-tick.C
	}
	return time.Since(start)
}
