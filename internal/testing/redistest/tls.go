package redistest

import (
	"crypto/tls"
	"strconv"
	"testing"
)

// TLS configures servers that speak only TLS and require certificates of all clients. They also connect to each other, so
// their certificates must be valid for servers and clients.
type TLS struct {
	CA, Cert, Key string      // PEM files of the servers
	Client        *tls.Config // the configuration of clients
	// Name is the name that the servers of a cluster, or a master, announce in place of 127.0.0.1.
	Name string
}

// serverSettings returns configuration lines for a server. The first replaces its port.
func (l *TLS) serverSettings(p *port) [][2]string {
	return [][2]string{
		{"port", "0"}, {"tls-port", strconv.Itoa(p.number)},
		{"tls-ca-cert-file", l.CA}, {"tls-cert-file", l.Cert}, {"tls-key-file", l.Key},
		{"tls-auth-clients", "yes"}, {"tls-replication", "yes"},
	}
}

// serverArgs returns the settings as arguments, none without TLS.
func (l *TLS) serverArgs(p *port) (args []string) {
	if l == nil {
		return nil
	}
	for _, line := range l.serverSettings(p) {
		args = append(args, "--"+line[0], line[1])
	}
	return args
}

// clusterArgs returns further arguments for the servers of a cluster. Names need Redis 7 or later.
func (l *TLS) clusterArgs() []string {
	switch {
	case l == nil:
		return nil
	case l.Name == "":
		return []string{"--tls-cluster", "yes"}
	}
	return []string{"--tls-cluster", "yes", "--cluster-announce-hostname", l.Name, "--cluster-preferred-endpoint-type", "hostname"}
}

// replicaArgs returns the arguments that make a replica known by its name.
func (l *TLS) replicaArgs() []string {
	if l == nil || l.Name == "" {
		return nil
	}
	return []string{"--replica-announce-ip", l.Name}
}

func (l *TLS) clientConfig() *tls.Config {
	if l == nil {
		return nil
	}
	return l.Client
}

// StartTLS starts a server, as [Start] does, that speaks only TLS.
func StartTLS(t testing.TB, l TLS) *Server {
	t.Helper()
	return startServer(t, &l, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), l.serverArgs(p)...), nil
	})
}
