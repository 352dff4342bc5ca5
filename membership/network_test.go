package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"
)

// TestMain looks for leaks for longer than goleak does by itself: memberlist's
// Shutdown does not wait for a probe under way, which ends within its interval, and
// that is stretched up to eightfold on a busy machine.
func TestMain(m *testing.M) {
	code := m.Run()
	for deadline := time.Now().Add(10 * time.Second); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var errCut = errors.New("network is cut")

// network is loopback with cuts in it.
type network struct {
	mu  sync.Mutex // guards cut
	cut map[string]int
}

func newNetwork() *network { return &network{cut: map[string]int{}} }

// island puts the address on an island; only those on the same one (0 at first)
// reach each other.
func (n *network) island(number int, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addresses {
		n.cut[a] = number
	}
}

func (n *network) reaches(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[from] == n.cut[to]
}

// transport is memberlist's own, real sockets, with the network's cuts.
type transport struct {
	*memberlist.NetTransport
	network *network
	address string
}

func (n *network) open(t *testing.T) *transport {
	t.Helper()
	nt, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{"127.0.0.1"}, Logger: log.New(io.Discard, "", 0)})
	if err != nil {
		t.Fatal(err)
	}
	ip, port, err := nt.FinalAdvertiseAddr("", 0)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: ip, Port: port}).String()
	return &transport{NetTransport: nt, network: n, address: address}
}

func (c *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	if !c.network.reaches(c.address, to.Addr) {
		return time.Now(), nil // lost, as packets are
	}
	return c.NetTransport.WriteToAddress(b, to)
}

func (c *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if !c.network.reaches(c.address, to.Addr) {
		return nil, errCut
	}
	return c.NetTransport.DialAddressTimeout(to, timeout)
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

// start starts a process and waits until it has an address.
func start(t *testing.T, n *network, cfg Config) *process {
	t.Helper()
	if cfg.Cluster == "" {
		cfg.Cluster = "c"
	}
	cfg.Boot, cfg.Bind, cfg.Meta.N = "B"+cfg.Node, "127.0.0.1:0", 1
	if n != nil {
		cfg.transport = n.open(t)
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
	eventually(t, 5*time.Second, "it listens", func() bool { return p.Address() != "" })
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
	eventually(t, 10*time.Second, "all see all", func() bool { return agree(all, Alive, all...) })
	return all
}

// agree reports whether all of the observers say the state of each of the observed.
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

func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Since(start) > limit {
			t.Fatalf("%s: not within %s", what, limit)
		}
		<-tick.C
	}
	return time.Since(start)
}
