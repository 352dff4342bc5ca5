package membership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip is a process's part in the gossip. Its methods may be called from any
// goroutine, at any time.
type Gossip struct {
	cfg     Config
	conf    *memberlist.Config
	table   *table
	dirty   chan struct{} // one slot: the meta has changed
	address atomic.Pointer[string]

	metaMu sync.Mutex // guards meta
	meta   Meta
}

// New checks the configuration and builds a Gossip that is silent until Run.
func New(cfg Config) (*Gossip, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conf, err := cfg.memberlist()
	if err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	meta, err := cfg.Meta.encode()
	if err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	g := &Gossip{cfg: cfg, conf: conf, table: newTable(meta), meta: cfg.Meta, dirty: make(chan struct{}, 1)}
	conf.Delegate, conf.Events = g.table, g.table
	return g, nil
}

// Members returns all processes known by gossip, this one included, ordered by node and
// boot. The departed are remembered for ten minutes.
func (g *Gossip) Members() []Member { return g.table.snapshot() }

// Changed returns a channel that holds a value after Members changed. It has one
// slot for one receiver: read, then look.
func (g *Gossip) Changed() <-chan struct{} { return g.table.changed }

// State returns what gossip says of the instance's process.
func (g *Gossip) State(i Instance) State {
	m, ok := g.table.find(i)
	if !ok {
		return Unknown
	}
	return m.State
}

// Succeeded reports whether gossip has shown a later instance of the same boot: the
// process itself said that it has given this one up.
func (g *Gossip) Succeeded(i Instance) bool {
	m, ok := g.table.find(i)
	return ok && m.Instance.N > i.N
}

// Address returns host:port under which the others know this process, "" before Run
// has opened it.
func (g *Gossip) Address() string {
	if p := g.address.Load(); p != nil {
		return *p
	}
	return ""
}

// Update changes what the process says of itself. It does not wait until another
// process knows.
func (g *Gossip) Update(change func(*Meta)) error {
	g.metaMu.Lock()
	defer g.metaMu.Unlock()
	meta := g.meta
	change(&meta)
	data, err := meta.encode()
	if err != nil {
		return err
	}
	if meta != g.meta {
		g.meta = meta
		g.table.setMeta(data)
		wake(g.dirty)
	}
	return nil
}

// Run takes part until ctx is done; then it says goodbye and returns nil. It may be
// called once. A probe that memberlist has under way may outlive it by its interval.
func (g *Gossip) Run(ctx context.Context) error {
	list, err := g.open()
	if err != nil {
		return fmt.Errorf("gossip on %s: %w", g.cfg.Bind, err)
	}
	self := list.LocalNode()
	address := net.JoinHostPort(self.Addr.String(), strconv.Itoa(int(self.Port)))
	g.address.Store(&address)
	wake(g.table.changed)
	var joins sync.WaitGroup
	joins.Go(func() { g.joinLoop(ctx, list) })
	g.updateLoop(ctx, list)
	joins.Wait()
	g.leave(list)
	if err := list.Shutdown(); err != nil {
		return fmt.Errorf("gossip on %s: shutdown: %w", g.cfg.Bind, err)
	}
	return nil
}

// open opens the ports and begins to take part.
func (g *Gossip) open() (*memberlist.Memberlist, error) {
	if g.conf.Transport != nil { // a test's
		return memberlist.Create(g.conf)
	}
	network, err := listen(g.conf)
	if err != nil {
		return nil, err
	}
	if g.conf.BindPort == 0 {
		g.conf.BindPort = network.GetAutoBindPort()
		g.conf.AdvertisePort = g.conf.BindPort
	}
	g.conf.Transport = network
	list, err := memberlist.Create(g.conf)
	if err != nil {
		return nil, errors.Join(err, network.Shutdown())
	}
	return list, nil
}

// sayTimeout bounds how long one message waits for its rounds of gossip.
const sayTimeout = time.Second

// updateLoop says what changed of this process.
func (g *Gossip) updateLoop(ctx context.Context, list *memberlist.Memberlist) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		}
		if err := list.UpdateNode(sayTimeout); err != nil {
			g.cfg.Log.Debug("gossip update", "err", err) // it goes on being sent
		}
	}
}

// leave says goodbye: first in the meta, so that it is not taken for a death, then
// to the library.
func (g *Gossip) leave(list *memberlist.Memberlist) {
	if err := g.Update(func(m *Meta) { m.Leaving = true }); err != nil {
		g.cfg.Log.Warn("gossip leave", "err", err)
	}
	for _, say := range []func(time.Duration) error{list.UpdateNode, list.Leave} {
		if err := say(sayTimeout); err != nil {
			g.cfg.Log.Debug("gossip leave", "err", err) // then the others notice by themselves
		}
	}
}

// joinPause is how long a process that is in the gossip waits before it joins again.
const joinPause = 10 * time.Second

// joinLoop joins seeds and peers at once, every second until all have been tried and one
// has answered, and then every joinPause with some jitter.
func (g *Gossip) joinLoop(ctx context.Context, list *memberlist.Memberlist) {
	joined := false
	for {
		if g.join(ctx, list) {
			joined = true
		}
		pause := joinPause
		if !joined {
			pause = time.Second
		}
		timer := time.NewTimer(pause + rand.N(pause/10+1))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// peersAtOnce bounds how many peers one round joins: each tells of all it knows, and a
// hundred nodes that start together need not all talk to each other.
const peersAtOnce = 3

// join contacts seeds, and some of the peers, which should be in the gossip and are not alive
// in it, and reports whether none is left to be joined and one has answered.
func (g *Gossip) join(ctx context.Context, list *memberlist.Memberlist) bool {
	seeds := g.missing(g.cfg.Join)
	var peers []string
	if g.cfg.Peers != nil {
		found, err := g.cfg.Peers(ctx)
		if err != nil {
			g.cfg.Log.Debug("gossip peers", "err", err)
		}
		peers = g.missing(found)
	}
	missing := append(seeds, some(peers, peersAtOnce)...)
	answered, all := len(missing) == 0, len(peers) <= peersAtOnce
	for _, address := range missing {
		if ctx.Err() != nil {
			return answered && all
		}
		if _, err := list.Join([]string{address}); err != nil {
			g.cfg.Log.Info("gossip join", "address", address, "err", err)
			continue
		}
		answered = true
	}
	return answered && all
}

// some returns up to n of the addresses, any of them.
func some(addresses []string, n int) []string {
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return addresses[:min(n, len(addresses))]
}

// missing returns the addresses at which no process is alive, each once.
func (g *Gossip) missing(addresses []string) []string {
	alive := map[string]bool{g.Address(): true}
	for _, m := range g.Members() {
		if m.State == Alive {
			alive[m.Address] = true
		}
	}
	addresses = slices.Clone(addresses) // the caller's
	slices.Sort(addresses)
	return slices.DeleteFunc(slices.Compact(addresses), func(a string) bool { return alive[a] || a == "" })
}
