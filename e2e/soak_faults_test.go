//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// up starts a node on its host, or behind its proxies.
func (s *soak) up(name string) {
	s.f.t.Helper()
	if s.hosts != nil {
		s.f.up(name, func(set *settings) {
			address := s.hosts.address(name)
			set.Redis = s.redis.url(s.hosts.redis())
			set.Bind, set.HTTP, set.Insecure = address+":0", address+":0", true
		})
		return
	}
	if s.links[name] == nil {
		s.links[name] = redistest.NewProxy(s.f.t, s.redis.servers[0].Addr())
	}
	s.f.up(name, func(set *settings) { set.Redis = s.links[name].URL() })
}

func (s *soak) upAll(names ...string) {
	s.f.t.Helper()
	for _, name := range names {
		s.up(name)
	}
}

// between draws a duration.
func (s *soak) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.dice.Int64N(int64(most-least)))
}

// some draws n of the nodes that run, one at least is left out.
func (s *soak) some(n int) []string {
	all := s.f.list()
	s.dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:max(0, min(n, len(all)-1))]
}

func (s *soak) one() string { return s.f.list()[s.dice.IntN(len(s.f.nodes))] }

// missing are the nodes that do not run and should.
func (s *soak) missing() (down []string) {
	for _, name := range names(soakNodes) {
		if s.f.nodes[name] == nil {
			down = append(down, name)
		}
	}
	return down
}

func (s *soak) kills() string {
	killed := s.some(1 + s.dice.IntN(soakNodes-1))
	if s.dice.IntN(6) == 0 {
		killed = s.f.list()
	}
	s.f.crash(killed...)
	if s.dice.IntN(2) == 0 && len(s.f.nodes) > 0 {
		s.f.balanced(2 * patience) // the others take over before they are back
	}
	return "kill -9 of " + strings.Join(killed, " ")
}

// losesPower: processes that exist and of which nothing comes any more.
func (s *soak) losesPower() string {
	lost := s.some(1 + s.dice.IntN(2))
	frozen := judge.Now()
	for _, name := range lost {
		p := s.f.nodes[name]
		p.mortal.Store(true)
		p.signal(syscall.SIGSTOP)
		s.f.await(name+" is frozen", patience, func() bool { return state(p) == "T" })
	}
	gone := make([]*process, 0, len(lost))
	for _, name := range lost {
		gone = append(gone, s.f.nodes[name])
		delete(s.f.nodes, name)
	}
	if len(s.f.nodes) > 0 {
		s.f.balanced(2 * patience)
	}
	for _, p := range gone {
		p.signal(syscall.SIGKILL)
		<-p.ended
		s.f.died(p, frozen)
	}
	return "no power for " + strings.Join(lost, " ")
}

// freezes is shorter than a lease has left at the least.
func (s *soak) freezes() string {
	name, long := s.one(), s.between(50*time.Millisecond, s.ttl/3)
	p := s.f.nodes[name]
	p.signal(syscall.SIGSTOP)
	<-time.After(long)
	p.signal(syscall.SIGCONT)
	return fmt.Sprintf("freeze of %s for %s", name, long.Round(time.Millisecond))
}

// crashLoop: a node that is started again each time it has died.
func (s *soak) crashLoop() string {
	name, lives := s.one(), 2+s.dice.IntN(4)
	s.f.crash(name)
	for range lives {
		s.up(name)
		<-time.After(s.between(100*time.Millisecond, s.ttl))
		s.f.crash(name)
	}
	s.faults["crash loop"] += lives // each death is a fault, the first included in the draw
	return fmt.Sprintf("%s died %d times soon after its start", name, lives)
}

func (s *soak) leaves() string {
	name := s.one()
	s.f.leave(name)
	return "SIGTERM of " + name
}

func (s *soak) rolls() string {
	for _, name := range s.f.list() {
		s.f.leave(name)
		s.up(name)
		s.f.ready(name)
	}
	return "rolling restart"
}

// forAWhile lets something be for a time that is drawn, at most as long as it says.
func (s *soak) forAWhile(atMost time.Duration, begin, end func()) time.Duration {
	long := s.between(0, atMost)
	begin()
	<-time.After(long)
	end()
	return long.Round(time.Millisecond)
}

// holds keeps ids from handlers for a while.
func (s *soak) holds() string {
	hold := rules.Hold{Prefix: heldPrefixes[s.dice.IntN(len(heldPrefixes))]}
	s.changeRules(func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
		value, _, err := rules.WithHold(in, hold, now)
		return map[string]json.RawMessage{"holds": value}, nil, err
	})
	from := judge.Now()
	<-time.After(s.between(s.ttl, 3*s.ttl))
	to, ids := judge.Now(), s.f.stats().Jobs.Held
	s.changeRules(func(map[string]rules.Setting, time.Time) (map[string]json.RawMessage, []string, error) {
		return nil, []string{"holds"}, nil
	})
	s.promised.held(hold.Prefix, from, to)
	return fmt.Sprintf("%s* held for %s, %d ids", hold.Prefix, (to - from).Round(time.Millisecond), ids)
}

// limits puts another limit in force.
func (s *soak) limits() string {
	limit := rules.Limit{Concurrency: 4 + s.dice.IntN(6), Rate: rules.Rate{N: 120 + s.dice.IntN(200), Per: time.Second}, Burst: 1 + s.dice.IntN(30)}
	text := fmt.Appendf(nil, `{"concurrency":%d,"rate":"%v","burst":%d}`, limit.Concurrency, limit.Rate, limit.Burst)
	from := judge.Now()
	s.changeRules(func(map[string]rules.Setting, time.Time) (map[string]json.RawMessage, []string, error) {
		return map[string]json.RawMessage{"limit": text}, nil, nil
	})
	s.promised.changed(limit, from, judge.Now())
	return "limit " + string(text)
}

// watches listens for a while to what happens.
func (s *soak) watches() string {
	heard := 0
	ctx, stop := context.WithTimeout(s.f.t.Context(), s.between(0, 2*s.ttl))
	defer stop()
	for range events.Listen(ctx, s.f.client.DB(), events.Filter{}) {
		heard++
	}
	return fmt.Sprintf("%d events heard", heard)
}

// changeRules changes rules of the queue at run time, however often Redis does not answer.
func (s *soak) changeRules(edit func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error)) {
	s.f.t.Helper()
	s.f.await("rules are changed", patience, func() bool {
		_, err := rules.In(s.f.client.DB()).Change(s.f.t.Context(), queueName, rules.Change{If: -1, Edit: edit})
		return err == nil
	})
}

// grows lets one more node come and go.
func (s *soak) grows() string {
	const name = "guest"
	s.up(name)
	s.f.lease(name) // from then on it knows what SIGTERM means
	if s.dice.IntN(2) == 0 {
		s.f.ready(name)
	}
	s.f.leave(name)
	return name + " came and went"
}

// cut parts a node from Redis, connections that are there included.
func (s *soak) cut(name string) {
	s.f.t.Helper()
	if s.hosts != nil {
		s.blocks(name, "OUTPUT")
		s.blocks(name, "INPUT")
		return
	}
	s.links[name].Refuse(true)
	s.links[name].DropAll()
}

// heal ends what was done to a node's network.
func (s *soak) heal(name string) {
	s.f.t.Helper()
	if s.hosts != nil {
		s.hosts.heal(name)
		return
	}
	s.links[name].Refuse(false)
}

func (s *soak) cutFromRedis() string {
	cut := s.some(1 + s.dice.IntN(2))
	long := s.forAWhile(3*s.ttl, func() { each(cut, s.cut) }, func() { each(cut, s.heal) })
	return fmt.Sprintf("%s cut from Redis for %s", strings.Join(cut, " "), long)
}

// flaps: the link to Redis is down and up again, several times.
func (s *soak) flaps() string {
	name, times := s.one(), 2+s.dice.IntN(4)
	for range times {
		s.forAWhile(s.ttl*2/3, func() { s.cut(name) }, func() { s.heal(name) })
		<-time.After(s.between(0, s.ttl/2))
	}
	s.faults["link to Redis flaps"] += times - 1 // each time is a fault
	return fmt.Sprintf("link of %s to Redis down %d times", name, times)
}

// cutFromNodes: the others are out of reach, Redis is not.
func (s *soak) cutFromNodes() string {
	name := s.one()
	long := s.forAWhile(3*s.ttl, func() { s.part([]string{name}) }, func() { each(s.f.list(), s.heal) })
	return fmt.Sprintf("%s cut from the other nodes for %s", name, long)
}

// parts: two halves that see Redis and not each other.
func (s *soak) parts() string {
	half := s.some(1 + s.dice.IntN(soakNodes/2))
	long := s.forAWhile(3*s.ttl, func() { s.part(half) }, func() { each(s.f.list(), s.heal) })
	return fmt.Sprintf("%s parted from the rest for %s", strings.Join(half, " "), long)
}

// part lets nothing pass between some nodes and the rest.
func (s *soak) part(some []string) {
	s.f.t.Helper()
	for _, name := range some {
		for _, other := range s.f.list() {
			if !slices.Contains(some, other) {
				s.hosts.rule(name, "INPUT", "-s", s.hosts.address(other), "-j", "DROP")
				s.hosts.rule(name, "OUTPUT", "-d", s.hosts.address(other), "-j", "DROP")
			}
		}
	}
}

// oneWayRedis: requests are lost, or answers are.
func (s *soak) oneWayRedis() string {
	name := s.one()
	how, chain := "requests of %s to Redis lost for %s", "OUTPUT"
	if s.dice.IntN(2) == 0 {
		how, chain = "answers of Redis to %s lost for %s", "INPUT"
	}
	long := s.forAWhile(3*s.ttl, func() { s.blocks(name, chain) }, func() { s.heal(name) })
	return fmt.Sprintf(how, name, long)
}

// oneWayNode: nothing of one node reaches another, whose packets reach the first one.
func (s *soak) oneWayNode() string {
	pair := s.pair()
	if pair == nil {
		return s.kills()
	}
	begin := func() { s.hosts.rule(pair[1], "INPUT", "-s", s.hosts.address(pair[0]), "-j", "DROP") }
	long := s.forAWhile(3*s.ttl, begin, func() { s.heal(pair[1]) })
	return fmt.Sprintf("what %s sends to %s lost for %s", pair[0], pair[1], long)
}

// pair draws two nodes, nil if there is one only.
func (s *soak) pair() []string {
	if pair := s.some(2); len(pair) == 2 {
		return pair
	}
	return nil
}

// blocksPort: two nodes do not reach each other's Raft; gossip passes.
func (s *soak) blocksPort() string {
	pair := s.pair()
	if pair == nil {
		return s.kills()
	}
	verdicts := [][]string{{"-j", "DROP"}, {"-j", "REJECT", "--reject-with", "tcp-reset"}}
	begin := func() {
		for i, name := range pair {
			_, gossip, _ := strings.Cut(s.f.lease(name).Gossip, ":")
			port, err := strconv.Atoi(gossip)
			if err != nil {
				s.f.t.Fatalf("gossip of %s: %v", name, err)
			}
			s.hosts.rule(name, "INPUT", append([]string{"-s", s.hosts.address(pair[1-i]), "-p", "tcp", "--dport", strconv.Itoa(port + 1)},
				verdicts[s.dice.IntN(2)]...)...)
		}
	}
	long := s.forAWhile(4*s.ttl, begin, func() { each(pair, s.heal) })
	return fmt.Sprintf("port of Raft blocked between %s and %s for %s", pair[0], pair[1], long)
}

// losesPackets: some of all that a node gets and sends.
func (s *soak) losesPackets() string {
	name, share := s.one(), strconv.FormatFloat(0.02+0.3*s.dice.Float64(), 'f', 2, 64)
	begin := func() {
		for chain, device := range map[string]string{"INPUT": "-i", "OUTPUT": "-o"} {
			s.hosts.rule(name, chain, device, "eth0", "-m", "statistic", "--mode", "random", "--probability", share, "-j", "DROP")
		}
	}
	long := s.forAWhile(4*s.ttl, begin, func() { s.heal(name) })
	return fmt.Sprintf("%s of the packets of %s lost for %s", share, name, long)
}

func each(names []string, do func(string)) {
	for _, name := range names {
		do(name)
	}
}

// reshards begins to reshard a queue. The next faults meet the reshard under way.
func (s *soak) reshards() string {
	queue, shards := fleetQueues[s.dice.IntN(len(fleetQueues))], []int{6, 12, 18, 24}[s.dice.IntN(4)]
	if !s.f.askReshard(s.one(), queue, shards, nil) {
		return "a reshard of " + queue + " that was refused"
	}
	return fmt.Sprintf("reshard of %s to %d", queue, shards)
}
