package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is the Redis that is measured.
type Server struct {
	URL  string
	rdb  *redis.Client
	stop func() // ends a private server
}

// open connects to the Redis at url, or to a private one.
func open(ctx context.Context, url string) (*Server, error) {
	s := &Server{URL: url, stop: func() {}}
	if url == "" {
		var err error
		if s.URL, s.stop, err = startRedis(ctx); err != nil {
			return nil, err
		}
	}
	opts, err := options(s.URL)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	redis.SetLogger(silence{}) // what matters comes back as an error
	s.rdb = redis.NewClient(opts)
	if err := s.rdb.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(fmt.Errorf("redis %s: %w", opts.Addr, err), s.close())
	}
	return s, nil
}

// silence is go-redis's logger, which would write lines of its own to stderr.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func (s *Server) close() (err error) {
	if s.rdb != nil {
		err = s.rdb.Close()
	}
	s.stop()
	return err
}

func (s *Server) empty(ctx context.Context) error {
	if err := s.rdb.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("empty redis: %w", err)
	}
	return nil
}

// options are those of package queue, as far as they count for speed.
func options(url string) (*redis.Options, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redis address: %w; bench wants a single Redis: redis://host:port", err)
	}
	opts.Protocol, opts.DisableIdentity, opts.MaxRetries, opts.DialerRetries = 2, true, -1, 1
	return opts, nil
}

// Usage is what Redis has used so far.
type Usage struct {
	CPU      time.Duration // of its process, user and system
	Bytes    int64         // of its data, without connections and scripts
	Commands int64         // processed, also those of scripts
	Scripts  int64         // calls, by name or text
}

// Usage asks Redis.
func (s *Server) Usage(ctx context.Context) (Usage, error) {
	var u Usage
	info, err := s.info(ctx, "cpu", "memory", "stats")
	if err != nil {
		return u, err
	}
	for _, key := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info[key], 64)
		if err != nil {
			return u, fmt.Errorf("redis INFO: %s is %q, want seconds", key, info[key])
		}
		u.CPU += time.Duration(seconds * float64(time.Second))
	}
	// Not used_memory_dataset: of a nearly empty Redis it is a negative number read as unsigned.
	var total, overhead int64
	for key, value := range map[string]*int64{"used_memory": &total, "used_memory_overhead": &overhead, "total_commands_processed": &u.Commands} {
		if *value, err = strconv.ParseInt(info[key], 10, 64); err != nil {
			return u, fmt.Errorf("redis INFO: %s is %q, want a number", key, info[key])
		}
	}
	u.Bytes = total - overhead
	u.Scripts, err = s.scripts(ctx)
	return u, err
}

// scripts is how many scripts Redis has run.
func (s *Server) scripts(ctx context.Context) (calls int64, err error) {
	info, err := s.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	for _, command := range []string{"eval", "evalsha"} {
		stats, found := info["cmdstat_"+command]
		if !found { // none so far
			continue
		}
		var n int64
		if _, err := fmt.Sscanf(stats, "calls=%d,", &n); err != nil {
			return 0, fmt.Errorf("redis INFO: cmdstat_%s is %q, want calls=N: %w", command, stats, err)
		}
		calls += n
	}
	return calls, nil
}

func (s *Server) version(ctx context.Context) string {
	info, err := s.info(ctx, "server")
	if err != nil || info["redis_version"] == "" {
		return "of unknown version"
	}
	return info["redis_version"]
}

func (s *Server) info(ctx context.Context, sections ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, section := range sections { // one by one: several at once need Redis 7
		text, err := s.rdb.Info(ctx, section).Result()
		if err != nil {
			return nil, fmt.Errorf("redis INFO %s: %w", section, err)
		}
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				found[key] = value
			}
		}
	}
	return found, nil
}

// ErrNoServer means that there is no redis-server to start.
var ErrNoServer = errors.New("redis-server is not on PATH: install it (Debian: apt-get install redis-server), or name a Redis that may be emptied")

// startRedis starts a private redis-server without persistence. stop ends it.
func startRedis(ctx context.Context) (url string, stop func(), err error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, ErrNoServer
	}
	for range 3 { // another process may take the free port before the server does
		if url, stop, err = tryRedis(ctx, binary); err == nil || ctx.Err() != nil {
			break
		}
	}
	return url, stop, err
}

func tryRedis(ctx context.Context, binary string) (url string, stop func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "lowkiq-bench-")
	if err != nil {
		return "", nil, err
	}
	// Not CommandContext: the server must outlive what a cancelled run still asks of it.
	cmd := exec.Command(binary, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir)
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("start redis-server: %w", err), os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }() //nolint:errcheck // killed, or await says it
	stop = func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	}
	url = fmt.Sprintf("redis://127.0.0.1:%d/0", port)
	if err := await(ctx, port, ended); err != nil {
		stop()
		return "", nil, fmt.Errorf("start redis-server on port %d: %w", port, err)
	}
	return url, stop, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// await returns when the server listens, or has ended, or too much time has passed.
func await(ctx context.Context, port int, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("it does not listen within 30 s"))
	defer cancel()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
