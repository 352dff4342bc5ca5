package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
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

// A leader whose link to Redis comes and goes hands leadership over, and whoever leads then
// gives away the shards of a node that is cut off from Redis altogether.
func TestLeaderWithFlappingRedis(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	const ttl = 3 * time.Second
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
	leader := members[slices.IndexFunc(members, leads)]
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
	if !leads(followers[1]) {
		t.Errorf("%s does not lead, though it alone reaches Redis at all times", followers[1].Name())
	}
}
