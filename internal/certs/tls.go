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

// configure makes what handshakes are led with.
func (l *loaded) configure() {
	if l.cert == nil {
		return
	}
	l.web = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*l.cert},
	}
	l.guarded = l.web.Clone()
	l.guarded.ClientAuth, l.guarded.ClientCAs = tls.VerifyClientCertIfGiven, l.authorities()
	l.peer = &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, Certificates: []tls.Certificate{*l.cert},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, VerifyConnection: l.verifyPeer, // which does verify
	}
}

// Server is the configuration of a web server. With clients, it also verifies the
// certificates of clients against CA; a client that shows none is let in, and told apart by
// ConnectionState.VerifiedChains.
func (s *Store) Server(clients bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if clients {
				return s.now().guarded, nil
			}
			return s.now().web, nil
		},
	}
}

// Listen makes a listener take only peers of a name. See [Store.Dial].
func (s *Store) Listen(l net.Listener, name string) net.Listener {
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now().peerNamed(name), nil },
	})
}

// Dial connects to a peer. Peers trust each other when both have a certificate of CA for servers
// that has name among its DNS names; it is the same for all peers, who are known by addresses that
// come and go. Without a name any certificate of CA for servers will do. One for clients alone does
// not make a peer.
func (s *Store) Dial(ctx context.Context, hostPort, name string) (net.Conn, error) {
	return (&tls.Dialer{Config: s.now().peerNamed(name)}).DialContext(ctx, "tcp", hostPort)
}

// peerNamed is the configuration for peers of a name.
func (l *loaded) peerNamed(name string) *tls.Config {
	if l.peer == nil || name == "" {
		return l.peer
	}
	config := l.peer.Clone()
	config.VerifyConnection = func(c tls.ConnectionState) error {
		if err := l.verifyPeer(c); err != nil {
			return err
		}
		// Exactly: a certificate for all names below a domain is for its web servers.
		if names := c.PeerCertificates[0].DNSNames; !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return fmt.Errorf("the peer's certificate has the names %q, want %s among them (peer_name)", names, name)
		}
		return nil
	}
	return config
}

// authorities are those who vouch for clients and peers. Without CA there are none: the
// system's authorities, which nil would mean, sign for the whole world.
func (l *loaded) authorities() *x509.CertPool {
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
		Roots: l.authorities(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("the peer's certificate is not one of ca_file for servers: %w", err)
	}
	return nil
}

// Client is the configuration for connections to a server, whose name is verified. The
// system's authorities are trusted if CA is empty. The own certificate follows its
// files; a changed CA is for the next Client.
func (s *Store) Client() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.now().pool}
	if s.files.Cert != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.now().cert, nil }
	}
	return config
}
