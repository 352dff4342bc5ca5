package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// What a node costs others in a cluster of a thousand, counted where it leaves the node: a thousand
// processes are more than a machine that tests has room for.

// meter stands between a node and its Redis and counts what the node asks.
type meter struct {
	address string
	asked   atomic.Int64 // commands
	renewed atomic.Int64 // of these, renewals of the lease
	bytes   atomic.Int64 // both ways
}

func newMeter(t *testing.T, redis string) *meter {
	t.Helper()
	proxy := redistest.NewProxy(t, redis)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	m := &meter{address: l.Addr().String()}
	proxy.CutReplyOf(func(words []string) bool {
		m.asked.Add(1)
		if strings.EqualFold(words[0], "SET") && strings.Contains(words[1], ":lease:") {
			m.renewed.Add(1)
		}
		return false
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", proxy.Addr())
			if err != nil {
				client.Close()
				return
			}
			go m.copy(client, server)
			go m.copy(server, client)
		}
	}()
	return m
}

func (m *meter) copy(to, from net.Conn) {
	defer to.Close()
	io.Copy(countedWriter{to, &m.bytes}, from) //nolint:errcheck // a closed connection is the end
}

type countedWriter struct {
	io.Writer
	n *atomic.Int64
}

func (w countedWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return w.Writer.Write(p)
}

// cost is what a node asks per renewal of its lease: a second at the default ttl.
type cost struct{ commands, bytes float64 }

// over measures the next renewals; what it returns waits for them.
func (m *meter) over(t *testing.T, renewals int64) func() cost {
	begun, asked, bytes := m.renewed.Load(), m.asked.Load(), m.bytes.Load()
	return func() cost {
		t.Helper()
		await(t, fmt.Sprintf("%d renewals", renewals), func() bool { return m.renewed.Load() >= begun+renewals })
		n := float64(m.renewed.Load() - begun)
		return cost{float64(m.asked.Load()-asked) / n, float64(m.bytes.Load()-bytes) / n}
	}
}

// TestIdleSecondAmongAThousand checks that a follower without a vote sends as many requests in an idle second among a thousand
// leases as among ten. The leader reads all leases. It sends as many commands, and its bytes grow only with the leases.
func TestIdleSecondAmongAThousand(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const few, many, renewals = 10, 1000, 12 // two looks at the index of instances at least
	begun := time.Now()
	srv := redistest.Start(t)
	join := func(name string) (*running, *meter) {
		m := newMeter(t, srv.Addr())
		return start(t, Config{Name: name, Redis: "redis://" + m.address + "/0", Bind: "127.0.0.1:0", TTL: shortTTL, PollInterval: time.Minute, fewNodes: -1}, QueueConfig{Shards: 8}, nothing), m
	}
	first, leader := join("n1")
	await(t, "the first node leads", func() bool { return first.serving().cluster.Load().Status().Leading })
	second, follower := join("n2")
	await(t, "the second looks away", func() bool { return second.serving().cluster.Load().LooksAway() })
	p := open(t, srv.URL(), 8)
	lease := 0
	grow := func(to, n int) {
		for ; n < to; n++ {
			boot := identity.NewBoot()
			name := fmt.Sprintf("node-%04d.example", n)
			info := identity.Lease{Node: name, Boot: boot, Instance: identity.InstanceName(name, boot, 1), Start: time.Now(), Weight: 1, Gossip: "192.0.2.1:7946", Raft: "192.0.2.1:7947",
				HTTP: "http://192.0.2.1:7948", Queues: map[string]int{"orders": 0}, TTL: shortTTL.Milliseconds(), Process: identity.Process{Host: "elsewhere", PID: n, Start: "1"}}
			value, err := json.Marshal(info)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.client.Leases().Take(t.Context(), info.Instance, []byte("{}"), value, time.Hour); err != nil {
				t.Fatal(err)
			}
			lease = len(value)
		}
	}
	measure := func(leases, have int, fine func(lead, follow cost) bool) (lead, follow cost) {
		grow(leases, have)
		await(t, "the leader sees them", func() bool {
			live, _, _ := first.cluster.Load().RecentLeases()
			return len(live) >= leases
		})
		// An election, as on a busy machine, or the end of one, has the follower look at all leases
		// once, and a node that is late does what is due in between as well: what counts are windows without that. Where
		// they always ask for more there is none.
		for quiet := false; !quiet; {
			await(t, "the second looks away", second.cluster.Load().LooksAway)
			_, looked, _ := second.cluster.Load().RecentLeases()
			of, ol := follower.over(t, renewals), leader.over(t, renewals)
			follow, lead = of(), ol()
			_, now, _ := second.cluster.Load().RecentLeases()
			quiet = now == looked && fine(lead, follow) || time.Since(begun) > 2*patience
		}
		t.Logf("%d leases of %d bytes: per renewal the leader asks %.1f commands, %.0f bytes; the follower %.1f, %.0f", leases, lease, lead.commands, lead.bytes, follow.commands, follow.bytes)
		return lead, follow
	}
	share := func(lead, follow cost) float64 { return (lead.commands + 4*follow.commands) / 5 }
	leadFew, followFew := measure(few, 0, func(lead, follow cost) bool { return share(lead, follow) < 6 })
	if each := share(leadFew, followFew); each <= 0 || each >= 6 { // 4.6 to 4.9
		t.Errorf("a node of five asks %.2f commands a renewal beside its polls, the leader's share included; want some and less than 6", each)
	}
	followSame := func(follow cost) bool {
		return follow.commands <= 1.25*followFew.commands+1 && follow.bytes <= 1.25*followFew.bytes+500
	}
	// A look reads each lease once, and its entry in the index once in three looks; the watch over
	// unowned shards has what the look has read.
	leadSame := func(lead cost) bool {
		return lead.commands <= 1.25*leadFew.commands+2 && lead.bytes <= leadFew.bytes+2*float64((many-few)*(lease+200))
	}
	leadMany, followMany := measure(many, few, func(lead, follow cost) bool { return leadSame(lead) && followSame(follow) })
	if !followSame(followMany) {
		t.Errorf("the follower: %+v beside %d leases, %+v beside %d; want the same", followMany, many, followFew, few)
	}
	if !leadSame(leadMany) {
		t.Errorf("the leader: %+v beside %d leases of %d bytes, %+v beside %d; want as many commands, and each lease twice at most", leadMany, many, lease, leadFew, few)
	}
}
