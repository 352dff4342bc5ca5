package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// BenchmarkCrowd: a hundred nodes of one process start at once and share 10,000 shards of
// one Redis, over real sockets. It ends when every node runs its hundred shards.
func BenchmarkCrowd(b *testing.B) {
	const nodes, shards = 100, 10_000
	for range b.N {
		b.StopTimer()
		url := redistest.Start(b).URL()
		b.StartTimer()
		crowd := startCrowd(b, url, nodes, shards)
		awaitCrowd(b, crowd, shards/nodes)
		b.StopTimer()
		for _, m := range crowd {
			m.cancel()
		}
		for _, m := range crowd {
			m.stop()
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s_to_spread")
	b.ReportMetric(0, "ns/op")
}

// startCrowd starts nodes together; any of them finds the others by their leases.
func startCrowd(b *testing.B, url string, nodes, shards int) (crowd []*running) {
	b.Helper()
	for i := range nodes {
		n, err := New(Config{Name: fmt.Sprintf("n%03d", i), Redis: url, Bind: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		if err := n.Handle(QueueConfig{Name: "orders", Shards: shards}, lowkiq.HandlerFunc(nothing)); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		run := &running{Node: n, t: b, cancel: cancel, ended: make(chan struct{})}
		go func() { defer close(run.ended); run.err = n.Run(ctx) }()
		crowd = append(crowd, run)
	}
	return crowd
}

func awaitCrowd(b *testing.B, crowd []*running, each int) {
	b.Helper()
	begun, tick := time.Now(), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; <-tick.C {
		full, owned := 0, 0
		for _, m := range crowd {
			n := 0
			if in := m.instance(); in != nil {
				n = len(in.claims.All())
			}
			owned += n
			if n == each {
				full++
			}
		}
		if full == len(crowd) {
			return
		}
		if time.Since(last) > 5*time.Second {
			last = time.Now()
			b.Logf("after %s: %d of %d nodes have their share, %d shards are owned", time.Since(begun).Round(time.Second), full, len(crowd), owned)
		}
		if time.Since(begun) > patience {
			b.Fatalf("not within %s: %d of %d nodes have their share, %d shards are owned", patience, full, len(crowd), owned)
		}
	}
}
