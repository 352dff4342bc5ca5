package node

import (
	"context"
	"fmt"
	"net"

	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/network/hosts"
	"github.com/lowkiq/lowkiq/rebalance"
)

// TLS names PEM files. They are read again when they change. The zero value uses no TLS.
type TLS struct {
	CertFile string // of this node
	KeyFile  string
	// CAFile has the authorities of peers. With it Raft uses mutual TLS. Each end then requires a server certificate of
	// these authorities from the other end. All nodes of a cluster have a CAFile, or no node has.
	CAFile string
	// PeerName is a DNS name in the certificates of all nodes, and of no other server. Without it, any server with a
	// certificate of these authorities counts as a node. Required to bind beyond loopback, unless Insecure.
	PeerName string
}

// Validate returns an error if a field is missing or wrong. It reads no file.
func (t TLS) Validate() error { return t.files().ValidatePeer(t.PeerName) }

func (t TLS) files() certs.Files {
	return certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// openCertificates reads the files. It returns nil without files.
func (cfg Config) openCertificates() (*certs.Store, error) {
	if cfg.TLS.CertFile == "" {
		return nil, nil
	}
	store, err := certs.Open(cfg.TLS.files(), cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return store, nil
}

// findExposures returns the ways for other hosts to misuse a node without keys or certificates, each with the
// remedy. Without Insecure they are errors, and with Insecure a single warning.
func (cfg Config) findExposures() (faults []error) {
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if cfg.Bind == "" || hosts.IsLoopback(cfg.Bind) {
		return faults
	}
	if len(cfg.GossipKeys) == 0 {
		refuse("bind %s is reachable from other hosts; configure a gossip key file (node.gossip_key_file), bind to 127.0.0.1, or pass --insecure", cfg.Bind)
	}
	if cfg.TLS.CAFile != "" && cfg.TLS.PeerName == "" {
		refuse("bind %s: any server with a certificate of node.tls.ca_file counts as a node; configure a name that only the nodes' certificates have (node.tls.peer_name), "+
			"bind to 127.0.0.1, or pass --insecure", cfg.Bind)
	}
	if cfg.TLS.CAFile == "" {
		refuse("bind %s: Raft, one port above, is reachable from other hosts; configure certificates (node.tls with ca_file), bind to 127.0.0.1, or pass --insecure", cfg.Bind)
	}
	return faults
}

// raftNetwork returns the listener and the dial function of Raft, with TLS if the nodes use it.
func (n *Node) raftNetwork(l net.Listener) (net.Listener, rebalance.DialFunc) {
	if n.certs == nil || n.cfg.TLS.CAFile == "" {
		return l, n.dialRaft
	}
	name := n.cfg.TLS.PeerName
	return n.certs.Listen(l, name), func(ctx context.Context, hostPort string) (net.Conn, error) { return n.certs.Dial(ctx, hostPort, name) }
}
