package tally

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// line is figures of a usual length.
type line string

func (l line) Since(line) line      { return l }
func (l line) Same(other line) bool { return l == other }

// BenchmarkWrites is what a process with very many queues writes every ten seconds: CPU of Redis, in microseconds per queue.
func BenchmarkWrites(b *testing.B) {
	db, err := redisdb.Open(redisdb.Config{URL: redistest.Start(b).URL(), Cluster: "default", Timeout: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	const queues = 1000
	round := 0
	counter := &Tally[line]{
		Boot: "p", Ask: db.Time, Guess: time.Now, Write: Into[line](db), Failed: func(err error) { b.Fatal(err) },
		Read: func() map[string]line {
			all := map[string]line{}
			for i := range queues {
				all[fmt.Sprint("queue", i)] = line(fmt.Sprintf("%d %s", round, strings.Repeat("x", 600)))
			}
			return all
		},
	}
	counter.Step(b.Context())
	before := cpuOf(b, db)
	for b.Loop() {
		round++
		counter.Step(b.Context())
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
