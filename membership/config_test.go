package membership

import (
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/golden"
)

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
		{"negative ttl", func(c *Config) { c.TTL = -1 }, "negative"},
		{"longest name", func(c *Config) { c.Node = strings.Repeat("n", maxProcess-2) }, ""},
		{"name too long", func(c *Config) { c.Node = strings.Repeat("n", maxProcess-1) }, "Node and Boot have 201 bytes with a slash, want at most 200"},
		{"meta too long", func(c *Config) { c.Meta.RaftInfo = strings.Repeat("x", MaxMeta) }, "fewer than 512"},
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

// TestGolden reads what every release has gossiped, and writes the same today.
func TestGolden(t *testing.T) {
	t.Parallel()
	meta := Meta{N: 3, Raft: 7947, Draining: true, RaftInfo: `{"server":"B#7.1"}`, Leaving: true}
	text, err := meta.encode()
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "meta", string(text), func(t *testing.T, stored string) {
		if got := decodeMeta([]byte(stored)); got != meta {
			t.Errorf("got %+v, want %+v", got, meta)
		}
	})
}

// FuzzMeta: whatever arrives as gossip is read or taken for nothing.
func FuzzMeta(f *testing.F) {
	for _, seed := range []string{`{"n":3,"r":7947,"d":true,"s":"x","l":true}`, `{"n":1,"later":[1]}`, `{"n":"x"}`, "", "{"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := decodeMeta(data).encode()
		if err != nil && len(data) < MaxMeta/6 { // a byte may be six in JSON
			t.Errorf("%q was read and cannot be written: %v", data, err)
		}
		if err == nil && decodeMeta(text) != decodeMeta(data) {
			t.Errorf("%q: written as %q, which is read as something else", data, text)
		}
	})
}
