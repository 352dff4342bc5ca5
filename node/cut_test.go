package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// flap lets the proxy's clients reach Redis for up, and then not for down, until the test
// ends.
func flap(t *testing.T, proxy *redistest.Proxy, down, up time.Duration) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for refuse := true; ; refuse = !refuse {
			proxy.Refuse(refuse)
			pause := up
			if refuse {
				proxy.DropAll()
				pause = down
			}
			select {
			case <-stop:
				proxy.Refuse(false)
				return
			case <-time.After(pause):
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

// TestLeaderWithFlappingRedis checks that a leader whose connection to Redis comes and goes gives up leadership. The next
// leader then gives away the shards of a node that is cut off from Redis.
func TestLeaderWithFlappingRedis(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	const ttl = 6 * time.Second // of 3 s a busy machine and the flaps take both nodes' leases
	server := redistest.Start(t)
	var members []*running
	proxies := map[*running]*redistest.Proxy{}
	for i := range 3 {
		proxy := redistest.NewProxy(t, server.Addr())
		m := startMember(t, Config{Name: fmt.Sprintf("n%d", i+1), Redis: proxy.URL(), TTL: ttl}, 12)
		members, proxies[m] = append(members, m), proxy
	}
	awaitSpread(t, []int{4, 4, 4}, members...)
	leads := func(m *running) bool { return m.cluster.Load().Status().Leading }
	await(t, "three voters", func() bool { return len(members[0].cluster.Load().Status().Voters) == 3 })
	var leader *running
	await(t, "a leader", func() bool {
		i := slices.IndexFunc(members, leads)
		if i >= 0 {
			leader = members[i]
		}
		return i >= 0
	})
	followers := slices.DeleteFunc(slices.Clone(members), func(m *running) bool { return m == leader })
	record := leader.cluster.Load().Status().Record
	flap(t, proxies[leader], ttl/3, ttl/4)
	proxies[followers[0]].Refuse(true)
	proxies[followers[0]].DropAll()
	t.Cleanup(func() { proxies[followers[0]].Refuse(false) })
	cut := time.Now()
	await(t, "the shards of the node without Redis are owned elsewhere", func() bool {
		return leader.owns()+followers[1].owns() == 12
	})
	t.Logf("owned elsewhere after %s", time.Since(cut))
	if got := followers[1].cluster.Load().Status().Record; got != record {
		t.Errorf("got record %d, want still %d: leadership is handed over, no new group founded", got, record)
	}
	await(t, followers[1].Name()+" leads, as it alone reaches Redis at all times", func() bool { return leads(followers[1]) })
}
