package node

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/rebalance"
)

func TestTLSValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		tls  TLS
		want string
	}{
		{"none", TLS{}, ""},
		{"server", TLS{CertFile: "c", KeyFile: "k"}, ""},
		{"mutual", TLS{CertFile: "c", KeyFile: "k", CAFile: "a"}, ""},
		{"raft only", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", PeerName: "lowkiq-node"}, ""},
		{"no key", TLS{CertFile: "c"}, "key_file is missing"},
		{"no certificate", TLS{KeyFile: "k"}, "cert_file is missing"},
		{"authority alone", TLS{CAFile: "a"}, "cert_file and key_file are missing"},
		{"peers of whom", TLS{CertFile: "c", KeyFile: "k", PeerName: "n"}, "peer_name needs ca_file"},
		{"no name", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", PeerName: "*.example"}, "must be a DNS name"},
	} {
		err := c.tls.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestExposed checks that a node that is reachable from other hosts must have keys and certificates.
func TestExposed(t *testing.T) {
	t.Parallel()
	keys := [][]byte{make([]byte, 32)}
	server, mutual := TLS{CertFile: "c", KeyFile: "k"}, TLS{CertFile: "c", KeyFile: "k", CAFile: "a", PeerName: "lowkiq-node"}
	nameless := mutual
	nameless.PeerName = ""
	for _, c := range []struct {
		name    string
		cfg     Config
		refused string // "" = accepted
	}{
		{"nothing", Config{}, ""},
		{"loopback", Config{Bind: "localhost:0"}, ""},
		{"loopback, IPv6", Config{Bind: "[::1]:0"}, ""},
		{"bind", Config{Bind: "10.0.0.1:1"}, "bind 10.0.0.1:1 is reachable from other hosts; configure a gossip key file (node.gossip_key_file)"},
		{"bind without TLS", Config{Bind: "10.0.0.1:1", GossipKeys: keys}, "Raft, one port above, is reachable from other hosts; configure certificates (node.tls with ca_file)"},
		{"bind without an authority", Config{Bind: "10.0.0.1:1", GossipKeys: keys, TLS: server}, "Raft, one port above"},
		{"bind without a key", Config{Bind: "10.0.0.1:1", TLS: mutual}, "node.gossip_key_file"},
		{"bind without a name of the peers", Config{Bind: "10.0.0.1:1", TLS: nameless, GossipKeys: keys}, "configure a name that only the nodes' certificates have (node.tls.peer_name)"},
		{"loopback without a name of the peers", Config{Bind: "127.0.0.1:1", TLS: nameless, GossipKeys: keys}, ""},
		{"bind with both", Config{Bind: "10.0.0.1:1", TLS: mutual, GossipKeys: keys}, ""},
		{"insecure", Config{Bind: ":2", Insecure: true}, ""},
	} {
		err := c.cfg.Validate()
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		}
	}
}

func TestNewReadsCertificates(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Name: "n1", TLS: TLS{CertFile: "nowhere", KeyFile: "nowhere"}})
	if err == nil || !strings.Contains(err.Error(), "tls: cert_file nowhere") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

// TestStrangerInATLSCluster checks that a node that cannot prove that it belongs to the cluster gets no part of it, and stops
// nobody. A node that comes after it gets its share.
func TestStrangerInATLSCluster(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	ours := func(name string) TLS {
		cert, key := ca.Both(name, "127.0.0.1", "lowkiq-node")
		return TLS{CertFile: cert, KeyFile: key, CAFile: ca.File, PeerName: "lowkiq-node"}
	}
	first, second := ours("n1"), ours("n2")
	cert, key := other.Server("stranger")
	client, clientKey := ca.Client("stranger")
	web, webKey := ca.Both("web", "127.0.0.1", "web.internal")
	strangers := map[string]TLS{"of another server": {CertFile: web, KeyFile: webKey, CAFile: ca.File}}
	if tier.IsAll() {
		maps.Copy(strangers, map[string]TLS{
			"no certificate":         {},
			"another authority's":    {CertFile: cert, KeyFile: key, CAFile: other.File},
			"trusts the authority":   {CertFile: cert, KeyFile: key, CAFile: ca.File},
			"a client's, not a peer": {CertFile: client, KeyFile: clientKey, CAFile: ca.File},
		})
	}
	// The subtests are not parallel. Each runs a cluster, whose refused connections cost many handshakes.
	for name, tls := range strangers {
		t.Run(name, func(t *testing.T) {
			url := redistest.Start(t).URL()
			start := func(name string, tls TLS) *running {
				return startMember(t, Config{Name: name, Redis: url, TLS: tls}, 40)
			}
			n1 := start("n1", first)
			awaitSpread(t, []int{40}, n1)
			await(t, "there is a cluster", func() bool { return n1.cluster.Load().Status().Leading }) // one that is alone founds it
			stranger := start("stranger", tls)
			await(t, "the leader counts with the stranger", func() bool { return seats(n1, stranger) })
			n2 := start("n2", second)
			awaitSpread(t, []int{20, 20}, n1, n2)
			if got := stranger.owns(); got > 0 || stranger.Ready() == nil { // -1: it has no lease just now
				t.Errorf("the stranger has %d shards, ready: %v; want none", got, stranger.Ready())
			}
			if a := stranger.cluster.Load().AgreedPlan(); a != nil && len(a.Queues) > 0 {
				t.Errorf("the stranger has heard of assignment %s", a.Generation)
			}
		})
	}
}

// seats reports whether a leader has another node's lease, and where its Raft is, in view.
func seats(leader, other *running) bool {
	view, err := leader.cluster.Load().ReadView(context.Background())
	return err == nil && slices.ContainsFunc(view.Peers, func(p rebalance.Peer) bool {
		return p.Boot == other.boot && p.Leased && p.RaftInfo.Server != ""
	})
}
