package redistest

import (
	"crypto/tls"
	"strconv"
	"testing"
)

// TLS is for servers that speak TLS only and want a certificate of everybody, each other
// included: theirs must be good for both ends.
type TLS struct {
	CA, Cert, Key string      // PEM files of the servers
	Client        *tls.Config // how to reach them
	// Name is what a cluster's or a master's servers announce instead of 127.0.0.1.
	Name string
}

// settings are configuration lines for a server, first the one that replaces its port.
func (l *TLS) settings(p *port) [][2]string {
	return [][2]string{
		{"port", "0"}, {"tls-port", strconv.Itoa(p.number)},
		{"tls-ca-cert-file", l.CA}, {"tls-cert-file", l.Cert}, {"tls-key-file", l.Key},
		{"tls-auth-clients", "yes"}, {"tls-replication", "yes"},
	}
}

// args are the settings as arguments; none without TLS.
func (l *TLS) args(p *port) (args []string) {
	if l == nil {
		return nil
	}
	for _, line := range l.settings(p) {
		args = append(args, "--"+line[0], line[1])
	}
	return args
}

// clusterArgs are what a cluster's servers need besides. Names are for Redis 7 or later.
func (l *TLS) clusterArgs() []string {
	switch {
	case l == nil:
		return nil
	case l.Name == "":
		return []string{"--tls-cluster", "yes"}
	}
	return []string{"--tls-cluster", "yes", "--cluster-announce-hostname", l.Name, "--cluster-preferred-endpoint-type", "hostname"}
}

// replicaArgs make a replica known by its name.
func (l *TLS) replicaArgs() []string {
	if l == nil || l.Name == "" {
		return nil
	}
	return []string{"--replica-announce-ip", l.Name}
}

func (l *TLS) client() *tls.Config {
	if l == nil {
		return nil
	}
	return l.Client
}

// StartTLS is Start of a server that speaks TLS only.
func StartTLS(t testing.TB, l TLS) *Server {
	t.Helper()
	return startServer(t, &l, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), l.args(p)...), nil
	})
}
