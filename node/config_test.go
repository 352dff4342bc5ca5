package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

func TestReachable(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    Config
		filled bool
	}{
		{"loopback", Config{Bind: "127.0.0.1:0"}, false},
		{"one address", Config{Bind: "10.0.0.1:7946"}, false},
		{"gossip everywhere", Config{Bind: "0.0.0.0:7946"}, true},
		{"IPv6", Config{Bind: "[::]:7946"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.cfg.withAdvertise()
			if errors.Is(err, hosts.ErrNoAddress) {
				t.Skip("this machine has no address beyond loopback")
			}
			if err != nil || (got.Advertise != "") != c.filled {
				t.Errorf("got %q, %v, want one: %t", got.Advertise, err, c.filled)
			}
			c.cfg.Advertise = "given"
			if got, err := c.cfg.withAdvertise(); err != nil || got.Advertise != "given" {
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

// TestMaxCrashes checks that a single crash proves nothing.
func TestMaxCrashes(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{0: "", -1: "", 1: "max_crashes: want a whole number, 0 or 2 to 1000000, got 1", 2: ""} {
		err := QueueConfig{Name: "orders", Rules: rules.Rules{MaxCrashes: most}}.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: got %v, want %q", most, err, want)
		}
	}
}

// TestReservedQueue checks that a user cannot handle a built-in queue.
func TestReservedQueue(t *testing.T) {
	t.Parallel()
	n, err := New(Config{Redis: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close() //nolint:errcheck // a test
	none := lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })
	if err := n.Handle(QueueConfig{Name: protocol.Workflows}, none); !errors.Is(err, protocol.ErrReserved) {
		t.Errorf("got %v, want %v", err, protocol.ErrReserved)
	}
}
