package bench

import (
	"strings"
	"testing"
)

// A machine that got slower half-way must not change a ratio.
func TestRatioIsOfTheSameRound(t *testing.T) {
	t.Parallel()
	s := samples{"x": {50, 25, 20}, "floor/x": {100, 50, 40}, "alone": {1}}
	if got := s.ratio("x"); got != 0.5 {
		t.Errorf("got %v, want 0.5", got)
	}
	if got := s.ratio("alone"); got != 0 {
		t.Errorf("without a floor: got %v, want 0", got)
	}
}

// sample is a report with round figures.
func sample() Report {
	r := Report{Jobs: 100_000, Shards: 5, Rounds: 3, PayloadBytes: 16, Cores: 2, RedisVersion: "7.0.15", Acks: acks}
	r.Figures = Figures{376_000, 121_000, 245_000, 402_000, 0.61, 1.42, 0.9, 16_000, 1.53, 1.61, 361_000, 1.9, 75, 104, 7.25}
	r.Floor = Figures{600_000, 600_000, 700_000, 700_000, 0.12, 0.31, 0, 0, 0.97, 0.82, 0, 0, 0, 96, 3.5}
	r.ToFloor = Figures{0.627, 0.202, 0.35, 0.574, 5.1, 4.6, 0, 0, 1.58, 1.96, 0, 0, 0, 1.08, 2.07}
	return r
}

const wantTable = `100,000 jobs of 16 bytes, 5 shards; medians of 3 rounds; 2 cores, shared with Redis 7.0.15 if it runs here

                                                   lowkiq        floor   of floor   goal
bulk push, jobs/s                                 376,000      600,000       63 %   >= 60 % of floor  reached
50 goroutines push one by one, jobs/s             121,000      600,000       20 %   >= 100,000        reached
drain at batch 1, acks within 10 ms, jobs/s       245,000      700,000       35 %   >= 35 % of floor  reached
drain at batch 100, jobs/s                        402,000      700,000       57 %   >= 60 % of floor  NOT REACHED
push to start on an idle node, p50, ms               0.61         0.12      5.1 x   <= 1              reached
push to start on an idle node, p99, ms               1.42         0.31      4.6 x   <= 3              reached
call on an idle node, p50, ms                        0.90            -          -   <= 2              reached
calls by 1,000 callers, 16 shards, calls/s         16,000            -          -   >= 15,000         reached
Redis CPU per pushed job, us                         1.53         0.97      158 %
Redis CPU per drained job, us                        1.61         0.82      196 %
drain at batch 100, journal: all, jobs/s          361,000            -          -
Redis CPU per job with journal: all, us              1.90            -          -   <= 125 %          reached
Redis memory per journaled run, bytes                  75            -          -   <= 120            reached
Redis memory per queued job, bytes                    104           96      108 %   <= 120            reached
allocations per drained job                          7.25         3.50      2.1 x
1,000 idle shards, Redis commands/s per 100          4.10            -          -   < 5               reached
1,000 idle shards, CPU of node, % of a core          2.50            -          -   < 2               NOT REACHED

Acks: an ack rides on its shard's next pop, at the latest it follows within 10 ms.
Floor: two minimal scripts (bulk insert; pop and ack 100 ids with list, hash and flight), same chunks, same connections, no checks.
`

func TestTable(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Idle = &Idle{Commands: 4.1, CPUPercent: 2.5}
	r.Goals = reportGoals(&r)
	var got strings.Builder
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != wantTable {
		t.Errorf("got\n%s\nwant\n%s", got.String(), wantTable)
	}
}

const wantStream = `jobs of 16 bytes; medians of 3 rounds; 2 cores, shared with Redis 7.0.15 if it runs here

a live stream, one node at batch 1                jobs/s     p50, ms     p99, ms   p99.9, ms scripts/job   Redis, us    late, ms   goal
5 shards, saturation                             120,000        0.45        2.10        4.80        0.04        4.20           -   p99 <= 5: reached
50 shards, saturation                             80,000        0.65        5.10        9.70        0.09        8.10           -   jobs/s >= 90,000: NOT REACHED; p99 <= 5: NOT REACHED
50 shards, 10000/s                                 9,999        0.20        3.10        6.50        0.80        19.0        0.40   p50 <= 0.25: reached; p99 <= 3: NOT REACHED
50 shards x 4, 5000/s beside slow                  4,998        0.30        2.20        3.30        0.90        21.0        0.35

Saturation: 50 goroutines push one job each, the next when that one is answered. Elsewhere jobs arrive at fixed times whatever the answers do.
Times are from when a push was due to the start of its handler; pushes began up to "late" (p99) after that. Scripts and CPU are those of Redis.
Beside slow: one handler in 1,000 takes 200 ms, the others are timed; x 4 is shard_concurrency.
`

func TestStreamTable(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Only = OnlyStream
	r.Stream = []StreamRow{
		{5, 1, "saturation", StreamFigures{120_000, 0.45, 2.1, 4.8, 0.04, 4.2, 0}},
		{50, 1, "saturation", StreamFigures{80_000, 0.65, 5.1, 9.7, 0.09, 8.1, 0}},
		{50, 1, "10000/s", StreamFigures{9999, 0.2, 3.1, 6.5, 0.8, 19.04, 0.4}},
		{50, 4, "5000/s beside slow", StreamFigures{4998, 0.3, 2.2, 3.3, 0.9, 21.04, 0.35}},
	}
	r.Goals = reportGoals(&r)
	var got strings.Builder
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != wantStream {
		t.Errorf("got\n%s\nwant\n%s", got.String(), wantStream)
	}
}

// Both parts are one after the other, under one heading.
func TestTableOfAll(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Stream = []StreamRow{{5, 1, "saturation", StreamFigures{PerSecond: 120_000}}}
	var got strings.Builder
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	if want := "no checks.\n\na live stream"; !strings.Contains(got.String(), want) || strings.Count(got.String(), "medians of") != 1 {
		t.Errorf("got\n%s\nwant in it once\n%s", got.String(), want)
	}
}

func TestTableWithoutIdle(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Goals = reportGoals(&r)
	var got strings.Builder
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	want := "1,000 idle shards, CPU of node, % of a core             -            -          -   not measured\n"
	if !strings.Contains(got.String(), want) {
		t.Errorf("got\n%s\nwant in it\n%s", got.String(), want)
	}
}

func TestGoalsObject(t *testing.T) {
	t.Parallel()
	slow := Report{Figures: Figures{StartP50: 9, StartP99: 9, CallP50: 9, RedisBytes: 900, RunBytes: 900}, Idle: &Idle{Commands: 9, CPUPercent: 9},
		Stream: []StreamRow{{50, 1, "saturation", StreamFigures{P99: 9}}, {5, 1, "10000/s", StreamFigures{P50: 9, P99: 9}}}}
	for _, g := range reportGoals(&slow) {
		if g.Reached {
			t.Errorf("%s %s is reached by %+v", g.Figure, g.Want, slow)
		}
	}
}
