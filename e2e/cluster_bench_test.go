//go:build linux

package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// How fast a cluster follows its nodes. Times are measurements, not assertions: the
// machine decides. They are meant for -benchtime 1x.

// benchShards are those of each queue.
const benchShards = 40

// scenario runs f b.N times as a test: a fleet needs one, and ends with it. The metrics
// are of the last run.
func scenario(b *testing.B, f func(t *testing.T)) {
	b.Helper()
	always := func(string, string) (bool, error) { return true, nil } // whatever -run says
	for range b.N {
		if !testing.RunTests(always, []testing.InternalTest{{Name: b.Name(), F: f}}) {
			b.Fatal("the scenario failed")
		}
	}
}

// BenchmarkClusterKill kills a worker of five nodes. In "killed" it gets SIGKILL beside witnesses on the same host. In
// "silent" it gets SIGSTOP, which looks like a lost host. If it was the leader, its shards wait for the plan of a new
// leader.
func BenchmarkClusterKill(b *testing.B) {
	worker := func(f *fleet) []string { _, _, workers := f.parts(); return workers[:1] }
	leader := func(f *fleet) []string { leader, _, _ := f.parts(); return []string{leader} }
	for _, ttl := range []time.Duration{3 * time.Second, 6 * time.Second} {
		b.Run("leader-silent/ttl="+ttl.String(), func(b *testing.B) { benchLoss(b, ttl, true, leader) })
		b.Run("killed/ttl="+ttl.String(), func(b *testing.B) { benchLoss(b, ttl, false, worker) })
		b.Run("silent/ttl="+ttl.String(), func(b *testing.B) { benchLoss(b, ttl, true, worker) })
	}
}

// BenchmarkClusterVotersKilled kills all voters but one at once, among them the leader.
func BenchmarkClusterVotersKilled(b *testing.B) {
	allButOne := func(f *fleet) []string { leader, voters, _ := f.parts(); return append(voters[1:], leader) }
	b.Run("killed", func(b *testing.B) { benchLoss(b, 6*time.Second, false, allButOne) })
	b.Run("silent", func(b *testing.B) { benchLoss(b, 6*time.Second, true, allButOne) })
}

// benchLoss measures from the death of nodes to their last shard's next claim.
func benchLoss(b *testing.B, ttl time.Duration, silent bool, who func(*fleet) []string) {
	b.Helper()
	scenario(b, func(t *testing.T) {
		f := fleetOf(newRig(t, benchShards), settings{TTL: ttl, MaxCrashes: -1})
		f.upAll(names(5)...)
		f.balanced(patience)
		victims := who(f)
		died := time.Duration(0)
		if silent {
			died = f.silence(victims...)
		} else {
			died = f.crash(victims...)
		}
		took := f.balanced(patience) - died
		moves := f.watch.since(died)
		b.ReportMetric(took.Seconds(), "s_to_last_shard")
		b.ReportMetric(float64(len(moves)), "moves")
		b.ReportMetric(0, "ns/op") // the set-up is in it
		if !silent {               // who was silenced has calls that never ended
			f.finish(judge.Config{MaxDuplicates: -1})
		}
	})
}

// silence stops nodes for good and takes them off the fleet's list.
func (f *fleet) silence(names ...string) (silent time.Duration) {
	f.t.Helper()
	silent = judge.Now()
	for _, name := range names {
		f.nodes[name].mortal.Store(true)
		f.nodes[name].signal(syscall.SIGSTOP)
	}
	for _, name := range names {
		delete(f.nodes, name)
	}
	return silent
}

// BenchmarkClusterTerm sends SIGTERM to one of three nodes, which has 40 shards.
func BenchmarkClusterTerm(b *testing.B) {
	scenario(b, func(t *testing.T) {
		f := fleetOf(newRig(t, benchShards), settings{TTL: 6 * time.Second})
		f.upAll(names(3)...)
		f.balanced(patience)
		f.ready("n2")
		asked := f.leave("n2")
		gone := judge.Now() - asked
		took := f.balanced(patience) - asked
		moves := f.watch.since(asked)
		v := f.finish(judge.Config{MaxDuplicates: -1})
		b.ReportMetric(took.Seconds(), "s_total")
		b.ReportMetric(gone.Seconds(), "s_gone")
		b.ReportMetric(float64(len(moves)), "moves")
		reportPauses(b, moves)
		b.ReportMetric(float64(v.Duplicates), "duplicates")
		b.ReportMetric(float64(f.failures()), "retries")
		b.ReportMetric(0, "ns/op")
	})
}

// failures are those of all queues; each spends a retry.
func (f *fleet) failures() (n int64) {
	f.t.Helper()
	for _, q := range f.queues {
		stats, err := f.statsOf(q)
		if err != nil {
			f.t.Fatal(err)
		}
		n += stats.Failed
	}
	return n
}

// reportPauses reports for how long shards had no owner, to the precision of two looks.
func reportPauses(b *testing.B, moves []move) {
	b.Helper()
	if len(moves) == 0 {
		return
	}
	var list []time.Duration
	for _, m := range moves {
		list = append(list, m.pause)
	}
	slices.Sort(list)
	b.ReportMetric(float64(list[(len(list)*99-1)/100])/1e6, "pause_p99_ms")
	b.ReportMetric(float64(list[len(list)-1])/1e6, "pause_max_ms")
}

// BenchmarkClusterJoin adds a fifth node to four. The lower bound is its quota.
func BenchmarkClusterJoin(b *testing.B) {
	scenario(b, func(t *testing.T) {
		f := fleetOf(newRig(t, benchShards), settings{TTL: 6 * time.Second})
		f.upAll(names(4)...)
		f.balanced(patience)
		began := judge.Now()
		f.up("n5")
		took := f.balanced(patience) - began
		moves := f.watch.since(began)
		f.finish(judge.Config{MaxDuplicates: -1})
		b.ReportMetric(took.Seconds(), "s_from_start")
		b.ReportMetric(float64(len(moves)), "moves")
		b.ReportMetric(float64(len(fleetQueues)*(benchShards/5)), "lower_bound")
		reportPauses(b, moves)
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkClusterRollingRestart restarts five nodes one after the other.
func BenchmarkClusterRollingRestart(b *testing.B) {
	scenario(b, func(t *testing.T) {
		f := fleetOf(newRig(t, benchShards), settings{TTL: 6 * time.Second})
		f.upAll(names(5)...)
		f.balanced(patience)
		began := judge.Now()
		for _, name := range f.list() {
			f.leave(name)
			f.up(name)
			f.ready(name)
		}
		took := f.balanced(patience) - began
		moves := f.watch.since(began)
		v := f.finish(judge.Config{MaxDuplicates: -1})
		b.ReportMetric(took.Seconds(), "s_total")
		b.ReportMetric(float64(most(moves)), "most_moves_of_a_shard")
		b.ReportMetric(float64(len(moves)), "moves")
		reportPauses(b, moves)
		b.ReportMetric(float64(v.Duplicates), "duplicates")
		b.ReportMetric(0, "ns/op")
	})
}
