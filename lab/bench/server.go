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
	URL     string
	rdb     redis.UniversalClient
	masters []*redis.Client // the single Redis, or the masters of a Redis Cluster
	stop    func()          // ends a private server
}

// openServer connects to the Redis at url, or to a private Redis.
func openServer(ctx context.Context, url string) (*Server, error) {
	s := &Server{URL: url, stop: func() {}}
	if url == "" {
		var err error
		if s.URL, s.stop, err = startRedis(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.addMaster(ctx, s.URL); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.rdb = s.masters[0]
	return s, nil
}

// addMaster adds the master at url.
func (s *Server) addMaster(ctx context.Context, url string) error {
	opts, err := redisOptions(url)
	if err != nil {
		return err
	}
	redis.SetLogger(silence{}) // errors are returned
	master := redis.NewClient(opts)
	s.masters = append(s.masters, master)
	if err := master.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis %s: %w", opts.Addr, err)
	}
	return nil
}

// silence replaces the logger of go-redis, which would write to stderr.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// close closes all connections, and ends a private server.
func (s *Server) close() (err error) {
	for _, master := range s.masters {
		err = errors.Join(err, master.Close())
	}
	if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
		err = errors.Join(err, cluster.Close())
	}
	s.stop()
	return err
}

// flushAll deletes all data of every master. The benchmark must have the Redis to itself.
func (s *Server) flushAll(ctx context.Context) error {
	for _, master := range s.masters {
		if err := master.FlushAll(ctx).Err(); err != nil {
			return fmt.Errorf("empty redis: %w", err)
		}
	}
	return nil
}

// redisOptions returns the options of package queue/protocol, as far as they matter for speed.
func redisOptions(url string) (*redis.Options, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("redis address: %w; bench needs a single Redis: redis://host:port", err)
	}
	opts.Protocol, opts.DisableIdentity, opts.MaxRetries, opts.DialerRetries = 2, true, -1, 1
	opts.ReadTimeout = time.Minute // the default of 3 s does not suffice to delete ten million jobs
	return opts, nil
}

// memoryOf returns the memory of the keys that match a pattern, in bytes.
func (s *Server) memoryOf(ctx context.Context, pattern string) (total int64, err error) {
	for _, master := range s.masters {
		keys, err := master.Keys(ctx, pattern).Result()
		if err != nil {
			return 0, fmt.Errorf("list keys: %w", err)
		}
		for _, key := range keys {
			n, err := master.MemoryUsage(ctx, key, 0).Result()
			if err != nil {
				return 0, fmt.Errorf("memory of %s: %w", key, err)
			}
			total += n
		}
	}
	return total, nil
}

// Usage is what Redis has used so far.
type Usage struct {
	CPU      time.Duration   // of the process, user and system
	Each     []time.Duration // CPU of each master of a Redis Cluster; the other fields are sums
	Bytes    int64           // memory of the data, without connections and scripts
	Commands int64           // commands processed, also within scripts
	Scripts  int64           // script calls, by name or text
}

// Usage reads the usage from Redis.
func (s *Server) Usage(ctx context.Context) (Usage, error) {
	var all Usage
	for _, master := range s.masters {
		u, err := readUsage(ctx, master)
		if err != nil {
			return all, err
		}
		all.CPU, all.Each = all.CPU+u.CPU, append(all.Each, u.CPU)
		all.Bytes, all.Commands, all.Scripts = all.Bytes+u.Bytes, all.Commands+u.Commands, all.Scripts+u.Scripts
	}
	return all, nil
}

// since returns the usage since before.
func (u Usage) since(before Usage) Usage {
	used := Usage{CPU: u.CPU - before.CPU, Bytes: u.Bytes - before.Bytes, Commands: u.Commands - before.Commands, Scripts: u.Scripts - before.Scripts}
	for i := range u.Each {
		used.Each = append(used.Each, u.Each[i]-before.Each[i])
	}
	return used
}

// readUsage reads the counters of a server since its start. CPU is system and user time. Bytes is
// used_memory without used_memory_overhead.
func readUsage(ctx context.Context, rdb *redis.Client) (Usage, error) {
	var u Usage
	info, err := readInfo(ctx, rdb, "cpu", "memory", "stats")
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
	// used_memory_dataset cannot be used: in a nearly empty Redis it is a negative number, read as unsigned.
	var total, overhead int64
	for key, value := range map[string]*int64{"used_memory": &total, "used_memory_overhead": &overhead, "total_commands_processed": &u.Commands} {
		if *value, err = strconv.ParseInt(info[key], 10, 64); err != nil {
			return u, fmt.Errorf("redis INFO: %s is %q, want a number", key, info[key])
		}
	}
	u.Bytes = total - overhead
	u.Scripts, err = countScripts(ctx, rdb)
	return u, err
}

// countScripts returns how many scripts Redis has run.
func countScripts(ctx context.Context, rdb *redis.Client) (calls int64, err error) {
	info, err := readInfo(ctx, rdb, "commandstats")
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

func (s *Server) readVersion(ctx context.Context) string {
	info, err := readInfo(ctx, s.masters[0], "server")
	if err != nil || info["redis_version"] == "" {
		return "of unknown version"
	}
	return info["redis_version"]
}

// readInfo reads sections of INFO.
func readInfo(ctx context.Context, rdb *redis.Client, sections ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, section := range sections { // several sections in a command need Redis 7
		text, err := rdb.Info(ctx, section).Result()
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
func startRedis(ctx context.Context, args ...string) (url string, stop func(), err error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, ErrNoServer
	}
	for range 3 { // another process may take the free port before the server does
		if url, stop, err = tryRedis(ctx, binary, args); err == nil || ctx.Err() != nil {
			break
		}
	}
	return url, stop, err
}

// tryRedis starts a server without persistence on a free port, and waits until it answers. stop ends the
// server and removes its files. After an error neither is left.
func tryRedis(ctx context.Context, binary string, args []string) (url string, stop func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "lowkiq-bench-")
	if err != nil {
		return "", nil, err
	}
	// Not CommandContext: the server must outlive what a cancelled run still asks of it.
	args = append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir}, args...)
	cmd := exec.Command(binary, args...)
	if err := cmd.Start(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("start redis-server: %w", err), os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }() //nolint:errcheck // it was killed, or awaitServer returns the error
	stop = func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	}
	url = fmt.Sprintf("redis://127.0.0.1:%d/0", port)
	if err := awaitServer(ctx, port, ended); err != nil {
		stop()
		return "", nil, fmt.Errorf("start redis-server on port %d: %w", port, err)
	}
	return url, stop, nil
}

// busOffset is the distance of a Redis Cluster member's bus port from its port.
const busOffset = 10_000

// freePort returns a free port whose bus port is free as well.
func freePort() (port int, err error) {
	for range 100 {
		if port, err = listenOnce("127.0.0.1:0"); err != nil {
			return 0, err
		}
		if _, err = listenOnce(fmt.Sprintf("127.0.0.1:%d", port+busOffset)); err == nil {
			return port, nil
		}
	}
	return 0, err
}

func listenOnce(address string) (port int, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// awaitServer returns when the server listens, has ended, or does not listen in time.
func awaitServer(ctx context.Context, port int, ended <-chan struct{}) error {
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
