package node

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// BenchmarkCrowd starts a hundred nodes in a process. They share 10,000 shards of a Redis over real sockets. It ends
// when every node runs its hundred shards.
func BenchmarkCrowd(b *testing.B) {
	const nodes, shards = 100, 10_000
	for range b.N {
		b.StopTimer()
		url := redistest.Start(b).URL()
		b.StartTimer()
		var crowd []*running
		for i := range nodes { // any of them finds the others by their leases
			cfg := Config{Name: fmt.Sprintf("n%03d", i), Redis: url, Bind: "127.0.0.1:0", TTL: 6 * time.Second, Log: slog.New(slog.DiscardHandler)}
			crowd = append(crowd, start(b, cfg, QueueConfig{Shards: shards}, nothing))
		}
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

func awaitCrowd(b *testing.B, crowd []*running, each int) {
	b.Helper()
	begun, tick := time.Now(), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; <-tick.C {
		full, owned := 0, 0
		for _, m := range crowd {
			n := max(0, m.owns())
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
