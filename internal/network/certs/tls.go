package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// buildConfigs makes the configurations for handshakes.
func (l *loaded) buildConfigs() {
	if l.cert == nil {
		return
	}
	l.web = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*l.cert},
	}
	l.guarded = l.web.Clone()
	l.guarded.ClientAuth, l.guarded.ClientCAs = tls.VerifyClientCertIfGiven, l.authorityPool()
	l.peer = &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, Certificates: []tls.Certificate{*l.cert},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, VerifyConnection: l.verifyPeer, // which does verify
	}
}

// ServerConfig returns the configuration of a web server. If clients is true, it verifies the certificates of
// clients against CA. A client without a certificate is let in. Its ConnectionState has no VerifiedChains.
func (s *Store) ServerConfig(clients bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if clients {
				return s.latest().guarded, nil
			}
			return s.latest().web, nil
		},
	}
}

// Listen makes a listener accept only peers of a name. See [Store.Dial].
func (s *Store) Listen(l net.Listener, name string) net.Listener {
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.latest().peerNamed(name), nil },
	})
}

// Dial connects to a peer. Peers trust each other if both have a certificate of CA for servers, with name
// among its DNS names. All peers have the same name, because their addresses come and go. Without a
// name, any certificate of CA for servers is enough. A certificate for clients alone is not.
func (s *Store) Dial(ctx context.Context, hostPort, name string) (net.Conn, error) {
	return (&tls.Dialer{Config: s.latest().peerNamed(name)}).DialContext(ctx, "tcp", hostPort)
}

// peerNamed returns the configuration for peers of a name.
func (l *loaded) peerNamed(name string) *tls.Config {
	if l.peer == nil || name == "" {
		return l.peer
	}
	config := l.peer.Clone()
	config.VerifyConnection = func(c tls.ConnectionState) error {
		if err := l.verifyPeer(c); err != nil {
			return err
		}
		// The name must be equal, because a wildcard certificate of a domain belongs to its web servers.
		if names := c.PeerCertificates[0].DNSNames; !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return fmt.Errorf("the peer's certificate has the names %q, want %s among them (peer_name)", names, name)
		}
		return nil
	}
	return config
}

// authorityPool returns the authorities for clients and peers. Without CA it is empty. A nil pool would
// mean the system's authorities, which sign for the whole world.
func (l *loaded) authorityPool() *x509.CertPool {
	if l.pool == nil {
		return x509.NewCertPool()
	}
	return l.pool
}

func (l *loaded) verifyPeer(c tls.ConnectionState) error {
	if len(c.PeerCertificates) == 0 {
		return errors.New("the peer has shown no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range c.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	_, err := c.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: l.authorityPool(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("the peer's certificate is not one of ca_file for servers: %w", err)
	}
	return nil
}

// ClientConfig returns the configuration for connections to a server, whose name is verified. If CA is empty,
// it trusts the system's authorities. The own certificate follows its files. A changed CA counts only
// for the next call of ClientConfig.
func (s *Store) ClientConfig() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.latest().pool}
	if s.files.Cert != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.latest().cert, nil }
	}
	return config
}
