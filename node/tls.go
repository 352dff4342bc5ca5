package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/internal/hosts"
	"github.com/lowkiq/lowkiq/rebalance"
)

// TLS names PEM files; they are read again when they change. The zero value: no TLS.
type TLS struct {
	CertFile string // of this node
	KeyFile  string
	// CAFile holds the authorities of peers. With it Raft is mutual TLS: each end wants of the
	// other a certificate of these authorities for servers. All nodes of a cluster have it, or
	// none.
	CAFile string
	// PeerName is a DNS name that the certificates of all nodes have and no other server's: without
	// it any server of the authorities is taken for a node. Required to bind beyond loopback,
	// unless Insecure.
	PeerName string
}

// Validate says which field is missing or wrong; no file is read.
func (t TLS) Validate() error {
	if t == (TLS{}) {
		return nil
	}
	if err := (certs.Files{Cert: t.CertFile, Key: t.KeyFile}).Validate(); err != nil {
		return err
	}
	switch {
	case t.CertFile == "":
		return errors.New("cert_file and key_file are missing")
	case t.PeerName != "" && t.CAFile == "":
		return errors.New("peer_name wants ca_file: it is a name in certificates of that authority")
	case t.PeerName != "" && !hosts.Name.MatchString(t.PeerName):
		return fmt.Errorf("peer_name is %.60q, want a DNS name such as lowkiq-node.internal", t.PeerName)
	}
	return nil
}

// openCertificates reads the files, if there are any.
func (cfg Config) openCertificates() (*certs.Store, error) {
	if cfg.TLS.CertFile == "" {
		return nil, nil
	}
	store, err := certs.Open(certs.Files{Cert: cfg.TLS.CertFile, Key: cfg.TLS.KeyFile, CA: cfg.TLS.CAFile}, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return store, nil
}

// exposed returns what other hosts could do to a node that is not secured, each with
// what would be right. Insecure turns these refusals into one warning.
func (cfg Config) exposed() (faults []error) {
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if cfg.Bind == "" || hosts.Loopback(cfg.Bind) {
		return faults
	}
	if len(cfg.GossipKeys) == 0 {
		refuse("bind %s is reachable from other hosts: give a gossip key file (node.gossip_key_file), bind to 127.0.0.1, or say --insecure", cfg.Bind)
	}
	if cfg.TLS.CAFile != "" && cfg.TLS.PeerName == "" {
		refuse("bind %s: any server with a certificate of node.tls.ca_file is taken for a node: name what the nodes' certificates have (node.tls.peer_name), "+
			"bind to 127.0.0.1, or say --insecure", cfg.Bind)
	}
	if cfg.TLS.CAFile == "" {
		refuse("bind %s: Raft, one port above, is reachable from other hosts: give certificates (node.tls with ca_file), bind to 127.0.0.1, or say --insecure", cfg.Bind)
	}
	return faults
}

// raftNetwork makes the listener, and what connects to others, speak TLS if all nodes
// are to.
func (n *Node) raftNetwork(l net.Listener) (net.Listener, rebalance.DialFunc) {
	if n.certs == nil || n.cfg.TLS.CAFile == "" {
		return l, n.dialRaft
	}
	name := n.cfg.TLS.PeerName
	return n.certs.Listen(l, name), func(ctx context.Context, hostPort string) (net.Conn, error) { return n.certs.Dial(ctx, hostPort, name) }
}
