package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Masters compares a Redis Cluster with a single server of the same machine, at the same shards.
type Masters struct {
	Masters int `json:"masters"`
	// Jobs are the queue's jobs on each master, in falling order. The hash tag of a shard decides on which master it lies.
	Jobs []int        `json:"jobs_of_each"`
	Rows []MastersRow `json:"rows"`
}

// MastersRow is a measurement on both.
type MastersRow struct {
	What    string         `json:"what"`
	Single  MastersFigures `json:"single"`
	Cluster MastersFigures `json:"cluster"`
	// Ratio is the cluster's CPU time of Redis per job divided by that of the single server in the same round.
	Ratio float64 `json:"redis_us_per_job_ratio"`
	// Busiest is the CPU time of the busiest master divided by the mean of the masters.
	Busiest float64 `json:"busiest_to_mean"`
}

// MastersFigures are the figures of a single server or of a cluster.
type MastersFigures struct {
	RedisCPU  float64 `json:"redis_us_per_job"` // the sum of all masters
	Scripts   float64 `json:"scripts_per_job"`
	PerSecond float64 `json:"per_s"`
}

// The measurements on both.
const (
	floorPushed  = "floor: bulk push"
	floorDrained = "floor: drain"
	bulkPush     = "bulk push"
	drain100     = "drain at batch 100"
	drain1       = "drain at batch 1"
	streamOnBoth = "live stream, saturation"
)

// mastersSteps returns the steps that measure the rows on the Redis of b.
func (b *bench) mastersSteps() (steps []Step) {
	if b.cfg.Only != OnlyStream {
		steps = append(steps, Step{"floor", b.floorOnMasters})
		for _, batch := range []int{100, 1} {
			steps = append(steps, Step{fmt.Sprintf("bulk push, drain at batch %d", batch), b.pushAndDrain(batch)})
		}
	}
	if b.cfg.Only != OnlyDrain {
		steps = append(steps, Step{streamOnBoth, b.measureSaturation})
	}
	return steps
}

// mastersRows returns the names of the rows.
func (cfg *Config) mastersRows() (rows []string) {
	if cfg.Only != OnlyStream {
		rows = append(rows, floorPushed, floorDrained, bulkPush, drain100, drain1)
	}
	if cfg.Only != OnlyDrain {
		rows = append(rows, streamOnBoth)
	}
	return rows
}

// floorOnMasters is a step. lowkiq is not the cause of a difference that it shows between a cluster and a single server.
func (b *bench) floorOnMasters(ctx context.Context, on *Server, note func(string, float64)) error {
	f, err := newMinimal(ctx, on.rdb, b.cfg.Shards)
	if err != nil {
		return err
	}
	rate, pushed, err := b.floorPush(ctx, f)
	if err != nil {
		return err
	}
	d, err := b.floorDrain(ctx, f)
	if err != nil {
		return err
	}
	b.noteUsage(note, floorPushed, b.cfg.Jobs, rate, pushed)
	b.noteUsage(note, floorDrained, b.cfg.Jobs, d.rate, d.used)
	return nil
}

// pushAndDrain returns a step. Two of these steps push, and the push of batch 100 counts.
func (b *bench) pushAndDrain(batch int) func(context.Context, *Server, func(string, float64)) error {
	return func(ctx context.Context, _ *Server, note func(string, float64)) error {
		var rate float64
		before, pushed, err := b.pushAll(ctx, func(_ string, value float64) { rate = value })
		if err != nil {
			return err
		}
		d, err := b.drainQueue(ctx, node.QueueConfig{Rules: rules.Rules{BatchSize: batch}})
		if err != nil {
			return err
		}
		if batch == 1 {
			b.noteUsage(note, drain1, b.cfg.Jobs, d.rate, d.used)
			return nil
		}
		b.noteUsage(note, bulkPush, b.cfg.Jobs, rate, pushed.since(before))
		b.noteUsage(note, drain100, b.cfg.Jobs, d.rate, d.used)
		return nil
	}
}

// measureSaturation is a step with a live stream in a closed loop.
func (b *bench) measureSaturation(ctx context.Context, _ *Server, note func(string, float64)) error {
	return b.withNode(ctx, node.QueueConfig{Shards: b.cfg.Shards}, func(ctx context.Context, through *Stream) error {
		figures, err := through.Measure(ctx, Saturation, b.cfg.StreamFor)
		if err != nil {
			return err
		}
		b.noteUsage(note, streamOnBoth, through.jobs, figures.PerSecond, through.used)
		return nil
	})
}

// noteUsage notes the values of a row.
func (b *bench) noteUsage(note func(string, float64), what string, jobs int, rate float64, used Usage) {
	note(what+"/per_s", rate)
	note(what+"/redis_us_per_job", float64(used.CPU.Microseconds())/float64(jobs))
	note(what+"/scripts_per_job", float64(used.Scripts)/float64(jobs))
	note(what+"/busiest_to_mean", float64(slices.Max(used.Each))*float64(len(used.Each))/float64(used.CPU))
}

// runMasters measures each step on the single server and on the cluster in turn, because the machine drifts less between the
// two than between rounds. The order changes from round to round.
func (b *bench) runMasters(ctx context.Context) (*Masters, error) {
	on, err := openCluster(ctx, b.cfg.Masters)
	if err != nil {
		return nil, err
	}
	defer on.close() //nolint:errcheck // a private cluster, and the run has ended
	cluster := &bench{cfg: b.cfg, on: on, got: samples{}}
	sides, steps := []*bench{b, cluster}, [][]Step{b.mastersSteps(), cluster.mastersSteps()}
	names := []string{"1 server", fmt.Sprintf("%d masters", b.cfg.Masters)}
	total := b.cfg.Rounds * len(steps[0]) * len(sides)
	for done := range total {
		round, i := done/len(sides)/len(steps[0]), done/len(sides)%len(steps[0])
		side := (done + round) % len(sides)
		step := steps[side][i]
		step.Name = names[side] + ": " + step.Name
		b.cfg.Progress(step.Name, float64(done)/float64(total))
		if err := sides[side].measureStep(ctx, step, sides[side].got); err != nil {
			return nil, err
		}
		if err := sides[side].on.flushAll(ctx); err != nil { // leave the memory to the other side
			return nil, err
		}
	}
	b.cfg.Progress("done", 1)
	m := &Masters{Masters: b.cfg.Masters}
	for _, what := range b.cfg.mastersRows() {
		m.Rows = append(m.Rows, MastersRow{
			What: what, Single: b.got.mastersFigures(what), Cluster: cluster.got.mastersFigures(what),
			Ratio:   medianRatio(cluster.got[what+"/redis_us_per_job"], b.got[what+"/redis_us_per_job"]),
			Busiest: cluster.got.median(what + "/busiest_to_mean"),
		})
	}
	m.Jobs, err = cluster.jobsOfEach(ctx)
	return m, err
}

func (s samples) mastersFigures(what string) MastersFigures {
	return MastersFigures{s.median(what + "/redis_us_per_job"), s.median(what + "/scripts_per_job"), s.median(what + "/per_s")}
}

// jobsOfEach counts the jobs of each master.
func (b *bench) jobsOfEach(ctx context.Context) ([]int, error) {
	client, err := protocol.Open(protocol.Config{Redis: b.on.URL})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	of := map[string]int{} // by the address of the master
	for shard, jobs := range b.jobsOfShards() {
		master, err := client.DB().MasterOf(ctx, client.DB().Keys.Shard(queueName, 1, shard).Tag)
		if err != nil {
			return nil, err
		}
		of[master.Address()] += jobs
	}
	counts := make([]int, 0, len(b.on.masters))
	for _, master := range b.on.masters {
		counts = append(counts, of[master.Options().Addr])
	}
	slices.SortFunc(counts, func(x, y int) int { return y - x })
	return counts, nil
}

// jobsOfShards returns how many jobs a run pushes to each shard. The ids alone decide it.
func (b *bench) jobsOfShards() []int {
	counts := make([]int, b.cfg.Shards)
	for from := 0; from < b.cfg.Jobs; from += pushBatch {
		for _, job := range makeJobs(from, min(from+pushBatch, b.cfg.Jobs)) {
			counts[lowkiq.ShardOf(job.ID, b.cfg.Shards)]++
		}
	}
	return counts
}

// mostOverSingle is the goal: the maximum ratio of a cluster's CPU time of Redis to that of a single server.
const mostOverSingle = 1.10

// figureName returns the name of the row in goals.
func (row *MastersRow) figureName() string { return "masters/" + row.What + "/redis_us_per_job_ratio" }

func (m *Masters) listGoals() (all []Goal) {
	for i := range m.Rows {
		switch row := &m.Rows[i]; row.What { // only a single server can serve many shards with a script in a stream
		case bulkPush, drain100, drain1:
			all = append(all, Goal{row.figureName(), fmt.Sprintf("<= %g", mostOverSingle), row.Ratio <= mostOverSingle})
		}
	}
	return all
}

// mastersTable prints a line for each row.
func (r *Report) mastersTable(out *strings.Builder) {
	m := r.ByMasters
	format := "%-26s %12s %12s %10s %10s   %-8s  %s\n"
	fmt.Fprintf(out, format, "Redis CPU per job, us", "1 server", fmt.Sprintf("%d masters", m.Masters), "ratio", "busiest", "goal", "")
	for i := range m.Rows {
		row := &m.Rows[i]
		want, verdict := r.goalVerdict(row.figureName())
		fmt.Fprintf(out, format, row.What, formatNumber(row.Single.RedisCPU), formatNumber(row.Cluster.RedisCPU), formatNumber(row.Ratio),
			formatNumber(row.Busiest), want, verdict)
	}
	for _, part := range []struct {
		title string
		value func(*MastersFigures) float64
	}{
		{"scripts per job", func(f *MastersFigures) float64 { return f.Scripts }},
		{"jobs/s", func(f *MastersFigures) float64 { return f.PerSecond }},
	} {
		fmt.Fprintf(out, "\n%s\n", part.title)
		for i := range m.Rows {
			row := &m.Rows[i]
			fmt.Fprintf(out, format, row.What, formatNumber(part.value(&row.Single)), formatNumber(part.value(&row.Cluster)), "", "", "", "")
		}
	}
	jobs := make([]string, len(m.Jobs))
	most, sum := 0, 0
	for i, n := range m.Jobs {
		jobs[i] = formatNumber(float64(n))
		most, sum = max(most, n), sum+n
	}
	fmt.Fprintf(out, mastersNotes, strings.Join(jobs, ", "), formatNumber(float64(most*len(jobs))/float64(sum)))
}

const mastersNotes = `
Ratio: CPU of all masters together to that of a single server in the same round. Busiest: CPU of the busiest master to the mean of the masters.
Jobs of the queue by master, as its shards' hash tags fall: %s; the most to the mean is %s.
`
