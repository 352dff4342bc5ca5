package daycounts

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// BenchmarkWrites is what a process with very many queues writes every ten seconds: CPU of Redis,
// in microseconds per queue. Each queue has counted durations in 12 buckets of each histogram.
func BenchmarkWrites(b *testing.B) {
	db, err := redisdb.Open(redisdb.Config{URL: redistest.Start(b).URL(), Cluster: "default", Timeout: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	const queues = 1000
	round := 0
	counter := &Tally{
		Time: db.Time, Write: Into(db), Failed: func(err error) { b.Fatal(err) },
		Read: func() map[string]Counts {
			all := map[string]Counts{}
			for i := range queues {
				c, buckets := Counts{Processed: float64(round), Failed: float64(round)}, map[int]uint64{}
				for k := range 12 {
					buckets[k-40] = uint64(round)
				}
				for _, name := range []string{Run, Wait} {
					c.SetDurations(name, buckets, float64(round)*.7, float64(round)*.49)
				}
				all[fmt.Sprint("queue", i)] = c
			}
			return all
		},
	}
	counter.takeStep(b.Context())
	before := cpuOf(b, db)
	for b.Loop() {
		round++
		counter.takeStep(b.Context())
	}
	b.ReportMetric((cpuOf(b, db)-before)*1e6/float64(b.N)/queues, "redis-us/queue")
}

var cpuRule = regexp.MustCompile(`used_cpu_(?:sys|user):([\d.]+)`)

// cpuOf is the CPU time of Redis, in seconds.
func cpuOf(b *testing.B, db *redisdb.DB) (seconds float64) {
	reply, err := db.Do(context.Background(), "read CPU", "INFO", "cpu")
	if err != nil {
		b.Fatal(err)
	}
	for _, found := range cpuRule.FindAllStringSubmatch(redisdb.Text(reply), -1) {
		one, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += one
	}
	return seconds
}
