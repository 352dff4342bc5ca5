package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func open(t *testing.T, files Files, log *slog.Logger) *Store {
	t.Helper()
	s, err := Open(files, log)
	if err != nil {
		t.Fatal(err)
	}
	s.every = 0 // every handshake looks
	return s
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	cert, key := ca.Server("a")
	_, otherKey := other.Server("b")
	for _, c := range []struct {
		name  string
		files Files
		want  string
	}{
		{"nothing", Files{}, ""},
		{"all", Files{cert, key, ca.File}, ""},
		{"no key", Files{Cert: cert}, "key_file is missing"},
		{"no cert", Files{Key: key}, "cert_file is missing"},
		{"no such file", Files{Cert: "nowhere", Key: key}, "cert_file nowhere and key_file"},
		{"another key", Files{Cert: cert, Key: otherKey}, "private key does not match"},
		{"no such ca", Files{CA: "nowhere"}, "ca_file: open nowhere"},
		{"ca is a key", Files{CA: key}, "no certificate in it"},
	} {
		_, err := Open(c.files, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// meet connects a dialling store to a listening one, each of which may want a name of the other, and
// says a word each way.
func meet(t *testing.T, listening, dialling *Store, listens, dials string) error {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := listening.Listen(plain, listens)
	var taken sync.WaitGroup
	defer taken.Wait()
	defer l.Close()
	taken.Go(func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(conn, io.LimitReader(conn, 5))
			_ = conn.Close()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := dialling.Dial(ctx, plain.Addr().String(), dials)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 5))
	return err
}

// Peers have certificates of one authority for servers; where a name is wanted, it is one of theirs.
func TestPeers(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	of := func(cert, key string, authority *certtest.Authority) *Store {
		return open(t, Files{cert, key, authority.File}, nil)
	}
	server := func(name string, of *certtest.Authority) (string, string, *certtest.Authority) {
		cert, key := of.Server(name)
		return cert, key, of
	}
	named := func(name string, names ...string) *Store {
		cert, key := ca.Both(name, names...)
		return of(cert, key, ca)
	}
	node, second, stranger := of(server("node", ca)), of(server("second", ca)), of(server("stranger", other))
	cert, key := ca.Client("client")
	client := of(cert, key, ca)
	trusting := of(stranger.files.Cert, stranger.files.Key, ca) // one side trusts, the other does not
	careless := open(t, Files{Cert: node.files.Cert, Key: node.files.Key}, nil)
	first, twin := named("first", "10.0.0.1", "Nodes.internal"), named("twin", "nodes.internal", "10.0.0.2")
	web, wild, nameless := named("web", "web.internal"), named("wild", "*.internal"), named("nodes.internal")
	const nodes = "nodes.internal"
	for _, c := range []struct {
		name                string
		listening, dialling *Store
		listens, dials      string // the name that each wants
		ok                  bool
	}{
		{"peers", node, second, "", "", true},
		{"a client is no peer", node, client, "", "", false},
		{"nor may it listen", client, node, "", "", false},
		{"a stranger dials", node, stranger, "", "", false},
		{"a stranger who trusts us dials", node, trusting, "", "", false},
		{"a stranger listens", stranger, node, "", "", false},
		{"without a ca none is trusted", careless, node, "", "", false},
		{"nor when dialling", node, careless, "", "", false},
		{"peers of a name", first, twin, nodes, nodes, true},
		{"no name is wanted", first, web, "", "", true},
		{"another server dials", first, web, nodes, "", false},
		{"another server listens", web, first, "", nodes, false},
		{"a server of all names", first, wild, nodes, "", false},
		{"the common name does not count", first, nameless, nodes, "", false},
	} {
		if err := meet(t, c.listening, c.dialling, c.listens, c.dials); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want ok: %t", c.name, err, c.ok)
		}
	}
}

func TestPeersWantTLS13(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Server("a")
	node := open(t, Files{cert, key, ca.File}, nil)
	old := open(t, Files{cert, key, ca.File}, nil)
	l := old.latest()
	l.peer.MinVersion, l.peer.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := meet(t, node, old, "", ""); err == nil {
		t.Error("got a connection with TLS 1.2, want it refused")
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	cert, key := ca.Server("server")
	store := open(t, Files{cert, key, ca.File}, nil)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, map[bool]string{true: "verified", false: "unknown"}[len(r.TLS.VerifiedChains) > 0])
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.TLS = store.ServerConfig(true)
	server.StartTLS()
	defer server.Close()
	clientCert, clientKey := ca.Client("client")
	otherCert, otherKey := other.Client("other")
	for _, c := range []struct {
		name   string
		files  Files
		change func(*tls.Config)
		want   string
	}{
		{"no certificate", Files{CA: ca.File}, nil, "unknown"},
		{"a certificate", Files{clientCert, clientKey, ca.File}, nil, "verified"},
		{"a stranger's", Files{otherCert, otherKey, ca.File}, nil, "certificate required|unknown authority|bad certificate|unknown certificate"},
		{"a server's", Files{cert, key, ca.File}, nil, "bad certificate|unsupported certificate|remote error"},
		{"the server is a stranger", Files{CA: other.File}, nil, "unknown authority"},
		{"tls 1.2", Files{CA: ca.File}, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "unknown"},
		{"tls 1.1", Files{CA: ca.File}, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 }, "protocol version"},
	} {
		config := open(t, c.files, nil).ClientConfig()
		if c.change != nil {
			c.change(config)
		}
		if got := ask(server.URL, config); !anyIn(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// ask returns the answer's body, or the error.
func ask(url string, config *tls.Config) string {
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

func anyIn(text, words string) bool {
	for word := range strings.SplitSeq(words, "|") {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

func TestRotation(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Server("server")
	var log bytes.Buffer
	store := open(t, Files{cert, key, ca.File}, slog.New(slog.NewTextHandler(&log, nil)))
	first := store.latest().cert.Leaf.SerialNumber
	serves := func() bool { return store.latest().cert.Leaf.SerialNumber.Cmp(first) == 0 }
	if !serves() {
		t.Error("it changed without the files")
	}
	replace(t, cert, "nonsense")
	for range 3 {
		if !serves() {
			t.Error("a broken file: got another certificate, want the last good one")
		}
	}
	if got := strings.Count(log.String(), "cannot be used"); got != 1 {
		t.Errorf("a broken file: got %d lines in the log, want 1: %s", got, &log)
	}
	ca.Server("server")
	if serves() {
		t.Error("a new certificate is not seen")
	}
	if !strings.Contains(log.String(), "read again") {
		t.Errorf("a new certificate: not in the log: %s", &log)
	}
	if err := meet(t, store, store, "", ""); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
}

// Both authorities are trusted while one replaces the other.
func TestRotationOfTheAuthority(t *testing.T) {
	t.Parallel()
	ca, next := certtest.New(t), certtest.New(t)
	cert, key := ca.Server("a")
	store := open(t, Files{cert, key, ca.File}, nil)
	cert2, key2 := next.Server("b")
	ahead := open(t, Files{cert2, key2, next.File}, nil)
	if err := meet(t, store, ahead, "", ""); err == nil {
		t.Error("strangers meet")
	}
	for _, s := range []*Store{store, ahead} {
		replace(t, s.files.CA, read(t, ca.File)+read(t, next.File))
	}
	if err := meet(t, store, ahead, "", ""); err != nil {
		t.Errorf("both authorities in both files: %v", err)
	}
}

// A file is looked at once a second, not at each handshake.
func TestLooksAreRare(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Server("server")
	store, err := Open(Files{cert, key, ""}, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := store.latest()
	ca.Server("server")
	if store.latest() != first {
		t.Error("the files were read within a second")
	}
	store.checked = store.checked.Add(-checkEvery)
	if store.latest() == first {
		t.Error("the files were not read after a second")
	}
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
