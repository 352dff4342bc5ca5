package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/network/hosts"
)

// Files are the paths of PEM files. Cert and Key belong together. CA holds the certificates of the
// trusted authorities.
type Files struct {
	Cert, Key, CA string
}

// Validate returns an error if a file is missing. It reads nothing.
func (f Files) Validate() error {
	switch {
	case f.Cert == "" && f.Key != "":
		return errors.New("cert_file is missing: it belongs to key_file")
	case f.Cert != "" && f.Key == "":
		return errors.New("key_file is missing: it belongs to cert_file")
	}
	return nil
}

// ValidateServer returns an error if the files do not suffice for a server, which asks clients for certificates of CA if
// clientAuth is set. It reads nothing.
func (f Files) ValidateServer(clientAuth bool) error {
	if err := f.Validate(); err != nil {
		return err
	}
	switch {
	case f.Cert == "" && (f.CA != "" || clientAuth):
		return errors.New("cert_file and key_file are missing")
	case f.CA == "" && clientAuth:
		return errors.New("client_auth: require wants ca_file: it says whose clients are let in")
	}
	return nil
}

// ValidatePeer returns an error if the files, or the name that all peers have, do not suffice for a peer of a cluster. Without
// any of them there is no TLS. It reads nothing.
func (f Files) ValidatePeer(name string) error {
	if f == (Files{}) && name == "" {
		return nil
	}
	if err := f.Validate(); err != nil {
		return err
	}
	switch {
	case f.Cert == "":
		return errors.New("cert_file and key_file are missing")
	case name != "" && f.CA == "":
		return errors.New("peer_name needs ca_file, whose authorities issue the certificates with that name")
	case name != "" && !hosts.IsName(name):
		return fmt.Errorf("peer_name is %.60q, must be a DNS name such as lowkiq-node.internal", name)
	}
	return nil
}

// checkEvery is the minimum time between two checks of the files.
const checkEvery = time.Second

// Store holds the content of files. Its methods may be called from any goroutine.
type Store struct {
	files Files
	log   *slog.Logger
	every time.Duration

	current atomic.Pointer[loaded]

	mu      sync.Mutex // held while the files are checked; no handshake waits for it
	checked time.Time
	stamps  [3]stamp
	trouble string // the last logged error, "" if the files are good
}

// stamp tells apart two contents of a file.
type stamp struct {
	modified time.Time
	size     int64
}

// loaded is the content of the files at a moment.
type loaded struct {
	cert *tls.Certificate // nil without Cert
	pool *x509.CertPool   // nil without CA
	// Made once for each content, because sessions are resumed only under the same configuration.
	web, guarded, peer *tls.Config
}

// Open reads the files. An error names the file that is wrong. A nil log discards the messages.
func Open(files Files, log *slog.Logger) (*Store, error) {
	if err := files.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{files: files, log: log, every: checkEvery, checked: time.Now(), stamps: files.readStamps()}
	first, err := files.loadFiles()
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	return s, nil
}

// latest returns the content of the files, or their last good content.
func (s *Store) latest() *loaded {
	if s.mu.TryLock() {
		s.reloadIfChanged()
		s.mu.Unlock()
	}
	return s.current.Load()
}

// reloadIfChanged reads the files again if they have changed, or could not be used.
func (s *Store) reloadIfChanged() {
	if time.Since(s.checked) < s.every {
		return
	}
	s.checked = time.Now()
	stamps := s.files.readStamps() // before the content, so that a change in between is seen next time
	if stamps == s.stamps && s.trouble == "" {
		return
	}
	fresh, err := s.files.loadFiles()
	if err != nil {
		if s.trouble != err.Error() {
			s.log.Warn("certificates have changed and cannot be used; the last good ones stay", "err", err)
		}
		s.trouble = err.Error()
		return
	}
	s.stamps, s.trouble = stamps, ""
	s.current.Store(fresh)
	s.log.Info("certificates read again", "cert_file", s.files.Cert, "ca_file", s.files.CA)
}

func (f Files) readStamps() (stamps [3]stamp) {
	for i, file := range []string{f.Cert, f.Key, f.CA} {
		if file == "" {
			continue
		}
		if info, err := os.Stat(file); err == nil {
			stamps[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return stamps
}

func (f Files) loadFiles() (*loaded, error) {
	l := &loaded{}
	if f.Cert != "" {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("cert_file %s and key_file %s: %w", f.Cert, f.Key, err)
		}
		l.cert = &cert
	}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		l.pool = x509.NewCertPool()
		if !l.pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file %s: no certificate in it, want PEM", f.CA)
		}
	}
	l.buildConfigs()
	return l, nil
}
