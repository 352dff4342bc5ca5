//go:build linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	soakShards = 12 // of each queue
	soakNodes  = 4
)

// TestSoak lets faults of all kinds, drawn at random, meet clusters under load for as long
// as LOWKIQ_SOAK says; "make soak" sets it. LOWKIQ_SOAK_CLUSTERS of them run side by side
// (1; -parallel must allow as many), with leases of LOWKIQ_SOAK_TTL (the least).
// LOWKIQ_SOAK_SEED repeats the draws of a run. Root's soak has a network namespace for each
// node; another's, and one with LOWKIQ_SOAK_NET=0, has proxies, which know fewer faults.
// LOWKIQ_SOAK_REDIS=cluster has each cluster of nodes on a Redis Cluster.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("LOWKIQ_SOAK"))
	if err != nil {
		t.Skip("SKIPPED: the soak takes as long as LOWKIQ_SOAK says, 30m for example: make soak")
	}
	if inOwnNetwork(t) {
		return
	}
	seed := uint64(fromEnv(t, "LOWKIQ_SOAK_SEED", int(time.Now().UnixNano()), strconv.Atoi))
	lease := fromEnv(t, "LOWKIQ_SOAK_TTL", ttl, time.ParseDuration)
	t.Logf("LOWKIQ_SOAK_SEED=%d", seed)
	redis.SetLogger(silence{}) // the test's own client says each second that Redis is away
	var sum soakSum
	t.Run("clusters", func(t *testing.T) {
		for i := range fromEnv(t, "LOWKIQ_SOAK_CLUSTERS", 1, strconv.Atoi) {
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				s := newSoak(t, i+1, lease, seed)
				defer func() { sum.add(s) }()
				s.run(length)
			})
		}
	})
	t.Log(sum.words())
	if sum.total() >= 100 && (sum.verdict.Replaced == 0 || sum.expired == 0) {
		t.Error("no push has taken the place of another, or nothing has expired: the soak shows little")
	}
}

// silence is a log of go-redis that is dropped.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// fromEnv reads a setting of the soak.
func fromEnv[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// soak is a fleet that faults are drawn for.
type soak struct {
	f     *fleet
	ttl   time.Duration
	redis *soakRedis
	dice  *rand.Rand
	hosts *hosts                      // of the nodes; nil: links instead
	links map[string]*redistest.Proxy // between a node and Redis, without hosts

	promised promised
	expired  int            // payloads
	faults   map[string]int // by kind
	slowest  time.Duration  // from the end of a fault to every shard being served where it should be
	slowOf   string
	verdict  judge.Verdict
}

func newSoak(t *testing.T, number int, lease time.Duration, seed uint64) *soak {
	t.Helper()
	s := &soak{
		ttl: lease, dice: rand.New(rand.NewPCG(seed, uint64(number))), hosts: newHosts(t, number), faults: map[string]int{}, promised: promised{ttl: lease},
	}
	s.redis = startSoakRedis(t, s.hosts)
	r := rigAt(t, soakShards, s.redis.url("127.0.0.1"))
	if err := r.client.SetRules(latestQueue, protocol.PushRules{Push: latestRules}); err != nil {
		t.Fatal(err)
	}
	if s.hosts != nil {
		r.on = s.hosts.on
	} else {
		s.links = map[string]*redistest.Proxy{}
	}
	queues := slices.Concat(fleetQueues, []string{latestQueue, expiringQueue})
	s.promised.begin(queues)
	s.f = fleetOf(r, settings{MaxCrashes: -1, TTL: lease, Held: true, Limit: heldLimit, Queues: queues})
	s.upAll(names(soakNodes)...)
	s.f.balanced(patience)
	return s
}

// run strikes until it is time, and judges.
func (s *soak) run(length time.Duration) {
	s.f.t.Helper()
	stop := s.f.background(s.flowOfRules)
	for began := time.Now(); time.Since(began) < length; {
		s.strike(began)
	}
	stop()
	s.f.done()
	s.excuseExpired()
	s.verdict = s.f.finish(s.promised.config())
}

// strike lets one to three faults happen, and waits until all is well again.
func (s *soak) strike(since time.Time) {
	s.f.t.Helper()
	kinds := s.kinds()
	var struck []string
	for range 1 + s.dice.IntN(3) {
		if len(s.f.nodes) == 0 { // the fault before left none
			s.upAll(names(soakNodes)...)
			s.f.balanced(patience)
		}
		kind := kinds[s.dice.IntN(len(kinds))]
		struck = append(struck, kind.fault())
		s.faults[kind.name]++
	}
	hit := judge.Now()
	s.upAll(s.missing()...)
	s.f.resharded()
	s.f.balanced(2 * patience)
	s.f.goesOn()
	s.f.flow.failed.Store(0) // Redis was away, perhaps
	took, what := (judge.Now() - hit).Round(10*time.Millisecond), strings.Join(struck, ", then ")
	if took > s.slowest {
		s.slowest, s.slowOf = took, what
	}
	s.f.t.Logf("%6s  %s: all well after %s", time.Since(since).Round(time.Second), what, took)
}

// kind is a kind of faults. fault lets one happen and returns what it was.
type kind struct {
	name  string
	fault func() string
}

func (s *soak) kinds() []kind {
	kinds := []kind{
		{"kill -9", s.kills}, {"power lost", s.losesPower}, {"freeze", s.freezes}, {"crash loop", s.crashLoop},
		{"SIGTERM", s.leaves}, {"rolling restart", s.rolls}, {"join and leave", s.grows},
		{"Redis restarted", s.redisRestarts}, {"Redis frozen", s.redisFreezes}, {"clock jump", s.clockJumps},
		{"scripts flushed", s.forgetsScripts}, {"ids held", s.holds}, {"limit changed", s.limits}, {"somebody watches", s.watches},
		{"cut from Redis", s.cutFromRedis}, {"link to Redis flaps", s.flaps}, {"reshard", s.reshards},
	}
	if s.hosts != nil {
		kinds = append(kinds, kind{"cut from the others", s.cutFromNodes}, kind{"one way to Redis cut", s.oneWayRedis},
			kind{"one way to a node cut", s.oneWayNode},
			kind{"port blocked", s.blocksPort}, kind{"packets lost", s.losesPackets}, kind{"parted in two", s.parts})
	}
	if s.redis.cluster != nil {
		kinds = append(kinds, kind{"slot moved", s.movesSlot})
	}
	return kinds
}

// soakSum adds up the clusters of a soak.
type soakSum struct {
	mu      sync.Mutex
	faults  map[string]int
	verdict judge.Verdict // its counts are sums
	expired int
	slowest time.Duration
	slowOf  string
	good    int // clusters with a verdict that is good
	all     int
}

func (sum *soakSum) add(s *soak) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	if sum.faults == nil {
		sum.faults = map[string]int{}
	}
	for name, n := range s.faults {
		sum.faults[name] += n
	}
	v := &sum.verdict
	v.Lost += s.verdict.Lost
	v.Overlaps += s.verdict.Overlaps
	v.Misordered += s.verdict.Misordered
	v.Duplicates += s.verdict.Duplicates
	v.Distinct += s.verdict.Distinct
	v.Calls += s.verdict.Calls
	v.Replaced += s.verdict.Replaced
	sum.expired += s.expired
	if s.slowest > sum.slowest {
		sum.slowest, sum.slowOf = s.slowest, s.slowOf
	}
	sum.all++
	if s.verdict.OK() {
		sum.good++
	}
}

func (sum *soakSum) total() (faults int) {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	for _, n := range sum.faults {
		faults += n
	}
	return faults
}

func (sum *soakSum) words() string {
	total := sum.total()
	sum.mu.Lock()
	defer sum.mu.Unlock()
	var kinds []string
	for _, name := range slices.Sorted(maps.Keys(sum.faults)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", name, sum.faults[name]))
	}
	v := sum.verdict
	return fmt.Sprintf("soak: %d faults in %d clusters (%s)\n"+
		"soak: %d payloads handled in %d calls: %d lost, %d overlapping, %d out of order, %d handled twice, %d replaced, %d expired\n"+
		"soak: slowest convergence %s, after: %s\nsoak: verdict good in %d of %d clusters",
		total, sum.all, strings.Join(kinds, ", "), v.Distinct, v.Calls, v.Lost, v.Overlaps, v.Misordered, v.Duplicates, v.Replaced, sum.expired,
		sum.slowest, cmp.Or(sum.slowOf, "nothing"), sum.good, sum.all)
}
