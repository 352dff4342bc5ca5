package protocol_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

func clientOf(t *testing.T, files certs.Files) *tls.Config {
	t.Helper()
	store, err := certs.Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store.ClientConfig()
}

// TestRedisTLS uses a Redis with TLS that requires client certificates, all of a private authority.
func TestRedisTLS(t *testing.T) {
	t.Parallel()
	ca, other := certtest.New(t), certtest.New(t)
	cert, key := ca.Server("redis")
	clientCert, clientKey := ca.Client("lowkiq")
	otherCert, otherKey := other.Client("stranger")
	known := clientOf(t, certs.Files{Cert: clientCert, Key: clientKey, CA: ca.File})
	server := redistest.StartTLS(t, redistest.TLS{CA: ca.File, Cert: cert, Key: key, Client: known})
	for _, c := range []struct {
		name, url string
		tls       *tls.Config
		refused   string
	}{
		{"known", server.URL(), known, ""},
		{"by name", strings.Replace(server.URL(), "127.0.0.1", "localhost", 1), known, ""},
		{"no certificate", server.URL(), clientOf(t, certs.Files{CA: ca.File}), "connect: redis"}, // the alert may be lost to the reset
		{"a stranger's certificate", server.URL(), clientOf(t, certs.Files{Cert: otherCert, Key: otherKey, CA: ca.File}), "connect: redis"},
		{"the server is a stranger", server.URL(), clientOf(t, certs.Files{Cert: clientCert, Key: clientKey, CA: other.File}), "unknown authority"},
		{"the system's authorities", server.URL(), nil, "unknown authority"},
		{"no TLS", strings.Replace(server.URL(), "rediss", "redis", 1), nil, "redis"},
	} {
		c2, err := Open(Config{Redis: c.url, TLS: c.tls, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c2.Close() })
		_, err = c2.Check(t.Context(), false)
		if denied := c.refused == "unknown authority"; Denied(err) != denied {
			t.Errorf("%s: got %v, denied %t, want %t", c.name, err, !denied, denied)
		}
		switch {
		case c.refused == "" && err != nil, c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		case c.refused == "":
			tryJob(t, c2)
		}
	}
}

// tryJob pushes, pops and acks.
func tryJob(t *testing.T, c *Client) {
	t.Helper()
	r := rigOn(t, c)
	r.own(Self)
	r.push(lowkiq.Push{ID: "a", Payload: []byte("1")})
	_, flight := r.popOne("a")
	r.ack(flight, "a")
}
