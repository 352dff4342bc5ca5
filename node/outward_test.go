package node

import (
	"errors"
	"net"
	"strings"
	"testing"
)

func TestOutward(t *testing.T) {
	for _, c := range []struct{ name, addresses, want string }{
		{"a container", "127.0.0.1/8 172.18.0.3/16", "172.18.0.3"},
		{"two networks: the first", "127.0.0.1/8 10.1.0.3/16 172.18.0.3/16", "10.1.0.3"},
		{"private before public", "127.0.0.1/8 203.0.113.7/24 192.168.1.4/24", "192.168.1.4"},
		{"public", "::1/128 2001:db8::5/64 203.0.113.7/24", "203.0.113.7"},
		{"IPv6 only", "127.0.0.1/8 ::1/128 fe80::1/64 2001:db8::5/64", "2001:db8::5"},
		{"nothing", "127.0.0.1/8 ::1/128 fe80::1/64", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addresses []net.Addr
			for _, text := range strings.Fields(c.addresses) {
				ip, network, err := net.ParseCIDR(text)
				if err != nil {
					t.Fatal(err)
				}
				addresses = append(addresses, &net.IPNet{IP: ip, Mask: network.Mask})
			}
			got, err := outward(addresses)
			if got != c.want || (c.want == "") != errors.Is(err, errNoAddress) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestReachable(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    Config
		filled bool
	}{
		{"loopback", Config{Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0"}, false},
		{"one address", Config{Bind: "10.0.0.1:7946"}, false},
		{"gossip everywhere", Config{Bind: "0.0.0.0:7946"}, true},
		{"API everywhere", Config{HTTP: ":7948"}, true},
		{"IPv6", Config{Bind: "[::]:7946"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.cfg.reachable()
			if errors.Is(err, errNoAddress) {
				t.Skip("this machine has no address beyond loopback")
			}
			if err != nil || (got.Advertise != "") != c.filled {
				t.Errorf("got %q, %v, want one: %t", got.Advertise, err, c.filled)
			}
			c.cfg.Advertise = "given"
			if got, err := c.cfg.reachable(); err != nil || got.Advertise != "given" {
				t.Errorf("got %q, %v, want what was given", got.Advertise, err)
			}
		})
	}
}

func TestAdvertise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host string
		good bool
	}{
		{"", true}, {"localhost", true}, {"node-0.lowkiq.default.svc.cluster.local", true}, {"10.0.0.1", true}, {"2001:db8::5", true}, {"fe80::1%eth0", true},
		{strings.Repeat("x", 253), true}, {strings.Repeat("x", 254), false},
		{"10.0.0.1:7946", false}, {"n1:7946", false}, {"[::1]", false}, {"http://n1", false}, {"n 1", false}, {"-n1", false}, {"n1\n", false},
	} {
		err := Config{Advertise: c.host}.Validate()
		if c.good && err != nil || !c.good && (err == nil || !strings.Contains(err.Error(), "advertise ")) {
			t.Errorf("%.60q: got %v, want it accepted: %v", c.host, err, c.good)
		}
	}
}

// A node that listens everywhere tells others an address that they can use.
func TestNodeListensEverywhere(t *testing.T) {
	n, err := New(Config{Name: "n1", Redis: "redis://127.0.0.1:1/0", HTTP: ":0", Bind: "0.0.0.0:0", Insecure: true})
	if errors.Is(err, errNoAddress) {
		t.Skip("this machine has no address beyond loopback")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(n.client.Close(), n.leases.Close()) }()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	n.listener.Store(&listener)
	if host, _, err := net.SplitHostPort(strings.TrimPrefix(n.URL(), "http://")); err != nil || host != n.cfg.Advertise {
		t.Errorf("got %s, %v, want the host %s", n.URL(), err, n.cfg.Advertise)
	}
	if got, _, _ := net.SplitHostPort(n.advertise(7947)); got != n.cfg.Advertise {
		t.Errorf("raft: got %s, want %s", got, n.cfg.Advertise)
	}
}
