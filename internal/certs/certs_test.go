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

	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq/internal/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// meet connects a dialling store to a listening one and says a word each way.
func meet(t *testing.T, listening, dialling *Store) error {
	t.Helper()
	return meetAs(t, listening, dialling, "", "")
}

// meetAs lets each want a name of the other.
func meetAs(t *testing.T, listening, dialling *Store, listens, dials string) error {
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
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

func TestPeers(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	files := func(of *certtest.Authority, name string, issue func(string) (string, string)) Files {
		cert, key := issue(name)
		return Files{cert, key, of.File}
	}
	node := open(t, files(ca, "node", ca.Server), nil)
	second := open(t, files(ca, "second", ca.Server), nil)
	client := open(t, files(ca, "client", ca.Client), nil)
	stranger := open(t, files(other, "stranger", other.Server), nil)
	trusting := open(t, Files{stranger.files.Cert, stranger.files.Key, ca.File}, nil) // one side trusts, the other does not
	careless := open(t, Files{Cert: node.files.Cert, Key: node.files.Key}, nil)
	for _, c := range []struct {
		name                string
		listening, dialling *Store
		ok                  bool
	}{
		{"peers", node, second, true},
		{"a client is no peer", node, client, false},
		{"nor may it listen", client, node, false},
		{"a stranger dials", node, stranger, false},
		{"a stranger who trusts us dials", node, trusting, false},
		{"a stranger listens", stranger, node, false},
		{"without a ca nobody is trusted", careless, node, false},
		{"nor when dialling", node, careless, false},
	} {
		if err := meet(t, c.listening, c.dialling); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want ok: %t", c.name, err, c.ok)
		}
	}
}

// A certificate of the authority for another server makes no peer, from either side.
func TestPeersHaveAName(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	of := func(name string, names ...string) *Store {
		cert, key := ca.Both(name, names...)
		return open(t, Files{cert, key, ca.File}, nil)
	}
	node, second := of("node", "10.0.0.1", "Nodes.internal"), of("second", "nodes.internal", "10.0.0.2")
	web, wild, nameless := of("web", "web.internal"), of("wild", "*.internal"), of("nodes.internal")
	for _, c := range []struct {
		name                string
		listening, dialling *Store
		listens, dials      string // the name that each wants
		ok                  bool
	}{
		{"peers", node, second, "nodes.internal", "nodes.internal", true},
		{"nobody asks", node, web, "", "", true},
		{"another server dials", node, web, "nodes.internal", "", false},
		{"another server listens", web, node, "", "nodes.internal", false},
		{"a server of all names", node, wild, "nodes.internal", "", false},
		{"the common name does not count", node, nameless, "nodes.internal", "", false},
	} {
		if err := meetAs(t, c.listening, c.dialling, c.listens, c.dials); (err == nil) != c.ok {
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
	l := old.now()
	l.peer.MinVersion, l.peer.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := meet(t, node, old); err == nil {
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
	server.TLS = store.Server(true)
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
		config := open(t, c.files, nil).Client()
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
	first := store.now().cert.Leaf.SerialNumber
	serves := func() bool { return store.now().cert.Leaf.SerialNumber.Cmp(first) == 0 }
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
	if err := meet(t, store, store); err != nil {
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
	if err := meet(t, store, ahead); err == nil {
		t.Error("strangers meet")
	}
	for _, s := range []*Store{store, ahead} {
		replace(t, s.files.CA, read(t, ca.File)+read(t, next.File))
	}
	if err := meet(t, store, ahead); err != nil {
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
	first := store.now()
	ca.Server("server")
	if store.now() != first {
		t.Error("the files were read within a second")
	}
	store.checked = store.checked.Add(-checkEvery)
	if store.now() == first {
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
