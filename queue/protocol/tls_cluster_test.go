package protocol_test

import (
	"crypto/tls"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/testing/certtest"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// secured has certificates of one authority for servers and clients.
type secured struct {
	ca    *certtest.Authority
	known *tls.Config // a client that the servers let in
}

func newSecured(t *testing.T) secured {
	t.Helper()
	ca := certtest.New(t)
	cert, key := ca.Client("lowkiq")
	return secured{ca, clientOf(t, certs.Files{Cert: cert, Key: key, CA: ca.File})}
}

// servers returns the TLS of servers with a certificate for one host, "127.0.0.1" or "localhost", which
// they announce.
func (s secured) servers(host string) redistest.TLS {
	cert, key := s.ca.Both(host, host)
	l := redistest.TLS{CA: s.ca.File, Cert: cert, Key: key, Client: s.named(host)}
	if host != "127.0.0.1" {
		l.Name = host
	}
	return l
}

// named returns the TLS of a known client that requires one name of every server.
func (s secured) named(host string) *tls.Config {
	config := s.known.Clone()
	config.ServerName = host
	return config
}

// byName replaces the URL's addresses by a name.
func byName(url string) string { return strings.ReplaceAll(url, "127.0.0.1", "localhost") }

// tlsCase is an attempt to connect.
type tlsCase struct {
	name, url string
	tls       *tls.Config
	refused   string // "": it works
}

// strangers returns attempts that servers with a certificate for 127.0.0.1 refuse, and an attempt whose
// client refuses them.
func (s secured) strangers(t *testing.T, url string) []tlsCase {
	t.Helper()
	other := newSecured(t)
	cert, key := other.ca.Client("stranger")
	return []tlsCase{
		{"no certificate", url, clientOf(t, certs.Files{CA: s.ca.File}), "redis"}, // the alert may be lost to the reset
		{"a stranger's certificate", url, clientOf(t, certs.Files{Cert: cert, Key: key, CA: s.ca.File}), "redis"},
		{"the servers are strangers", url, other.known, "unknown authority"},
		{"a name that is not in the certificate", byName(url), s.known, "localhost"},
		{"another name for all", url, s.named("elsewhere"), "elsewhere"},
		{"no TLS", strings.Replace(url, "rediss", "redis", 1), nil, "redis"},
	}
}

func tryTLS(t *testing.T, cases []tlsCase) {
	t.Helper()
	for i, c := range cases {
		client, err := Open(Config{Redis: c.url, TLS: c.tls, Timeout: 5 * time.Second, Cluster: "c" + strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		_, err = client.Check(t.Context(), false)
		switch {
		case c.refused == "" && err != nil, c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.refused)
		case c.refused == "":
			tryJob(t, client)
		}
	}
}

// TestClusterTLS checks that each server of a Redis Cluster is verified by the address that the cluster announces.
func TestClusterTLS(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSecured(t)
	url := redistest.StartClusterTLS(t, 3, s.servers("127.0.0.1")).URL()
	tryTLS(t, append(s.strangers(t, url), tlsCase{"by address", url, s.known, ""}))
	// The client uses the name in the certificate, and the servers announce addresses.
	unnamed := s.servers("localhost")
	unnamed.Name = ""
	url = redistest.StartClusterTLS(t, 1, unnamed).URL()
	tryTLS(t, []tlsCase{
		{"announced by address", byName(url), s.known, "127.0.0.1"},
		{"one name for all", url, s.named("localhost"), ""},
	})
}

// TestClusterTLSByName checks that with names in certificates a cluster has to announce names.
func TestClusterTLSByName(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if server := redistest.Start(t); strings.HasPrefix(versionOf(t, server), "6.") {
		return // it cannot announce names
	}
	s := newSecured(t)
	url := redistest.StartClusterTLS(t, 3, s.servers("localhost")).URL()
	tryTLS(t, []tlsCase{
		{"by name", byName(url), s.known, ""},
		{"by address", url, s.known, "127.0.0.1"},
		{"by address, one name for all", url, s.named("localhost"), ""},
	})
}

func versionOf(t *testing.T, server *redistest.Server) string {
	t.Helper()
	c, err := Open(Config{Redis: server.URL(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found, err := c.Check(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return found.Fields["redis_version"]
}

// TestSentinelTLS checks that sentinels are verified by the URL's hosts, and the master by the host that they announce,
// also after a failover.
func TestSentinelTLS(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for host, url := range map[string]func(string) string{
		"127.0.0.1": func(url string) string { return url },
		"localhost": byName,
	} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			s := newSecured(t)
			servers := redistest.StartSentinelTLS(t, s.servers(host))
			servers.DownAfter(time.Minute)
			if host == "127.0.0.1" {
				tryTLS(t, s.strangers(t, servers.URL()))
			} else {
				tryTLS(t, []tlsCase{{"by address", servers.URL(), s.known, "127.0.0.1"}, {"one name for all", servers.URL(), s.named(host), ""}})
			}
			b := &backend{url: url(servers.URL())}
			r := newRig(t, b, func(c *Config) { c.TLS, c.Timeout = s.known, 10*time.Second })
			r.push(job("a", "1"))
			servers.KillMaster()
			until(t, "a push after the failover", func() bool {
				_, err := r.q.Push(r.ctx, job("b", "1"))
				return err == nil
			})
		})
	}
}
