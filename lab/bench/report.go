package bench

import (
	"context"
	"runtime"
	"slices"
)

// Figures are the results of a measurement. Rates are jobs per second.
type Figures struct {
	PushBulk     float64 `json:"push_bulk_per_s"`
	PushSingle50 float64 `json:"push_single50_per_s"`
	Drain1       float64 `json:"drain_batch1_per_s"`
	Drain100     float64 `json:"drain_batch100_per_s"`
	// From before a push to the start of its handler, on a node that waits.
	StartP50 float64 `json:"start_p50_ms"`
	StartP99 float64 `json:"start_p99_ms"`
	// Calls: from before a push to the answer of its handler, on a node that waits; and how many a second
	// with 1,000 callers at once, on 16 shards at batch 1.
	CallP50  float64 `json:"call_p50_ms"`
	CallsPer float64 `json:"calls_per_s"`
	// CPU time of the Redis process, in a bulk push and in a drain at batch 100.
	RedisPush  float64 `json:"redis_us_per_job_push"`
	RedisDrain float64 `json:"redis_us_per_job_drain"`
	// The same drain with a line of the journal for each run, and what such a line takes in Redis.
	Journal      float64 `json:"drain_journal_per_s"`
	RedisJournal float64 `json:"redis_us_per_job_journal"`
	RunBytes     float64 `json:"journal_bytes_per_run"`
	// What the data of a queued job takes in Redis.
	RedisBytes float64 `json:"redis_bytes_per_job"`
	// Heap allocations of the node in a drain at batch 100.
	Allocs float64 `json:"allocs_per_job"`
}

// Report has the medians of the rounds.
type Report struct {
	Jobs         int    `json:"jobs"`
	Shards       int    `json:"shards"`
	Rounds       int    `json:"rounds"`
	PayloadBytes int    `json:"payload_bytes"`
	Cores        int    `json:"cores"` // shared by this process and, unless it is remote, Redis
	RedisVersion string `json:"redis_version"`
	Acks         string `json:"acks"` // how acks were grouped

	Figures

	// Floor has the figures of the minimal scripts. They have no handler, so a drain in chunks of 100 stands for both batch
	// sizes, and a bulk push for both pushes.
	Floor Figures `json:"floor"`
	// ToFloor has ratios: the figure divided by the figure of the floor in the same round.
	ToFloor Figures `json:"to_floor"`

	Idle *Idle `json:"idle,omitempty"` // nil if it was not measured
	// Only is Config.Only. Figures that were not measured are 0.
	Only string `json:"only,omitempty"`
	// Stream has the loads of a live stream with their medians.
	Stream []StreamRow `json:"stream,omitempty"`
	// ByMasters is the result for Config.Masters, in place of all figures above.
	ByMasters *Masters `json:"masters,omitempty"`

	Goals []Goal `json:"goals"`
	// Steps are the medians of the values that Config.Steps noted.
	Steps map[string]float64 `json:"steps,omitempty"`
}

// Idle is the cost of a node with 1,000 idle shards.
type Idle struct {
	Commands   float64 `json:"redis_commands_per_s_per_100_shards"` // change of total_commands_processed
	CPUPercent float64 `json:"node_cpu_percent"`                    // of a core
}

const acks = "an ack rides on its shard's next pop, at the latest it follows within 10 ms"

// figure is a field of Figures with its names.
type figure struct {
	name, title string
	value       *float64
}

func (f *Figures) listFigures() []figure {
	return []figure{
		{"push_bulk_per_s", "bulk push, jobs/s", &f.PushBulk},
		{"push_single50_per_s", "50 goroutines push one by one, jobs/s", &f.PushSingle50},
		{"drain_batch1_per_s", "drain at batch 1, acks within 10 ms, jobs/s", &f.Drain1},
		{"drain_batch100_per_s", "drain at batch 100, jobs/s", &f.Drain100},
		{"start_p50_ms", "push to start on an idle node, p50, ms", &f.StartP50},
		{"start_p99_ms", "push to start on an idle node, p99, ms", &f.StartP99},
		{"call_p50_ms", "call on an idle node, p50, ms", &f.CallP50},
		{"calls_per_s", "calls by 1,000 callers, 16 shards, calls/s", &f.CallsPer},
		{"redis_us_per_job_push", "Redis CPU per pushed job, us", &f.RedisPush},
		{"redis_us_per_job_drain", "Redis CPU per drained job, us", &f.RedisDrain},
		{"drain_journal_per_s", "drain at batch 100, journal: all, jobs/s", &f.Journal},
		{"redis_us_per_job_journal", "Redis CPU per job with journal: all, us", &f.RedisJournal},
		{"journal_bytes_per_run", "Redis memory per journaled run, bytes", &f.RunBytes},
		{"redis_bytes_per_job", "Redis memory per queued job, bytes", &f.RedisBytes},
		{"allocs_per_job", "allocations per drained job", &f.Allocs},
	}
}

// samples are the values that the rounds noted, by name.
type samples map[string][]float64

// ofFloor begins the names of the floor's samples.
const ofFloor = "floor/"

func (s samples) note(name string, value float64) { s[name] = append(s[name], value) }

func (s samples) median(name string) float64 { return median(s[name]) }

// ratio returns the median of each round's ratio to the floor.
func (s samples) ratio(name string) float64 { return medianRatio(s[name], s[ofFloor+name]) }

// medianRatio returns the median of each round's ratio.
func medianRatio(values, to []float64) float64 {
	var of []float64
	for i, value := range values {
		if i < len(to) && to[i] > 0 {
			of = append(of, value/to[i])
		}
	}
	return median(of)
}

// median returns the median of values. It is 0 without values, and the mean of the middle two for an even number.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func (b *bench) buildReport(ctx context.Context, masters *Masters) Report {
	r := Report{
		Jobs: b.cfg.Jobs, Shards: b.cfg.Shards, Rounds: b.cfg.Rounds, PayloadBytes: len(payload),
		Cores: runtime.GOMAXPROCS(0), RedisVersion: b.on.readVersion(ctx), Acks: acks, Only: b.cfg.Only, ByMasters: masters,
	}
	floor, ratio := r.Floor.listFigures(), r.ToFloor.listFigures()
	for i, f := range r.Figures.listFigures() {
		*f.value, *floor[i].value, *ratio[i].value = b.got.median(f.name), b.got.median(ofFloor+f.name), b.got.ratio(f.name)
	}
	if b.cfg.Idle {
		r.Idle = &Idle{Commands: b.got.median(idleCommands), CPUPercent: b.got.median(idleCPU)}
	}
	if b.cfg.Masters == 0 {
		r.Stream = b.cfg.streamRows()
	}
	for i := range r.Stream {
		for _, f := range r.Stream[i].listFigures() {
			*f.value = b.got.median(r.Stream[i].figureName(f.name))
		}
	}
	if len(b.others) > 0 {
		r.Steps = map[string]float64{}
	}
	for name := range b.others {
		r.Steps[name] = b.others.median(name)
	}
	r.Goals = reportGoals(&r)
	return r
}
