//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// TestSoak lets faults of all kinds, drawn at random, meet a cluster under load for as long
// as LOWKIQ_SOAK says; "make soak" sets it. LOWKIQ_SOAK_SEED repeats the draws of a run.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("LOWKIQ_SOAK"))
	if err != nil {
		t.Skip("SKIPPED: the soak takes as long as LOWKIQ_SOAK says, 30m for example: make soak")
	}
	s := newSoak(t)
	for began := time.Now(); time.Since(began) < length; {
		s.strike(began)
	}
	s.f.finish(history.Config{MaxDuplicates: -1, MaxUncaused: -1})
}

// soak is a fleet that faults are drawn for.
type soak struct {
	f     *fleet
	clock *redistest.Clock
	off   time.Duration // of the clock
	dice  *rand.Rand
	count int // faults so far
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LOWKIQ_SOAK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("LOWKIQ_SOAK_SEED: %v", err)
		}
	}
	t.Logf("LOWKIQ_SOAK_SEED=%d", seed)
	server, clock := redistest.StartClocked(t, "--appendonly", "yes", "--appendfsync", "everysec")
	r := rigAt(t, fleetShards, server.URL())
	r.redis = server
	s := &soak{f: fleetOf(r, settings{MaxCrashes: -1}), clock: clock, dice: rand.New(rand.NewPCG(seed, 0))}
	s.f.upAll(names(5)...)
	s.f.balanced(patience)
	return s
}

// strike lets one fault happen, or two at once, and waits until all is well again.
func (s *soak) strike(since time.Time) {
	s.f.t.Helper()
	faults := []func() string{
		s.kills, s.kills, s.losesPower, s.freezes, s.leaves, s.rolls, s.redisRestarts, s.redisFreezes,
		s.clockJumps, s.forgetsScripts, s.grows,
	}
	var struck []string
	for range 1 + s.dice.IntN(2) {
		if len(s.f.nodes) == 0 { // the fault before left nobody
			s.f.upAll(names(5)...)
			s.f.balanced(patience)
		}
		struck = append(struck, faults[s.dice.IntN(len(faults))]())
	}
	hit := history.Now()
	s.f.upAll(s.missing()...)
	s.f.balanced(2 * patience)
	s.f.goesOn()
	s.f.flow.failed.Store(0) // Redis was away, perhaps
	s.count++
	s.f.t.Logf("%6s  %s: all well after %s", time.Since(since).Round(time.Second), strings.Join(struck, ", then "), (history.Now() - hit).Round(10*time.Millisecond))
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

// missing are the five that do not run.
func (s *soak) missing() (down []string) {
	for _, name := range names(5) {
		if s.f.nodes[name] == nil {
			down = append(down, name)
		}
	}
	return down
}

func (s *soak) kills() string {
	killed := s.some(1 + s.dice.IntN(4))
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
	frozen := history.Now()
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
	name, long := s.one(), s.between(50*time.Millisecond, ttl/3)
	p := s.f.nodes[name]
	p.signal(syscall.SIGSTOP)
	<-time.After(long)
	p.signal(syscall.SIGCONT)
	return fmt.Sprintf("freeze of %s for %s", name, long.Round(time.Millisecond))
}

func (s *soak) leaves() string {
	name := s.one()
	s.f.leave(name)
	return "SIGTERM of " + name
}

func (s *soak) rolls() string {
	for _, name := range s.f.list() {
		s.f.leave(name)
		s.f.up(name)
		s.f.ready(name)
	}
	return "rolling restart"
}

func (s *soak) redisRestarts() string {
	return s.redisIs("away", 3*ttl, s.f.redis.Stop, s.f.redis.Restart)
}

func (s *soak) redisFreezes() string {
	return s.redisIs("frozen", 2*ttl, s.f.redis.Pause, s.f.redis.Resume)
}

func (s *soak) redisIs(how string, atMost time.Duration, begin, end func()) string {
	long := s.between(0, atMost)
	begin()
	<-time.After(long)
	end()
	return fmt.Sprintf("Redis %s for %s", how, long.Round(time.Millisecond))
}

// clockJumps sets Redis's clock on: set back, jobs that were parked would wait as long.
func (s *soak) clockJumps() string {
	by := s.between(0, 4*ttl)
	s.off += by
	s.clock.Set(s.off)
	return fmt.Sprintf("clock of Redis on by %s", by.Round(time.Millisecond))
}

func (s *soak) forgetsScripts() string {
	if err := s.f.admin().ScriptFlush(s.f.t.Context()).Err(); err != nil {
		s.f.t.Fatal(err)
	}
	return "SCRIPT FLUSH"
}

// grows lets a sixth node come and go.
func (s *soak) grows() string {
	s.f.up("n6")
	s.f.lease("n6") // from then on it knows what SIGTERM means
	if s.dice.IntN(2) == 0 {
		s.f.ready("n6")
	}
	s.f.leave("n6")
	return "n6 came and went"
}
