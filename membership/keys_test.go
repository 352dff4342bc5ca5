package membership

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

func key(letter string) []byte { return []byte(strings.Repeat(letter, 16)) }

// TestStrangersStayOut: another key, no key, another cluster.
func TestStrangersStayOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  Config
		in   bool
	}{
		{"the same key", Config{Keys: [][]byte{key("a")}}, true},
		{"another key", Config{Keys: [][]byte{key("b")}}, false},
		{"no key", Config{}, false},
		{"another cluster", Config{Keys: [][]byte{key("a")}, Cluster: "d"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, n *network) {
				inside := start(t, n, Config{Node: "n1", TTL: ttl, Keys: [][]byte{key("a")}})
				tries := make(chan struct{}, 100)
				other := start(t, n, knocking(tt.cfg, inside, tries))
				if tt.in {
					eventually(t, "it is let in", func() bool { return agree([]*process{inside}, Alive, other) })
					return
				}
				for range 4 { // the fourth attempt begins when the third has failed
					<-tries
				}
				if got := inside.State(other.instance()); got != Unknown {
					t.Errorf("inside: got %s, want unknown", got)
				}
				if got := other.State(inside.instance()); got != Unknown {
					t.Errorf("outside: got %s, want unknown", got)
				}
			})
		})
	}
}

// knocking is a process that joins another one again and again, and says so.
func knocking(cfg Config, at *process, tries chan<- struct{}) Config {
	cfg.Node, cfg.TTL, cfg.Rejoin = "n2", ttl, 50*time.Millisecond
	cfg.Peers = func(context.Context) ([]string, error) {
		select {
		case tries <- struct{}{}:
		default:
		}
		return []string{at.Address()}, nil
	}
	return cfg
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *network) {
		a, b := key("a"), key("b")
		all := startAll(t, n, Config{TTL: ttl, Keys: [][]byte{a}}, "n1", "n2", "n3")
		for i, keys := range [][][]byte{{a, b}, {b, a}, {b}} {
			for _, p := range all {
				if err := p.SetKeys(keys); err != nil {
					t.Fatal(err)
				}
				// Every message of this step passes between the old keys and the new.
				if err := p.Update(func(m *Meta) { m.Raft = i + 1 }); err != nil {
					t.Fatal(err)
				}
				eventually(t, "everyone hears it", func() bool {
					for _, q := range all {
						if m, _ := q.table.find(p.instance()); m.Meta.Raft != i+1 {
							return false
						}
					}
					return true
				})
			}
		}
		late := start(t, n, Config{Node: "n4", TTL: ttl, Keys: [][]byte{b}, Join: []string{all[0].Address()}})
		eventually(t, "the new key opens", func() bool { return agree(all, Alive, late) })
		if !agree(all, Alive, all...) {
			t.Error("somebody was lost in the rotation")
		}
	})
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
