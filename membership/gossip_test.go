package membership

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const ttl = 3 * time.Second

func key(letter string) []byte { return []byte(strings.Repeat(letter, 16)) }

func TestJoinUpdateLeave(t *testing.T) {
	t.Parallel()
	all := startAll(t, nil, Config{TTL: ttl}, "n1", "n2", "n3")
	first, second := all[0], all[1]
	if got := len(first.Members()); got != 3 {
		t.Errorf("got %d members, want 3", got)
	}
	err := second.Update(func(m *Meta) { m.N, m.Draining, m.HTTP, m.Seat = 2, true, "127.0.0.1:7948", "B#1.1" })
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the update is heard", func() bool { return first.Succeeded(second.instance()) })
	member := first.Members()[1]
	if want := (Meta{N: 2, Draining: true, HTTP: "127.0.0.1:7948", Seat: "B#1.1"}); member.Meta != want {
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
	eventually(t, 5*time.Second, "the goodbye is heard", func() bool { return agree(all[:2], Left, third) })
	if got := first.State(Instance{"n4", "B", 1}); got != Unknown {
		t.Errorf("a stranger: got %s, want unknown", got)
	}
}

func TestChangedWakes(t *testing.T) {
	t.Parallel()
	all := startAll(t, nil, Config{TTL: ttl}, "n1", "n2")
	select { // whatever was left over from the start
	case <-all[0].Changed():
	default:
	}
	all[1].leave()
	select {
	case <-all[0].Changed():
	case <-time.After(10 * time.Second):
		t.Error("no wake-up after a goodbye")
	}
}

// TestDeath: five nodes agree on a death within 0.8 of the default ttl.
func TestDeath(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	all := startAll(t, n, Config{TTL: defaultTTL}, "n1", "n2", "n3", "n4", "n5")
	n.island(1, all[4].Address())
	took := eventually(t, 4*defaultTTL, "the death is agreed", func() bool { return agree(all[:4], Dead, all[4]) })
	t.Logf("agreed after %s", took)
	if limit := defaultTTL * 8 / 10; took > limit {
		t.Errorf("took %s, want at most %s", took, limit)
	}
}

func TestPartitionHeals(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	var peers atomic.Pointer[[]string]
	peers.Store(new([]string))
	cfg := Config{TTL: ttl, Rejoin: 200 * time.Millisecond,
		Peers: func(context.Context) ([]string, error) { return *peers.Load(), nil }}
	all := startAll(t, n, cfg, "n1", "n2", "n3", "n4")
	left, right := all[:2], all[2:]
	n.island(1, right[0].Address(), right[1].Address())
	eventually(t, 10*time.Second, "both sides give the other up", func() bool {
		return agree(left, Dead, right...) && agree(right, Dead, left...)
	})
	n.island(0, right[0].Address(), right[1].Address())
	peers.Store(&[]string{all[0].Address(), all[3].Address()})
	eventually(t, 10*time.Second, "all see all again", func() bool { return agree(all, Alive, all...) })
}

// TestPeersAreEnough: with no seed, peers are found through the function alone; its
// failures do no harm.
func TestPeersAreEnough(t *testing.T) {
	t.Parallel()
	first := start(t, nil, Config{Node: "n1", TTL: ttl})
	calls := atomic.Int32{}
	second := start(t, nil, Config{Node: "n2", TTL: ttl, Rejoin: 50 * time.Millisecond,
		Peers: func(context.Context) ([]string, error) {
			if calls.Add(1) < 3 {
				return nil, errors.New("no leases to be read")
			}
			return []string{first.Address()}, nil
		}})
	both := []*process{first, second}
	eventually(t, 10*time.Second, "both see both", func() bool { return agree(both, Alive, both...) })
}

// TestStrangersStayOut: another key, no key, another cluster.
func TestStrangersStayOut(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  Config
		in   bool
	}{
		{"the same key", Config{Keys: [][]byte{key("a")}}, true},
		{"another key", Config{Keys: [][]byte{key("b")}}, false},
		{"no key", Config{}, false},
		{"another cluster", Config{Keys: [][]byte{key("a")}, Cluster: "d"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inside := start(t, nil, Config{Node: "n1", TTL: ttl, Keys: [][]byte{key("a")}})
			tried := make(chan struct{}, 100)
			cfg := tt.cfg
			cfg.Node, cfg.TTL, cfg.Rejoin = "n2", ttl, 50*time.Millisecond
			cfg.Peers = func(context.Context) ([]string, error) {
				select {
				case tried <- struct{}{}:
				default:
				}
				return []string{inside.Address()}, nil
			}
			other := start(t, nil, cfg)
			if tt.in {
				eventually(t, 10*time.Second, "it is let in", func() bool { return agree([]*process{inside}, Alive, other) })
				return
			}
			for range 4 { // the fourth attempt begins when the third has failed
				<-tried
			}
			if got := inside.State(other.instance()); got != Unknown {
				t.Errorf("inside: got %s, want unknown", got)
			}
			if got := other.State(inside.instance()); got != Unknown {
				t.Errorf("outside: got %s, want unknown", got)
			}
		})
	}
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	a, b := key("a"), key("b")
	all := startAll(t, nil, Config{TTL: ttl, Keys: [][]byte{a}}, "n1", "n2", "n3")
	for i, keys := range [][][]byte{{a, b}, {b, a}, {b}} {
		for _, p := range all {
			if err := p.SetKeys(keys); err != nil {
				t.Fatal(err)
			}
			// Every message of this step passes between the old keys and the new.
			if err := p.Update(func(m *Meta) { m.Raft = i + 1 }); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "everyone hears it", func() bool {
				for _, q := range all {
					if m, _ := q.table.find(p.instance()); m.Meta.Raft != i+1 {
						return false
					}
				}
				return true
			})
		}
	}
	late := start(t, nil, Config{Node: "n4", TTL: ttl, Keys: [][]byte{b}, Join: []string{all[0].Address()}})
	eventually(t, 10*time.Second, "the new key opens", func() bool { return agree(all, Alive, late) })
	if !agree(all, Alive, all...) {
		t.Error("somebody was lost in the rotation")
	}
}

func TestSetKeysRefuses(t *testing.T) {
	t.Parallel()
	base := Config{Cluster: "c", Node: "n", Boot: "b", Bind: "127.0.0.1:0"}
	locked := base
	locked.Keys = [][]byte{key("a")}
	tests := []struct {
		name string
		cfg  Config
		keys [][]byte
		want string
	}{
		{"no key at start", base, [][]byte{key("a")}, "started without keys"},
		{"no key", locked, nil, "at least one"},
		{"short key", locked, [][]byte{key("a"), []byte("short")}, "key 2 has 5 bytes"},
	}
	for _, tt := range tests {
		g, err := New(tt.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.SetKeys(tt.keys); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
		if ring := g.conf.Keyring; ring != nil && !bytes.Equal(ring.GetPrimaryKey(), key("a")) {
			t.Errorf("%s: the keys changed", tt.name)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(c *Config)
		want   string // "" = valid
	}{
		{"good", func(*Config) {}, ""},
		{"localhost", func(c *Config) { c.Bind = "localhost:0" }, ""},
		{"every interface, no key", func(c *Config) { c.Bind = ":7946" }, "without a key"},
		{"other host, no key", func(c *Config) { c.Bind = "10.0.0.1:7946" }, "without a key"},
		{"other host, key", func(c *Config) { c.Bind, c.Keys = "10.0.0.1:7946", [][]byte{key("a")} }, ""},
		{"other host, insecure", func(c *Config) { c.Bind, c.Insecure = "10.0.0.1:7946", true }, ""},
		{"no port", func(c *Config) { c.Bind = "127.0.0.1" }, "host:port"},
		{"port too high", func(c *Config) { c.Join = []string{"h:65536"} }, "port from 0 to 65535"},
		{"bad advertise", func(c *Config) { c.Advertise = "x" }, "Advertise"},
		{"no cluster", func(c *Config) { c.Cluster = "" }, "Cluster"},
		{"no boot", func(c *Config) { c.Boot = "" }, "Boot"},
		{"key length", func(c *Config) { c.Keys = [][]byte{[]byte("short")} }, "key 1 has 5 bytes"},
		{"meta too long", func(c *Config) { c.Meta.Seat = strings.Repeat("x", MaxMeta) }, "fewer than 512"},
		{"negative ttl", func(c *Config) { c.TTL = -1 }, "negative"},
	}
	for _, tt := range tests {
		c := Config{Cluster: "c", Node: "n", Boot: "b", Bind: "127.0.0.1:0"}
		tt.change(&c)
		_, err := New(c)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// TestTimingFollowsTTL: death is noticed within the ttl; a dial, which the end of a process may
// have to wait for, is bounded whatever the ttl.
func TestTimingFollowsTTL(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{3 * time.Second, 6 * time.Second, 2 * time.Minute} {
		conf, err := Config{Cluster: "c", Node: "n", Boot: "B", Bind: "127.0.0.1:0", TTL: ttl}.withDefaults().memberlist()
		if err != nil {
			t.Fatal(err)
		}
		if suspicion := time.Duration(conf.SuspicionMult*conf.SuspicionMaxTimeoutMult) * conf.ProbeInterval; suspicion > ttl*2/5 {
			t.Errorf("ttl %s: a suspect has %s to object, want at most 0.4 ttl", ttl, suspicion)
		}
		if conf.TCPTimeout > 10*time.Second {
			t.Errorf("ttl %s: TCP timeout is %s, want at most 10s", ttl, conf.TCPTimeout)
		}
	}
}

func TestInstance(t *testing.T) {
	t.Parallel()
	for _, want := range []Instance{{"n1", "01J", 0}, {"a.b/c", "01J", 12}} {
		if got, err := ParseInstance(want.String()); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", "n1", "n1/", "/b.1", "n1/b", "n1/.1", "n1/b.", "n1/b.x", "n1/b.-1"} {
		if got, err := ParseInstance(bad); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, got)
		}
	}
}

// TestUpdateRefuses: what does not fit changes nothing.
func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	g, err := New(Config{Cluster: "c", Node: "n", Boot: "b", Bind: "127.0.0.1:0", Meta: Meta{N: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Update(func(m *Meta) { m.N, m.Seat = 4, strings.Repeat("x", MaxMeta) }); err == nil {
		t.Error("meta beyond the limit was taken")
	}
	if got := decodeMeta(g.table.NodeMeta(MaxMeta)); got != (Meta{N: 3}) {
		t.Errorf("got meta %+v, want it unchanged", got)
	}
}

// TestPortTaken: Run says so.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	first := start(t, nil, Config{Node: "n1", TTL: ttl})
	g, err := New(Config{Cluster: "c", Node: "n2", Boot: "b", Bind: first.Address()})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(context.Background()); err == nil || !strings.Contains(err.Error(), first.Address()) {
		t.Errorf("got %v, want an error that names %s", err, first.Address())
	}
}
