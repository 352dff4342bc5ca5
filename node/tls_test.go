package node

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/internal/certtest"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/rebalance"
	"github.com/lowkiq/lowkiq/web"
)

const aToken = "a-token-of-the-tests"

func TestTLSValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		tls  TLS
		want string
	}{
		{"none", TLS{}, ""},
		{"server", TLS{CertFile: "c", KeyFile: "k"}, ""},
		{"mutual", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: ClientRequire}, ""},
		{"raft only", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: ClientNone, PeerName: "lowkiq-node"}, ""},
		{"no key", TLS{CertFile: "c"}, "key_file is missing"},
		{"no certificate", TLS{KeyFile: "k"}, "cert_file is missing"},
		{"authority alone", TLS{CAFile: "a"}, "cert_file and key_file are missing"},
		{"peers of whom", TLS{CertFile: "c", KeyFile: "k", PeerName: "n"}, "peer_name wants ca_file"},
		{"no name", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", PeerName: "*.example"}, "want a DNS name"},
		{"clients of whom", TLS{CertFile: "c", KeyFile: "k", ClientAuth: ClientRequire}, "client_auth: require wants ca_file"},
		{"another word", TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: "maybe"}, `client_auth is "maybe", want require or none`},
	} {
		err := c.tls.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Whoever is reachable from other hosts must say how he is secured.
func TestExposed(t *testing.T) {
	t.Parallel()
	tokens, keys := web.Tokens{Admin: []string{aToken}}, [][]byte{make([]byte, 32)}
	server, mutual := TLS{CertFile: "c", KeyFile: "k"}, TLS{CertFile: "c", KeyFile: "k", CAFile: "a", ClientAuth: ClientRequire, PeerName: "lowkiq-node"}
	nameless := mutual
	nameless.PeerName = ""
	for _, c := range []struct {
		name    string
		cfg     Config
		refused string // "" = accepted
		warns   string // of an accepted one
	}{
		{"nothing", Config{}, "", ""},
		{"loopback", Config{HTTP: "127.0.0.1:0", Bind: "localhost:0"}, "", ""},
		{"loopback, IPv6", Config{HTTP: "[::1]:0", Bind: "[::1]:0"}, "", ""},
		{"http", Config{HTTP: "0.0.0.0:0"}, "http 0.0.0.0:0 is reachable from other hosts: set a token (node.token_file)", ""},
		{"http on all interfaces", Config{HTTP: ":7948"}, "http :7948 is reachable", ""},
		{"http with TLS, no token", Config{HTTP: "10.0.0.1:1", TLS: server}, "set a token (node.token_file), ask for client certificates (node.tls.client_auth", ""},
		{"http with a token", Config{HTTP: "10.0.0.1:1", Tokens: tokens}, "", "takes tokens unencrypted: set node.tls"},
		{"http with a token and TLS", Config{HTTP: "10.0.0.1:1", Tokens: tokens, TLS: server}, "", ""},
		{"http with client certificates", Config{HTTP: "10.0.0.1:1", TLS: mutual}, "", ""},
		{"bind", Config{Bind: "10.0.0.1:1"}, "bind 10.0.0.1:1 is reachable from other hosts: give a gossip key file (node.gossip_key_file)", ""},
		{"bind without TLS", Config{Bind: "10.0.0.1:1", GossipKeys: keys}, "Raft, one port above, is reachable from other hosts: give certificates (node.tls with ca_file)", ""},
		{"bind without an authority", Config{Bind: "10.0.0.1:1", GossipKeys: keys, TLS: server}, "Raft, one port above", ""},
		{"bind without a key", Config{Bind: "10.0.0.1:1", TLS: mutual}, "node.gossip_key_file", ""},
		{"bind without a name of the peers", Config{Bind: "10.0.0.1:1", TLS: nameless, GossipKeys: keys}, "name what the nodes' certificates have (node.tls.peer_name)", ""},
		{"loopback without a name of the peers", Config{Bind: "127.0.0.1:1", TLS: nameless, GossipKeys: keys}, "", ""},
		{"bind with both", Config{Bind: "10.0.0.1:1", TLS: mutual, GossipKeys: keys}, "", ""},
		{"all, insecure", Config{HTTP: ":1", Bind: ":2", Insecure: true}, "", "insecure: http :1 is reachable"},
		{"loopback, insecure", Config{HTTP: "127.0.0.1:1", Insecure: true}, "", ""},
	} {
		err := c.cfg.Validate()
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		}
		if c.refused != "" {
			continue
		}
		lines := c.cfg.warnings()
		if c.warns == "" && len(lines) > 0 || c.warns != "" && (len(lines) != 1 || !strings.Contains(lines[0], c.warns)) {
			t.Errorf("%s: got warnings %q, want %q", c.name, lines, c.warns)
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

// A cluster speaks mutual TLS on its Raft ports, and HTTPS that asks for certificates
// of everybody but probes.
func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	url, ca := redistest.Start(t).URL(), certtest.New(t)
	var members []*member
	for _, name := range []string{"n1", "n2", "n3"} {
		cert, key := ca.Server(name)
		members = append(members, startMemberWith(t, Config{
			Name: name, Redis: url, TTL: 3 * time.Second, TLS: TLS{CertFile: cert, KeyFile: key, CAFile: ca.File, ClientAuth: ClientRequire},
			Tokens: web.Tokens{Admin: []string{aToken}}, GossipKeys: [][]byte{make([]byte, 32)},
		}, 40))
	}
	awaitSpread(t, []int{13, 13, 14}, members...)
	raftPort := members[0].cluster.listener.Address()
	cert, key := ca.Client("client")
	for name, config := range map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true},
		"a client's":     clientTLS(t, certs.Files{Cert: cert, Key: key, CA: ca.File}),
	} {
		if err := shakeHands(raftPort, config); err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("raft port, %s: got %v, want the handshake refused", name, err)
		}
	}
	checkHTTPS(t, members[0].URL(), ca)
}

// shakeHands connects and waits for the other side to end it, or not.
func shakeHands(address string, config *tls.Config) error {
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = conn.Read(make([]byte, 1))
	return err
}

func checkHTTPS(t *testing.T, url string, ca *certtest.Authority) {
	t.Helper()
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("got URL %s, want https", url)
	}
	cert, key := ca.Client("caller")
	known := clientTLS(t, certs.Files{Cert: cert, Key: key, CA: ca.File})
	unknown := clientTLS(t, certs.Files{CA: ca.File})
	for _, c := range []struct {
		path, token string
		config      *tls.Config
		status      int
		says        string
	}{
		{"/healthz", "", unknown, 200, "ok"},
		{"/metrics", aToken, unknown, 403, "wants a client certificate"},
		{"/metrics", "", known, 401, "admin token"},
		{"/api/v1/status", aToken, known, 200, `"http":"https://127.0.0.1:`},
	} {
		status, body := get(t, url+c.path, c.token, c.config)
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s with token %q: got %d %s, want %d %s", c.path, c.token, status, body, c.status, c.says)
		}
	}
	if status, _ := get(t, strings.Replace(url, "https", "http", 1)+"/healthz", "", nil); status != 400 {
		t.Errorf("plain HTTP: got %d, want 400", status)
	}
}

func clientTLS(t *testing.T, files certs.Files) *tls.Config {
	t.Helper()
	store, err := certs.Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store.Client()
}

func get(t *testing.T, url, token string, config *tls.Config) (int, string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A node that cannot prove that it belongs to the cluster gets no part of it, and stops
// nobody: one that comes after it gets its share.
func TestStrangerInATLSCluster(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	ours := func(name string) TLS {
		cert, key := ca.Both(name, "127.0.0.1", "lowkiq-node")
		return TLS{CertFile: cert, KeyFile: key, CAFile: ca.File, PeerName: "lowkiq-node"}
	}
	first, second := ours("n1"), ours("n2") // written once: the clusters below run side by side
	cert, key := other.Server("stranger")
	client, clientKey := ca.Client("stranger")
	web, webKey := ca.Both("web", "127.0.0.1", "web.internal")
	for name, tls := range map[string]TLS{
		"no certificate":         {},
		"another authority's":    {CertFile: cert, KeyFile: key, CAFile: other.File},
		"trusts the authority":   {CertFile: cert, KeyFile: key, CAFile: ca.File},
		"a client's, not a peer": {CertFile: client, KeyFile: clientKey, CAFile: ca.File},
		"of another server":      {CertFile: web, KeyFile: webKey, CAFile: ca.File},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := redistest.Start(t).URL()
			start := func(name string, tls TLS) *member {
				return startMemberWith(t, Config{Name: name, Redis: url, TTL: 3 * time.Second, TLS: tls}, 40)
			}
			n1 := start("n1", first)
			awaitSpread(t, []int{40}, n1)
			stranger := start("stranger", tls)
			await(t, "the leader counts with the stranger", func() bool { return seats(n1, stranger) })
			n2 := start("n2", second)
			awaitSpread(t, []int{20, 20}, n1, n2)
			if got := stranger.owns(); got != 0 || stranger.Ready() == nil {
				t.Errorf("the stranger has %d shards, ready: %v; want none", got, stranger.Ready())
			}
			if a := stranger.cluster.agent.Assignment(); len(a.Queues) > 0 {
				t.Errorf("the stranger has heard of assignment %s", a.Generation)
			}
		})
	}
}

// seats reports whether a leader has another node's lease, and where its Raft is, in view.
func seats(leader, other *member) bool {
	view, err := leader.cluster.look(context.Background())
	return err == nil && slices.ContainsFunc(view.Peers, func(p rebalance.Peer) bool {
		return p.Boot == other.boot && p.Leased && p.RaftInfo.Server != ""
	})
}
