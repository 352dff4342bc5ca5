//go:build linux

package e2e

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// How long work stands still when something fails: the figures of docs/operations.md.
// Times are measurements, not assertions.

const (
	defaultTTL = 6 * time.Second
	aftermath  = 5 * time.Second // for which nodes are watched after a fault
)

// BenchmarkClusterRestart kills processes and starts them again on the same host, with no node left to take their
// shards. Times count from the start.
func BenchmarkClusterRestart(b *testing.B) {
	for name, n := range map[string]int{"one": 1, "five": 5} {
		b.Run(name, func(b *testing.B) {
			scenario(b, func(t *testing.T) {
				f := fleetOf(newRig(t, benchShards), settings{TTL: defaultTTL, MaxCrashes: -1})
				f.upAll(names(n)...)
				f.balanced(patience)
				f.crash(names(n)...)
				began := judge.Now()
				f.upAll(names(n)...)
				f.spreadSince(began)
				took := f.balanced(patience) - began
				f.finish(judge.Config{MaxDuplicates: -1})
				b.ReportMetric(took.Seconds(), "s_to_last_shard")
				b.ReportMetric(0, "ns/op")
			})
		})
	}
}

// spreadSince waits until every shard was claimed after a moment.
func (f *fleet) spreadSince(at time.Duration) {
	f.t.Helper()
	f.await("every shard is claimed anew", patience, func() bool {
		f.watch.mu.Lock()
		defer f.watch.mu.Unlock()
		return !slices.ContainsFunc(f.watch.now, func(h holding) bool { return h.since < at })
	})
}

// BenchmarkClusterCutOff cuts a worker of five off from the other nodes, but not from Redis, for four ttls.
func BenchmarkClusterCutOff(b *testing.B) {
	scenario(b, func(t *testing.T) {
		f := fleetOf(newRig(t, benchShards), settings{TTL: defaultTTL})
		d := newRelays(t)
		for i := range 5 {
			d.up(f, i+1)
		}
		f.balanced(patience)
		_, _, workers := f.parts()
		began := judge.Now()
		f.cutsOff(d, workers[0], 4*defaultTTL, func() {})
		b.ReportMetric(f.standstill(began, workers[0]).Seconds(), "s_standstill")
		b.ReportMetric(float64(len(f.watch.since(began))), "moves")
		b.ReportMetric(0, "ns/op")
		f.finish(judge.Config{})
	})
}

// BenchmarkClusterFreeze stops a worker of five, and continues it.
func BenchmarkClusterFreeze(b *testing.B) {
	for _, frozen := range []time.Duration{3 * time.Second, 4 * time.Second, 15 * time.Second} {
		b.Run(frozen.String(), func(b *testing.B) {
			scenario(b, func(t *testing.T) {
				f := fleetOf(newRig(t, benchShards), settings{TTL: defaultTTL})
				f.upAll(names(5)...)
				f.balanced(patience)
				_, _, workers := f.parts()
				name, was := workers[0], f.instance(workers[0])
				began := f.stop(name)
				<-time.After(frozen)
				thawed := judge.Now()
				f.nodes[name].signal(syscall.SIGCONT)
				<-time.After(aftermath)
				back := f.balanced(patience) - thawed
				moves := f.watch.since(began)
				for _, m := range moves {
					if m.from == name {
						b.ReportMetric((m.at - began).Seconds(), "s_to_last_shard_elsewhere")
						b.ReportMetric(back.Seconds(), "s_back")
					}
				}
				b.ReportMetric(f.standstill(began, name).Seconds(), "s_standstill")
				b.ReportMetric(float64(f.instance(name).N-was.N), "leases_lost")
				b.ReportMetric(float64(len(moves)), "moves")
				b.ReportMetric(0, "ns/op")
			})
		})
	}
}

// BenchmarkClusterRedisRestart stops Redis and starts it again on its files, at once or after a while.
func BenchmarkClusterRedisRestart(b *testing.B) {
	for _, away := range []time.Duration{0, 10 * time.Second} {
		b.Run("away="+away.String(), func(b *testing.B) {
			scenario(b, func(t *testing.T) {
				f := fleetOf(newRig(t, benchShards, "--appendonly", "yes"), settings{TTL: defaultTTL})
				f.upAll(names(5)...)
				f.balanced(patience)
				began := judge.Now()
				f.redis.Stop()
				<-time.After(away)
				f.redis.Restart()
				absence := judge.Now() - began
				<-time.After(aftermath)
				f.balanced(patience)
				b.ReportMetric(absence.Seconds(), "s_away")
				b.ReportMetric(f.standstill(began, f.list()...).Seconds(), "s_standstill")
				b.ReportMetric(float64(len(f.watch.since(began))), "moves")
				b.ReportMetric(0, "ns/op")
			})
		})
	}
}

// BenchmarkClusterSentinel kills the master. Three sentinels call it down after 0.5 s.
func BenchmarkClusterSentinel(b *testing.B) {
	scenario(b, func(t *testing.T) {
		s := redistest.StartSentinel(t)
		f := fleetOf(rigAt(t, benchShards, s.URL()), settings{TTL: defaultTTL})
		f.upAll(names(5)...)
		f.balanced(patience)
		began := judge.Now()
		old := s.KillMaster()
		f.await("the replica is the master", patience, func() bool { now := s.Master(); return now != nil && now != old })
		elected := judge.Now() - began
		<-time.After(aftermath)
		f.balanced(patience)
		b.ReportMetric(elected.Seconds(), "s_election")
		b.ReportMetric(f.standstill(began, f.list()...).Seconds(), "s_standstill")
		b.ReportMetric(float64(len(f.watch.since(began))), "moves")
		b.ReportMetric(0, "ns/op")
	})
}

// standstill is the longest time between two handler calls of one node that ended after a
// moment. The flow keeps every node busy; without a fault it is about 0.1 s.
func (f *fleet) standstill(after time.Duration, nodes ...string) (longest time.Duration) {
	f.t.Helper()
	starts := f.starts()
	for _, name := range nodes {
		list := starts[f.nodes[name].pid()]
		slices.Sort(list)
		if len(list) == 0 || list[len(list)-1] < after {
			f.t.Errorf("%s handled nothing any more", name)
			continue
		}
		last := after
		for _, at := range list {
			if at > after {
				longest = max(longest, at-last)
			}
			last = at
		}
	}
	return longest
}

// starts are the beginnings of handler calls in the history, by the pid of their process.
func (f *fleet) starts() map[int][]time.Duration {
	f.t.Helper()
	file, err := os.Open(f.history)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	starts := map[int][]time.Duration{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		word := strings.Fields(lines.Text())
		if len(word) < 3 || word[0] != "start" {
			continue
		}
		at, _ := strconv.ParseInt(word[1], 10, 64)
		pid, _ := strconv.Atoi(strings.Trim(word[2], `"`))
		starts[pid] = append(starts[pid], time.Duration(at))
	}
	if err := lines.Err(); err != nil {
		f.t.Fatal(err)
	}
	return starts
}
