//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// TestLimitUnderKills kills nodes, freezes them for less than a ttl, tells them to leave, and kills Redis and starts it
// again with its file. Never do more calls run at once than the limit allows, and every payload is handled.
// LOWKIQ_KILLS is the number of faults, and LOWKIQ_KILL_EVERY the mean time between them. By default that is 1.5 s,
// less than a takeover of a dead node's shards takes. All of the limit's use may be lost meanwhile, so the measured use
// says little then.
func TestLimitUnderKills(t *testing.T) {
	t.Parallel()
	faults := fromEnv(t, "LOWKIQ_KILLS", tier.Of(0, 4, 12), strconv.Atoi)
	every := fromEnv(t, "LOWKIQ_KILL_EVERY", 1500*time.Millisecond, time.ParseDuration)
	const limit, work = 5, 25 * time.Millisecond
	enough := limit * int(4*every/work) // there is always work, on each node
	random := randomly(t)
	r := newRig(t, 12, redistest.Durable...)
	f := &fleet{rig: r, nodes: map[string]*process{}, settings: settings{
		TTL: 2 * ttl, MaxCrashes: 1000, Work: work, Limit: rules.Limit{Concurrency: limit}, Bind: "127.0.0.1:0", HTTP: "127.0.0.1:0"}}
	f.http = &http.Client{Timeout: patience / 2, Transport: &http.Transport{DisableKeepAlives: true}}
	nodes := names(3)
	f.upAll(nodes...)
	pushed := 0
	push := func(n int) {
		jobs := make([]lowkiq.Push, n)
		for i := range jobs {
			score := float64(pushed + i)
			jobs[i] = lowkiq.Push{ID: fmt.Sprint("id", pushed+i), Payload: []byte("{}"), Score: &score}
		}
		r.push(jobs...)
		pushed += n
	}
	allLive := func() {
		for _, name := range nodes {
			f.lease(name)
		}
	}
	allLive()
	began := judge.Now()
	for i := range faults {
		allLive()
		if left := int(r.stats().Jobs.Total()); left < enough {
			push(enough - left)
		}
		<-time.After(upTo(random, 2*every))
		name := nodes[random.IntN(len(nodes))]
		switch i % 4 {
		case 0, 1:
			f.crash(name)
			f.up(name)
		case 2:
			f.nodes[name].signal(syscall.SIGSTOP)
			<-time.After(upTo(random, ttl/3)) // its calls and permits stay its own
			f.nodes[name].signal(syscall.SIGCONT)
		case 3:
			if random.IntN(2) == 0 {
				f.leave(name)
				f.up(name)
			} else {
				r.redis.Kill()
				r.redis.Restart()
			}
		}
	}
	over := judge.Now()
	r.drained()
	for _, name := range f.list() {
		f.lease(name)
		f.leave(name)
	}
	v := r.verdict(judge.Config{ShardConcurrency: 1, Limits: []judge.Limit{{Queue: queueName, Concurrency: limit}}, MaxDuplicates: -1})
	if v.Deaths == 0 {
		t.Error("nobody died: the test would show little")
	}
	t.Logf("%d calls, %d deaths that cut off %d; under the faults, one every %s, %.0f %% of the limit was used", v.Calls, v.Deaths, v.Interrupted,
		((over - began) / time.Duration(faults)).Round(time.Millisecond), 100*busy(r.calls(), began, over).Seconds()/limit/(over-began).Seconds())
}

// busy is how long calls took together from one time to another.
func busy(calls []call, from, to time.Duration) (sum time.Duration) {
	for _, c := range calls {
		sum += max(0, min(c.ended, to)-max(c.began, from))
	}
	return sum
}
