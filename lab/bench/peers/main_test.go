package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/lab/bench"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestEveryFigureIsMeasured(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	// a thousand take no more memory than the buffers of a connection
	cfg := bench.Config{Jobs: 10_000, Shards: 2, Rounds: 1, StreamShards: []int{streamShards}, StreamFor: 50 * time.Millisecond}
	if err := run(t.Context(), &out, cfg, rival{jobs: 1000, samples: 2, pause: time.Millisecond, streamFor: 50 * time.Millisecond}, "json"); err != nil {
		t.Fatal(err)
	}
	var c comparison
	if err := json.Unmarshal([]byte(out.String()), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) != 9+3*6 || len(c.Asynq) != 9+3*7 {
		t.Errorf("got %d rows and %d figures of asynq, want 9 and 9, and of each of 3 loads 6 and 7: %s", len(c.Rows), len(c.Asynq), out.String())
	}
	for _, p := range c.Rows {
		if p.Lowkiq <= 0 || p.Asynq <= 0 || p.Better <= 0 {
			t.Errorf("%s: got %+v, want all > 0", p.Title, p)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := bench.Report{Jobs: 1000, Shards: 2, Rounds: 1, PayloadBytes: 16, RedisVersion: "7.0.15", Cores: 2, Acks: "within 10 ms"}
	r.PushSingle50, r.StartP50 = 120_000, 0.5
	r.Steps = map[string]float64{pushRate: 60_000, startP50: 500}
	c := compare(r)
	var out strings.Builder
	if err := c.table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"50 goroutines push one by one, jobs/s                120000        60000          2.0 x\n",
		"push to start when idle, p50, ms                       0.50          500       1000.0 x\n",
		"lowkiq: within 10 ms; asynq: each job by itself",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant in it\n%s", out.String(), want)
		}
	}
}

func TestTableOfStream(t *testing.T) {
	t.Parallel()
	r := bench.Report{Rounds: 1, PayloadBytes: 16, RedisVersion: "7.0.15", Cores: 2, Only: bench.OnlyStream}
	r.Stream = []bench.StreamRow{
		{Shards: streamShards, Load: "half of saturation"}, // asynq is not measured with it
		{Shards: streamShards, Load: "1000/s", StreamFigures: bench.StreamFigures{P50: 0.5}},
	}
	r.Steps = map[string]float64{"stream/1000/s/p50_ms": 500}
	c := compare(r)
	var out strings.Builder
	if err := c.table(&out); err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) != 6 {
		t.Errorf("got %d rows, want those of the load both were measured with: %v", len(c.Rows), c.Rows)
	}
	for _, want := range []string{
		"jobs of 16 bytes; medians of 1 rounds",
		"stream, 1000/s: p50, ms                                0.50          500       1000.0 x\n",
		"lowkiq with 50 shards, asynq with 32 workers",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant in it\n%s", out.String(), want)
		}
	}
}
