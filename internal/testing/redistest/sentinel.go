package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// masterName is the sentinels' name of the master.
const masterName = "mymaster"

// Sentinel is a master with a replica, watched by three sentinels. A busy machine may be silent for a second, so the
// sentinels call no server dead before a test kills the master. The failover begins half a second after that. The methods
// may be called from any goroutine, but not concurrently.
type Sentinel struct {
	Data      []*Server // at first: the master, then its replica
	Sentinels []*Server

	t   testing.TB
	tls *TLS // nil without TLS
}

// StartSentinel runs the five servers and waits until the sentinels know each other and the replica. From then on they can
// fail over.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	return startSentinels(t, nil)
}

// StartSentinelTLS starts servers as [StartSentinel] does, with TLS, also between the servers.
func StartSentinelTLS(t testing.TB, l TLS) *Sentinel {
	t.Helper()
	return startSentinels(t, &l)
}

func startSentinels(t testing.TB, l *TLS) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, tls: l}
	master := s.startData()
	host, port := hostPort(master)
	replica := s.startData("--replicaof", host+" "+port)
	s.Data = []*Server{master, replica}
	if err := awaitCondition(nil, func() bool { return isReplicating(t.Context(), replica) }); err != nil {
		t.Fatalf("replica of %s: %v", master.Addr(), err)
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, s.startSentinel(master))
	}
	if err := awaitCondition(nil, func() bool { return s.isReady(t.Context()) }); err != nil {
		t.Fatalf("sentinels of %s: %v", master.Addr(), err)
	}
	return s
}

func (s *Sentinel) startData(args ...string) *Server {
	s.t.Helper()
	return startServer(s.t, s.tls, func(p *port, dir string) ([]string, error) {
		// Otherwise the master waits 5 s for other replicas that need the same snapshot.
		return slices.Concat(serverArgs(p, dir), s.tls.serverArgs(p), s.tls.replicaArgs(), []string{"--repl-diskless-sync-delay", "0"}, args), nil
	})
}

func (s *Sentinel) startSentinel(master *Server) *Server {
	s.t.Helper()
	return startServer(s.t, s.tls, func(p *port, dir string) ([]string, error) {
		// A sentinel needs a configuration file, because it keeps its state there.
		file := filepath.Join(dir, "sentinel.conf")
		return []string{file, "--sentinel"}, os.WriteFile(file, []byte(s.writeConfig(p, dir, master)), 0o600)
	})
}

func (s *Sentinel) writeConfig(p *port, dir string, master *Server) string {
	host, port := hostPort(master)
	lines := []string{fmt.Sprintf("port %d", p.number), "bind 127.0.0.1", fmt.Sprintf("dir %q", dir)}
	if s.tls != nil {
		for _, line := range s.tls.serverSettings(p) {
			lines = append(lines, fmt.Sprintf("%s %q", line[0], line[1]))
		}
		if s.tls.Name != "" {
			host = s.tls.Name
			lines = append(lines, "sentinel resolve-hostnames yes", "sentinel announce-hostnames yes")
		}
	}
	return strings.Join(append(lines,
		fmt.Sprintf("sentinel monitor %s %s %s 2", masterName, host, port),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", masterName, patience.Milliseconds()),
		fmt.Sprintf("sentinel failover-timeout %s 5000", masterName),
		"",
	), "\n")
}

func isReplicating(ctx context.Context, replica *Server) bool {
	client := clientOf(replica)
	defer func() { _ = client.Close() }()
	info, err := client.Info(ctx, "replication").Result()
	return err == nil && hasLines(info, []string{"role:slave", "master_link_status:up"})
}

func (s *Sentinel) isReady(ctx context.Context) bool {
	for _, sentinel := range s.Sentinels {
		client := sentinelClient(sentinel)
		master, err := client.Master(ctx, masterName).Result()
		_ = client.Close()
		if err != nil || master["num-slaves"] != "1" || master["num-other-sentinels"] != "2" || master["flags"] != "master" {
			return false
		}
	}
	return true
}

// URL returns redis+sentinel://host:port,host:port,host:port/mymaster
func (s *Sentinel) URL() string {
	return s.Sentinels[0].scheme() + "+sentinel://" + strings.Join(addressesOf(s.Sentinels), ",") + "/" + masterName
}

// Master returns the server that a majority of the sentinels names as the master, nil while they disagree.
func (s *Sentinel) Master() *Server {
	votes := make(map[string]int)
	for _, sentinel := range s.Sentinels {
		client := sentinelClient(sentinel)
		if at, err := client.GetMasterAddrByName(s.t.Context(), masterName).Result(); err == nil {
			votes[at[1]]++ // compare ports, because the host may be a name
		}
		_ = client.Close()
	}
	for _, server := range s.Data {
		if votes[strconv.Itoa(server.port.number)] > len(s.Sentinels)/2 {
			return server
		}
	}
	return nil
}

// KillMaster kills the current master and returns it. The replica becomes the master about two seconds later. The dead
// server may be restarted and becomes a replica.
func (s *Sentinel) KillMaster() *Server {
	s.t.Helper()
	master := s.Master()
	if master == nil {
		s.t.Error("kill the master: the sentinels name none")
		return nil
	}
	master.Kill()
	s.DownAfter(500 * time.Millisecond)
	return master
}

// DownAfter sets after how much silence the sentinels take a server for dead.
func (s *Sentinel) DownAfter(silence time.Duration) {
	s.t.Helper()
	for _, sentinel := range s.Sentinels {
		client := sentinelClient(sentinel)
		err := client.Set(s.t.Context(), masterName, "down-after-milliseconds", strconv.FormatInt(silence.Milliseconds(), 10)).Err()
		_ = client.Close()
		if err != nil {
			s.t.Errorf("tell sentinel %s when a server is down: %v", sentinel.Addr(), err)
		}
	}
}

func sentinelClient(s *Server) *redis.SentinelClient {
	return redis.NewSentinelClient(optionsFor(s))
}
