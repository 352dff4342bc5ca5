package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip takes part in the gossip for a process. Its methods may be called from any goroutine at any time.
type Gossip struct {
	cfg     Config
	conf    *memberlist.Config
	table   *table
	dirty   chan struct{} // says that the meta has changed; holds one value
	address atomic.Pointer[string]

	metaMu sync.Mutex // guards meta
	meta   Meta

	failedJoins map[string]time.Time // when the failure of an address was logged last; joinLoop's own
}

// New checks the configuration and builds a Gossip. It sends nothing until Run.
func New(cfg Config) (*Gossip, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	conf, err := cfg.memberlistConfig()
	if err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	meta, err := cfg.Meta.encodeMeta()
	if err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	g := &Gossip{cfg: cfg, conf: conf, table: newTable(meta), meta: cfg.Meta, dirty: make(chan struct{}, 1), failedJoins: map[string]time.Time{}}
	conf.Delegate, conf.Events = g.table, g.table
	return g, nil
}

// Members returns all processes that gossip knows, including this process, ordered by node and boot. A
// departed process is remembered for ten minutes.
func (g *Gossip) Members() []Member { return g.table.snapshot() }

// Changed returns a channel that holds a value after Members has changed. It is for a single receiver,
// which must receive first and call Members then.
func (g *Gossip) Changed() <-chan struct{} { return g.table.changed }

// State returns the state of the instance's process in gossip.
func (g *Gossip) State(i Instance) State {
	m, ok := g.table.findMember(i)
	if !ok {
		return Unknown
	}
	return m.State
}

// Succeeded reports whether gossip has shown a later instance of the same boot. Only the process
// itself says so, after it has given this instance up.
func (g *Gossip) Succeeded(i Instance) bool {
	m, ok := g.table.findMember(i)
	return ok && m.Instance.N > i.N
}

// Address returns the host:port where others reach this process, "" before Run has opened it.
func (g *Gossip) Address() string {
	if p := g.address.Load(); p != nil {
		return *p
	}
	return ""
}

// Update changes the Meta of this process. It does not wait until another process has heard of it.
func (g *Gossip) Update(change func(*Meta)) error {
	g.metaMu.Lock()
	defer g.metaMu.Unlock()
	meta := g.meta
	change(&meta)
	data, err := meta.encodeMeta()
	if err != nil {
		return err
	}
	if meta != g.meta {
		g.meta = meta
		g.table.setMeta(data)
		trySend(g.dirty)
	}
	return nil
}

// Run takes part until ctx is done. Then it says goodbye and returns nil. It may be called once. A
// probe of memberlist that is under way may outlive it by a probe interval.
func (g *Gossip) Run(ctx context.Context) error {
	list, err := g.openList()
	if err != nil {
		return fmt.Errorf("gossip on %s: %w", g.cfg.Bind, err)
	}
	self := list.LocalNode()
	address := net.JoinHostPort(self.Addr.String(), strconv.Itoa(int(self.Port)))
	g.address.Store(&address)
	trySend(g.table.changed)
	var joins sync.WaitGroup
	joins.Go(func() { g.joinLoop(ctx, list) })
	g.updateLoop(ctx, list)
	joins.Wait()
	g.announceLeave(list)
	if err := list.Shutdown(); err != nil {
		return fmt.Errorf("gossip on %s: shutdown: %w", g.cfg.Bind, err)
	}
	return nil
}

// openList opens the ports and begins to take part.
func (g *Gossip) openList() (*memberlist.Memberlist, error) {
	if g.conf.Transport != nil { // in tests
		return memberlist.Create(g.conf)
	}
	network, err := newBoundTransport(g.conf)
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

// sayTimeout is how long a message may wait for its rounds of gossip.
const sayTimeout = time.Second

// updateLoop publishes this process's Meta each time it has changed.
func (g *Gossip) updateLoop(ctx context.Context, list *memberlist.Memberlist) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		}
		if err := list.UpdateNode(sayTimeout); err != nil {
			g.cfg.Log.Debug("gossip update", "err", err) // memberlist goes on sending it
		}
	}
}

// announceLeave publishes the departure in the Meta, so that others do not take it for a death. Then it leaves memberlist.
func (g *Gossip) announceLeave(list *memberlist.Memberlist) {
	if err := g.Update(func(m *Meta) { m.Leaving = true }); err != nil {
		g.cfg.Log.Warn("gossip leave", "err", err)
	}
	for _, say := range []func(time.Duration) error{list.UpdateNode, list.Leave} {
		if err := say(sayTimeout); err != nil {
			g.cfg.Log.Debug("gossip leave", "err", err) // others will notice the end by themselves
		}
	}
}

// joinPause is how long a process that is in the gossip waits before it joins again.
const joinPause = 10 * time.Second

// joinLoop joins seeds and peers at once, and then every joinPause with some jitter. Until all have
// been tried and one has answered, it joins them every second.
func (g *Gossip) joinLoop(ctx context.Context, list *memberlist.Memberlist) {
	joined := false
	for {
		if g.joinAddresses(ctx, list) {
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

// maxPeersAtOnce is how many peers a round joins at most. Each peer tells about all processes that
// it knows, so a hundred nodes that start together need not all talk to each other.
const maxPeersAtOnce = 3

// joinAddresses joins the seeds, and some of the peers, that are not alive in the gossip yet. It
// reports whether it has tried all of them and one has answered.
func (g *Gossip) joinAddresses(ctx context.Context, list *memberlist.Memberlist) bool {
	seeds := g.unjoinedAddresses(g.cfg.Join)
	var peers []string
	if g.cfg.Peers != nil {
		found, err := g.cfg.Peers(ctx)
		if err != nil {
			g.cfg.Log.Debug("gossip peers", "err", err)
		}
		peers = g.unjoinedAddresses(found)
	}
	missing := append(seeds, pickRandom(peers, maxPeersAtOnce)...)
	maps.DeleteFunc(g.failedJoins, func(address string, _ time.Time) bool {
		return !slices.Contains(seeds, address) && !slices.Contains(peers, address)
	})
	answered, all := len(missing) == 0, len(peers) <= maxPeersAtOnce
	for _, address := range missing {
		if ctx.Err() != nil {
			return answered && all
		}
		_, err := list.Join([]string{address})
		g.logJoin(address, err)
		answered = answered || err == nil
	}
	return answered && all
}

// failedEvery is how often the failed joins of an address are logged at most.
const failedEvery = time.Minute

// logJoin logs a join that failed. A seed is configured, so its failure may be a mistake.
func (g *Gossip) logJoin(address string, err error) {
	if last, failed := g.failedJoins[address]; err == nil || failed && time.Since(last) < failedEvery {
		return
	}
	g.failedJoins[address] = time.Now()
	why := err.Error()
	if _, reason, ok := strings.Cut(why, "failed to join "+address+": "); ok { // in a list of one item
		why = strings.TrimSpace(reason)
	}
	if slices.Contains(g.cfg.Join, address) {
		g.cfg.Log.Warn("gossip join failed; the address must be that of a node's gossip, of the same cluster and with the same gossip keys",
			"address", address, "err", why)
		return
	}
	g.cfg.Log.Info("gossip join failed", "address", address, "err", why)
}

// pickRandom returns at most n of the addresses. It reorders them.
func pickRandom(addresses []string, n int) []string {
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return addresses[:min(n, len(addresses))]
}

// unjoinedAddresses returns the addresses where no process is alive, without duplicates.
func (g *Gossip) unjoinedAddresses(addresses []string) []string {
	alive := map[string]bool{g.Address(): true}
	for _, m := range g.Members() {
		if m.State == Alive {
			alive[m.Address] = true
		}
	}
	addresses = slices.Clone(addresses) // they belong to the caller
	slices.Sort(addresses)
	return slices.DeleteFunc(slices.Compact(addresses), func(a string) bool { return alive[a] || a == "" })
}
