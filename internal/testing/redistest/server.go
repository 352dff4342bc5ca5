package redistest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long a server, a cluster or a failover may take on a machine that runs the tests of all packages at once.
// A test that passes does not wait for it.
const patience = 60 * time.Second

// Server is the redis-server of a test. Its faults (Stop, Kill, Restart, Pause, Resume) may be called from any goroutine,
// but not concurrently.
type Server struct {
	t      testing.TB
	binary string
	dir    string
	port   *port
	argv   []string
	env    []string    // added to the environment of the test
	tls    *tls.Config // the client's configuration; nil without TLS

	mu      sync.Mutex // guards process
	process *process
}

// errPortTaken means that another program took the port first.
var errPortTaken = errors.New("port is taken")

// Durable are the arguments of a server that loses nothing if its process is killed. It writes each command to its file before it
// answers. It does not wait for the disk, which may take seconds on a busy machine, in which nodes time out.
var Durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

// Start runs a server without persistence and waits until it answers. args are added to its command line, as in Start(t,
// "--maxmemory", "10mb"). Later settings override earlier settings.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return startServer(t, nil, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), args...), nil
	})
}

// StartOld starts a server, as [Start] does, for the old Redis of a migration. The server may be older than lowkiq accepts.
// It is the server that LOWKIQ_OLD_REDIS names, or the server on PATH.
//
//	LOWKIQ_OLD_REDIS=/tmp/redis-3.2.13/src/redis-server go test ./migrate/rubyqueue ./migrate/movein
func StartOld(t testing.TB, args ...string) *Server {
	t.Helper()
	path := os.Getenv(OldEnv)
	if path == "" {
		return Start(t, args...)
	}
	return startBinary(t, path, nil, func(p *port, dir string) ([]string, error) {
		return append(serverArgs(p, dir), args...), nil
	})
}

func serverArgs(p *port, dir string) []string {
	return []string{
		"--port", strconv.Itoa(p.number), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}
}

// startServer tries ports until it finds a free port. argv returns the command line and may write files to dir. env is added
// to the environment.
func startServer(t testing.TB, l *TLS, argv func(*port, string) ([]string, error), env ...string) *Server {
	t.Helper()
	return startBinary(t, requireBinary(t), l, argv, env...)
}

func startBinary(t testing.TB, binary string, l *TLS, argv func(*port, string) ([]string, error), env ...string) *Server {
	t.Helper()
	var err error
	for range 10 {
		s := &Server{t: t, binary: binary, dir: t.TempDir(), env: env, tls: l.clientConfig()}
		if s.port, err = reservePort(); err != nil {
			t.Fatalf("start redis-server: %v", err)
		}
		t.Cleanup(s.close)
		if s.argv, err = argv(s.port, s.dir); err != nil {
			t.Fatalf("configure redis-server: %v", err)
		}
		if err = s.launch(); err == nil {
			return s
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	t.Fatalf("start redis-server: %v", err)
	return nil
}

// launch starts the process and waits for its first answer.
func (s *Server) launch() error {
	p, err := launchProcess(s.binary, s.dir, s.argv, s.env...)
	if err != nil {
		return err
	}
	if err := s.awaitPing(p); err != nil {
		p.kill()
		return fmt.Errorf("redis-server on %s: %w; the end of its log:\n%s", s.Addr(), err, p.logTail())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
	return nil
}

func (s *Server) awaitPing(p *process) error {
	client := clientOf(s)
	defer func() { _ = client.Close() }()
	var last error
	err := awaitCondition(p.done, func() bool {
		if last = checkListens(s.Addr()); last != nil {
			return false // go-redis would print a line for every attempt
		}
		last = client.Ping(s.t.Context()).Err()
		return last == nil || strings.HasPrefix(last.Error(), "NOAUTH")
	})
	switch {
	case err == nil && !p.ended():
		return nil
	case p.ended() && strings.Contains(p.logTail(), "Address already in use"):
		return errPortTaken
	case p.ended():
		return fmt.Errorf("died at its start: %v", p.err)
	}
	return fmt.Errorf("no answer to PING: %w: %v", err, last)
}

// Addr returns host:port, which is the same for all runs of the server.
func (s *Server) Addr() string { return s.port.addr() }

// URL returns the address as a Redis URL, database 0.
func (s *Server) URL() string {
	return (&url.URL{Scheme: s.scheme(), Host: s.Addr(), Path: "/0"}).String()
}

func (s *Server) scheme() string {
	if s.tls != nil {
		return "rediss"
	}
	return "redis"
}

// PID returns the process id of the last run.
func (s *Server) PID() int { return s.current().cmd.Process.Pid }

// Stop ends the server with SIGTERM, as an operator would. It does nothing if the server has ended.
func (s *Server) Stop() {
	s.t.Helper()
	p := s.current()
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	if awaitCondition(nil, p.ended) != nil {
		p.kill()
		s.t.Errorf("redis-server on %s did not stop within %s of SIGTERM", s.Addr(), patience)
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.current().kill() }

// Restart runs the server again on its port with its files, and waits until it answers. It first kills a server that still
// runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.launch(); err != nil {
		s.t.Errorf("restart: %v", err)
	}
}

// Pause freezes the server with SIGSTOP. Connections stay open and get no answers.
func (s *Server) Pause() { s.current().signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.current().signal(syscall.SIGCONT) }

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// close ends the server, and shows the log of a failed test.
func (s *Server) close() {
	defer s.port.release()
	p := s.current()
	if p == nil {
		return
	}
	p.kill()
	if s.t.Failed() {
		s.t.Logf("end of the log of redis-server on %s:\n%s", s.Addr(), p.logTail())
	}
}

func checkListens(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// newClient returns a client that returns every error at once, without retries.
func newClient(addr string) *redis.Client { return redis.NewClient(clientOptions(addr)) }

func clientOf(s *Server) *redis.Client { return redis.NewClient(optionsFor(s)) }

func optionsFor(s *Server) *redis.Options {
	opts := clientOptions(s.Addr())
	opts.TLSConfig = s.tls
	return opts
}

func clientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: 5 * time.Second,
		ReadTimeout: 5 * time.Second, PoolSize: 2,
	}
}

// errPatience is the error of awaitCondition for a condition that did not come true.
var errPatience = fmt.Errorf("not within %s", patience)

// awaitCondition waits until the condition holds, stop is closed, or patience is over.
func awaitCondition(stop <-chan struct{}, condition func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-stop:
			return errors.New("it ended")
		case <-deadline:
			return errPatience
		}
	}
	return nil
}
