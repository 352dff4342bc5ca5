//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// soakRedisEnv says what the Redis of a soak is: "" one server, "cluster" a Redis Cluster of three masters.
const soakRedisEnv = "LOWKIQ_SOAK_REDIS"

// soakRedis is the Redis of a soak.
type soakRedis struct {
	servers []*redistest.Server
	cluster *redistest.Cluster // nil: one server
	clocks  []*redistest.Clock // of each server
	off     []time.Duration    // of each clock
}

// startSoakRedis starts it on the host that the nodes reach it by, if they have hosts of their own. Otherwise a cluster's
// masters would be reached past the proxies of the nodes, so there is none.
func startSoakRedis(t *testing.T, nodes *hosts) *soakRedis {
	t.Helper()
	args := slices.Clone(redistest.Durable)
	if nodes != nil {
		args = append(args, "--bind", "127.0.0.1", nodes.redis(), "--protected-mode", "no")
	}
	r := &soakRedis{}
	switch kind := os.Getenv(soakRedisEnv); {
	case kind == "":
		server, clock := redistest.StartClocked(t, args...)
		r.servers, r.clocks = []*redistest.Server{server}, []*redistest.Clock{clock}
	case kind == "cluster" && nodes != nil:
		r.cluster, r.clocks = redistest.StartClusterClocked(t, 3, append(args, "--cluster-announce-ip", nodes.redis())...)
		r.servers = r.cluster.Masters
	default:
		t.Fatalf("%s=%s: want nothing, or cluster, which needs a network namespace for each node", soakRedisEnv, kind)
	}
	r.off = make([]time.Duration, len(r.servers))
	return r
}

// url is that for who reaches Redis by a host's address.
func (r *soakRedis) url(host string) string {
	var addrs []string
	for _, port := range r.ports() {
		addrs = append(addrs, host+":"+port)
	}
	if r.cluster != nil {
		return "redis+cluster://" + strings.Join(addrs, ",")
	}
	return "redis://" + addrs[0] + "/0"
}

func (r *soakRedis) ports() (ports []string) {
	for _, s := range r.servers {
		_, port, _ := strings.Cut(s.Addr(), ":")
		ports = append(ports, port)
	}
	return ports
}

// some draws the servers that a fault is of: all of them, or one.
func (r *soakRedis) some(dice *rand.Rand) (numbers []int, words string) {
	if len(r.servers) == 1 {
		return []int{0}, "Redis"
	}
	if dice.IntN(2) == 0 {
		one := dice.IntN(len(r.servers))
		return []int{one}, fmt.Sprint("master ", one)
	}
	for i := range r.servers {
		numbers = append(numbers, i)
	}
	return numbers, "all of Redis"
}

func (s *soak) redisRestarts() string {
	return s.redisIs("away", 3*s.ttl, (*redistest.Server).Stop, (*redistest.Server).Restart)
}

func (s *soak) redisFreezes() string {
	return s.redisIs("frozen", 2*s.ttl, (*redistest.Server).Pause, (*redistest.Server).Resume)
}

func (s *soak) redisIs(how string, atMost time.Duration, begin, end func(*redistest.Server)) string {
	numbers, who := s.redis.some(s.dice)
	all := func(do func(*redistest.Server)) func() {
		return func() {
			for _, i := range numbers {
				do(s.redis.servers[i])
			}
		}
	}
	long := s.forAWhile(atMost, all(begin), all(end))
	if s.redis.cluster != nil { // its masters are back before they serve, and a node that starts then ends
		s.f.await("Redis Cluster serves again", patience, func() bool { return s.redis.cluster.Ready(s.f.t.Context()) })
	}
	return fmt.Sprintf("%s %s for %s", who, how, long)
}

// clockJumps sets Redis's clock on: set back, jobs that were parked would wait as long.
func (s *soak) clockJumps() string {
	numbers, who := s.redis.some(s.dice)
	by := s.between(0, 4*s.ttl)
	from := judge.Now()
	for _, i := range numbers {
		s.redis.off[i] += by
		s.redis.clocks[i].Set(s.redis.off[i])
	}
	s.promised.jumped(s.f.settings.Queues, from, judge.Now())
	return fmt.Sprintf("clock of %s on by %s", who, by.Round(time.Millisecond))
}

func (s *soak) forgetsScripts() string {
	for _, server := range s.redis.servers {
		if err := s.f.adminOf(server).ScriptFlush(s.f.t.Context()).Err(); err != nil {
			s.f.t.Fatal(err)
		}
	}
	return "SCRIPT FLUSH"
}

// movesSlot gives a shard's slot to another master, key by key while jobs go on.
func (s *soak) movesSlot() string {
	q := s.f.queues[s.dice.IntN(len(s.f.queues))]
	shard := q.Shard(s.dice.IntN(q.Shards))
	slot := s.redis.cluster.SlotOf(shard.Keys().Claim)
	from := s.redis.cluster.OwnerOf(slot)
	to := (from + 1 + s.dice.IntN(len(s.redis.servers)-1)) % len(s.redis.servers)
	move := s.redis.cluster.BeginMove(slot, from, to)
	for move.Step(1 + s.dice.IntN(3)) {
		<-time.After(s.between(0, s.ttl/30))
	}
	move.Finish()
	return fmt.Sprintf("slot of %s moved from master %d to %d", shard.Shard, from, to)
}

// blocks has a host lose what it sends to Redis ("OUTPUT"), or what it gets from there ("INPUT").
func (s *soak) blocks(node, chain string) {
	s.f.t.Helper()
	towards, ports := "-d", "--dports"
	if chain == "INPUT" {
		towards, ports = "-s", "--sports"
	}
	s.hosts.rule(node, chain, towards, s.hosts.redis(), "-p", "tcp", "-m", "multiport", ports, strings.Join(s.redis.ports(), ","), "-j", "DROP")
}
