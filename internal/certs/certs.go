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
)

// Files are PEM files. Cert and Key belong together; CA holds one or more certificates
// of those who are to be trusted.
type Files struct {
	Cert, Key, CA string
}

// Validate says what is missing; nothing is read.
func (f Files) Validate() error {
	switch {
	case f.Cert == "" && f.Key != "":
		return errors.New("cert_file is missing: it belongs to key_file")
	case f.Cert != "" && f.Key == "":
		return errors.New("key_file is missing: it belongs to cert_file")
	}
	return nil
}

// checkEvery is how often the files are looked at, at most.
const checkEvery = time.Second

// Store is what files hold. Its methods may be called from any goroutine.
type Store struct {
	files Files
	log   *slog.Logger
	every time.Duration

	current atomic.Pointer[loaded]

	mu      sync.Mutex // held while the files are looked at; no handshake waits for it
	checked time.Time
	stamps  [3]stamp
	trouble string // as logged last
}

// stamp tells one content of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

// loaded is the content of the files at one moment.
type loaded struct {
	cert *tls.Certificate // nil without Cert
	pool *x509.CertPool   // nil without CA
	// Made once for each content: sessions are resumed only under the same one.
	web, guarded, peer *tls.Config
}

// Open reads the files. An error says which one is wrong. log = nil: nothing is logged.
func Open(files Files, log *slog.Logger) (*Store, error) {
	if err := files.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{files: files, log: log, every: checkEvery, checked: time.Now(), stamps: files.stamps()}
	first, err := files.load()
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	return s, nil
}

// now is what the files hold, or held when they could last be used.
func (s *Store) now() *loaded {
	if s.mu.TryLock() {
		s.look()
		s.mu.Unlock()
	}
	return s.current.Load()
}

// look reads the files again if they have changed, or were in trouble.
func (s *Store) look() {
	if time.Since(s.checked) < s.every {
		return
	}
	s.checked = time.Now()
	stamps := s.files.stamps() // before reading: what changes meanwhile is seen next time
	if stamps == s.stamps && s.trouble == "" {
		return
	}
	fresh, err := s.files.load()
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

func (f Files) stamps() (stamps [3]stamp) {
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

func (f Files) load() (*loaded, error) {
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
	l.configure()
	return l, nil
}
