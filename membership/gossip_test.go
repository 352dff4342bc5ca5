package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const ttl = 3 * time.Second

func TestJoinUpdateLeave(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		all := startAll(t, n, Config{TTL: ttl}, "n1", "n2", "n3")
		first, second := all[0], all[1]
		if got := len(first.Members()); got != 3 {
			t.Errorf("got %d members, want 3", got)
		}
		err := second.Update(func(m *Meta) { m.N, m.Draining, m.RaftInfo = 2, true, "B#1.1" })
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the update has come", func() bool { return first.Succeeded(second.instance()) })
		member := first.Members()[1]
		if want := (Meta{N: 2, Draining: true, RaftInfo: "B#1.1"}); member.Meta != want {
			t.Errorf("got meta %+v, want %+v", member.Meta, want)
		}
		if got, want := member.Instance.String(), "n2/Bn2.2"; got != want {
			t.Errorf("got instance %s, want %s", got, want)
		}
		if later := (Instance{"n2", "Bn2", 2}); first.Succeeded(later) {
			t.Errorf("%s is the newest, but succeeded", later)
		}
		third := all[2]
		third.leave()
		eventually(t, "the goodbye has come", func() bool { return agree(all[:2], Left, third) })
		if got := first.State(Instance{"n4", "B", 1}); got != Unknown {
			t.Errorf("an unknown node: got %s, want unknown", got)
		}
	})
}

func TestChangedWakes(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		all := startAll(t, n, Config{TTL: ttl}, "n1", "n2")
		select { // whatever was left over from the start
		case <-all[0].Changed():
		default:
		}
		all[1].leave()
		select {
		case <-all[0].Changed():
		case <-time.After(patience):
			t.Error("no wake-up after a goodbye")
		}
	})
}

// TestDeath checks that five nodes agree on a death within 0.8 of the default ttl.
func TestDeath(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		all := startAll(t, n, Config{TTL: defaultTTL}, "n1", "n2", "n3", "n4", "n5")
		n.island(1, all[4].Address())
		took := eventually(t, "the death is agreed", func() bool { return agree(all[:4], Dead, all[4]) })
		t.Logf("agreed after %s", took)
		if limit := defaultTTL * 8 / 10; took > limit {
			t.Errorf("took %s, want at most %s", took, limit)
		}
	})
}

// TestWhoJoinsLearnsOfTheDeparted checks that a process that joins after a death or a goodbye learns of it. All
// processes forget the departed process at the same time.
func TestWhoJoinsLearnsOfTheDeparted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		all := startAll(t, n, Config{TTL: ttl}, "n1", "n2", "n3", "n4")
		n.island(1, all[2].Address())
		all[3].leave()
		eventually(t, "the departures are agreed", func() bool { return agree(all[:2], Dead, all[2]) && agree(all[:2], Left, all[3]) })
		join := func(node string) *process {
			return start(t, n, Config{Node: node, TTL: ttl, Join: []string{all[0].Address()}})
		}
		late := []*process{join("n5")}
		eventually(t, "who joins knows", func() bool { return agree(late, Dead, all[2]) && agree(late, Left, all[3]) })
		time.Sleep(forget - 2*ttl)
		later := join("n6")
		eventually(t, "it has joined", func() bool { return agree([]*process{later}, Alive, late...) })
		time.Sleep(2 * ttl)
		last := join("n7")
		eventually(t, "the last has joined", func() bool { return agree([]*process{last}, Alive, later) })
		if got := last.State(all[2].instance()); got != Unknown {
			t.Errorf("after %v: got %s, want unknown", forget, got)
		}
	})
}

// TestPartitionHeals cuts processes off and joins them again. The peers are all processes with leases, as in a node.
// Two peers would not be enough. A process may learn of a refuted death from gossip that is still under way. It then
// joins nobody, and does not learn of the others before memberlist's next exchange.
func TestPartitionHeals(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		var peers atomic.Pointer[[]string]
		peers.Store(new([]string))
		cfg := Config{TTL: ttl,
			Peers: func(context.Context) ([]string, error) { return *peers.Load(), nil }}
		all := startAll(t, n, cfg, "n1", "n2", "n3", "n4")
		left, right := all[:2], all[2:]
		n.island(1, right[0].Address(), right[1].Address())
		eventually(t, "both sides give the other up", func() bool {
			return agree(left, Dead, right...) && agree(right, Dead, left...)
		})
		n.island(0, right[0].Address(), right[1].Address())
		addresses := []string{all[0].Address(), all[1].Address(), all[2].Address(), all[3].Address()}
		peers.Store(&addresses)
		eventually(t, "all see all again", func() bool { return agree(all, Alive, all...) })
	})
}

// TestPeersAreEnough checks that without seeds the function alone finds peers. Its failures do no harm.
func TestPeersAreEnough(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		first := start(t, n, Config{Node: "n1", TTL: ttl})
		calls := atomic.Int32{}
		second := start(t, n, Config{Node: "n2", TTL: ttl,
			Peers: func(context.Context) ([]string, error) {
				if calls.Add(1) < 3 {
					return nil, errors.New("no leases to be read")
				}
				return []string{first.Address()}, nil
			}})
		both := []*process{first, second}
		eventually(t, "both see both", func() bool { return agree(both, Alive, both...) })
	})
}

// TestUpdateRefuses checks that a Meta that is too long changes nothing.
func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	g, err := New(Config{Cluster: "c", Node: "n", Boot: "b", Bind: "127.0.0.1:0", Meta: Meta{N: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Update(func(m *Meta) { m.N, m.RaftInfo = 4, strings.Repeat("x", MaxMeta) }); err == nil {
		t.Error("meta beyond the limit was taken")
	}
	if got := decodeMeta(g.table.NodeMeta(MaxMeta)); got != (Meta{N: 3}) {
		t.Errorf("got meta %+v, want it unchanged", got)
	}
}

// TestSockets tests joins and leaves over loopback.
func TestSockets(t *testing.T) {
	t.Parallel()
	all := startAll(t, nil, Config{TTL: time.Minute, Keys: [][]byte{key("a")}}, "n1", "n2")
	all[1].leave()
	eventually(t, "the end is noticed", func() bool { return all[0].State(all[1].instance()) != Alive })
}

// TestBytesOfGossip checks that an idle second costs each node the same packets in a small and in a large cluster. A
// change of one node costs each other node a few copies, whose number grows with the logarithm of the cluster's size.
func TestBytesOfGossip(t *testing.T) {
	t.Parallel()
	const seconds = 20
	idle, news := map[int]float64{}, map[int]float64{} // bytes of packets per node, by nodes: a second, a change
	for _, count := range []int{8, 32} {
		inBubble(t, func(t *testing.T, n *network) {
			var all []*process
			for i := range count {
				cfg := Config{TTL: ttl, Node: fmt.Sprintf("node-%04d", i)}
				if i > 0 {
					cfg.Join = []string{all[0].Address()}
				}
				all = append(all, start(t, n, cfg))
			}
			until := func(told func() bool) { // of the bubble's time: what no packet has told is in the next exchange of states
				for range 20 {
					time.Sleep(30 * time.Second)
					if told() {
						return
					}
				}
				t.Fatal("not all were told of it in 10 minutes")
			}
			until(func() bool { return agree(all, Alive, all...) })
			before := n.packets()
			time.Sleep(seconds * time.Second)
			quiet := n.packets() - before
			idle[count] = float64(quiet) / seconds / float64(count)
			before = n.packets()
			if err := all[1].Update(func(m *Meta) { m.N, m.RaftInfo = 2, strings.Repeat("s", 200) }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(seconds * time.Second)
			news[count] = float64(n.packets()-before-quiet) / float64(count)
			until(func() bool {
				return !slices.ContainsFunc(all, func(p *process) bool { return !p.Succeeded(all[1].instance()) })
			})
		})
	}
	t.Logf("bytes per node, by nodes: in an idle second %v, of a change %v", idle, news)
	if idle[32] > 1.25*idle[8] || idle[32] > 1000 {
		t.Errorf("an idle second costs each of 32 nodes %.0f bytes, each of 8 %.0f; want as much, and at most 1,000", idle[32], idle[8])
	}
	if news[32] > 3*news[8] || news[32] > 20*MaxMeta {
		t.Errorf("a change costs each of 32 nodes %.0f bytes, each of 8 %.0f; want at most thrice as much, and %d", news[32], news[8], 20*MaxMeta)
	}
}
