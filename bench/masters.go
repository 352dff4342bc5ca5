package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

// Masters compares a Redis Cluster with a single server of the same machine, at the same shards.
type Masters struct {
	Masters int `json:"masters"`
	// Jobs are those that each master has of the queue, the most first: by their hash tags, shards
	// fall to masters as they may.
	Jobs []int        `json:"jobs_of_each"`
	Rows []MastersRow `json:"rows"`
}

// MastersRow is one measurement, on both.
type MastersRow struct {
	What    string         `json:"what"`
	Single  MastersFigures `json:"single"`
	Cluster MastersFigures `json:"cluster"`
	// Ratio is that of Redis's CPU time per job: the cluster's / the single server's, of the same round.
	Ratio float64 `json:"redis_us_per_job_ratio"`
	// Busiest is the CPU time of the busiest master / the mean of the masters.
	Busiest float64 `json:"busiest_to_mean"`
}

// MastersFigures are of one Redis.
type MastersFigures struct {
	RedisCPU  float64 `json:"redis_us_per_job"` // of all masters together
	Scripts   float64 `json:"scripts_per_job"`
	PerSecond float64 `json:"per_s"`
}

// What is measured on both.
const (
	floorPushed  = "floor: bulk push"
	floorDrained = "floor: drain"
	bulkPush     = "bulk push"
	drain100     = "drain at batch 100"
	drain1       = "drain at batch 1"
	streamOnBoth = "live stream, saturation"
)

// mastersSteps measure on b's Redis what rows report.
func (b *bench) mastersSteps() (steps []Step) {
	if b.cfg.Only != OnlyStream {
		steps = append(steps, Step{"floor", b.floorOnMasters})
		for _, batch := range []int{100, 1} {
			steps = append(steps, Step{fmt.Sprintf("bulk push, drain at batch %d", batch), b.pushAndDrain(batch)})
		}
	}
	if b.cfg.Only != OnlyDrain {
		steps = append(steps, Step{streamOnBoth, b.saturate})
	}
	return steps
}

// mastersRows are the names of what the steps measure.
func (cfg *Config) mastersRows() (rows []string) {
	if cfg.Only != OnlyStream {
		rows = append(rows, floorPushed, floorDrained, bulkPush, drain100, drain1)
	}
	if cfg.Only != OnlyDrain {
		rows = append(rows, streamOnBoth)
	}
	return rows
}

// floorOnMasters is a step: what differs there between a cluster and a single server is none of
// lowkiq's.
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

// pushAndDrain is a step. Of the two that push, one counts.
func (b *bench) pushAndDrain(batch int) func(context.Context, *Server, func(string, float64)) error {
	return func(ctx context.Context, _ *Server, note func(string, float64)) error {
		var rate float64
		before, pushed, err := b.pushAll(ctx, func(_ string, value float64) { rate = value })
		if err != nil {
			return err
		}
		d, err := b.drain(ctx, node.QueueConfig{BatchSize: batch})
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

// saturate is a step: a live stream in a closed loop.
func (b *bench) saturate(ctx context.Context, _ *Server, note func(string, float64)) error {
	return b.live(ctx, node.QueueConfig{Shards: b.cfg.Shards}, func(ctx context.Context, through *Stream) error {
		figures, err := through.Measure(ctx, Saturation, b.cfg.StreamFor)
		if err != nil {
			return err
		}
		b.noteUsage(note, streamOnBoth, through.jobs, figures.PerSecond, through.used)
		return nil
	})
}

// noteUsage notes what a row is made of.
func (b *bench) noteUsage(note func(string, float64), what string, jobs int, rate float64, used Usage) {
	note(what+"/per_s", rate)
	note(what+"/redis_us_per_job", float64(used.CPU.Microseconds())/float64(jobs))
	note(what+"/scripts_per_job", float64(used.Scripts)/float64(jobs))
	note(what+"/busiest_to_mean", float64(slices.Max(used.Each))*float64(len(used.Each))/float64(used.CPU))
}

// runMasters measures each step on the single server and on the cluster, one after the other: the
// machine drifts less between the two than between rounds. They take turns to be the first.
func (b *bench) runMasters(ctx context.Context) (*Masters, error) {
	on, err := openCluster(ctx, b.cfg.Masters)
	if err != nil {
		return nil, err
	}
	defer on.close() //nolint:errcheck // it is private, and has ended
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
		if err := sides[side].measure(ctx, step, sides[side].got); err != nil {
			return nil, err
		}
		if err := sides[side].on.empty(ctx); err != nil { // the other one has the memory to itself
			return nil, err
		}
	}
	b.cfg.Progress("done", 1)
	m := &Masters{Masters: b.cfg.Masters}
	for _, what := range b.cfg.mastersRows() {
		m.Rows = append(m.Rows, MastersRow{
			What: what, Single: b.got.mastersFigures(what), Cluster: cluster.got.mastersFigures(what),
			Ratio:   ratios(cluster.got[what+"/redis_us_per_job"], b.got[what+"/redis_us_per_job"]),
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
	client, err := queue.Open(queue.Config{Redis: b.on.URL})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	of := map[string]int{} // by shard's address
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

func (b *bench) jobsOfShards() []int {
	counts := make([]int, b.cfg.Shards)
	for from := 0; from < b.cfg.Jobs; from += pushBatch {
		for _, job := range makeJobs(from, min(from+pushBatch, b.cfg.Jobs)) {
			counts[lowkiq.ShardOf(job.ID, b.cfg.Shards)]++
		}
	}
	return counts
}

// mostOverSingle is the goal: what a cluster may take of Redis's CPU, beside a single server.
const mostOverSingle = 1.10

// figure names the row in goals.
func (row *MastersRow) figure() string { return "masters/" + row.What + "/redis_us_per_job_ratio" }

func (m *Masters) goals() (all []Goal) {
	for i := range m.Rows {
		switch row := &m.Rows[i]; row.What { // in a stream one script for many shards is a single server's alone
		case bulkPush, drain100, drain1:
			all = append(all, Goal{row.figure(), fmt.Sprintf("<= %g", mostOverSingle), row.Ratio <= mostOverSingle})
		}
	}
	return all
}

// mastersTable has a line for each row.
func (r *Report) mastersTable(out *strings.Builder) {
	m := r.ByMasters
	format := "%-26s %12s %12s %10s %10s   %-8s  %s\n"
	fmt.Fprintf(out, format, "Redis CPU per job, us", "1 server", fmt.Sprintf("%d masters", m.Masters), "ratio", "busiest", "goal", "")
	for i := range m.Rows {
		row := &m.Rows[i]
		want, verdict := r.verdict(row.figure())
		fmt.Fprintf(out, format, row.What, number(row.Single.RedisCPU), number(row.Cluster.RedisCPU), number(row.Ratio), number(row.Busiest), want, verdict)
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
			fmt.Fprintf(out, format, row.What, number(part.value(&row.Single)), number(part.value(&row.Cluster)), "", "", "", "")
		}
	}
	jobs := make([]string, len(m.Jobs))
	most, sum := 0, 0
	for i, n := range m.Jobs {
		jobs[i] = number(float64(n))
		most, sum = max(most, n), sum+n
	}
	fmt.Fprintf(out, mastersNotes, strings.Join(jobs, ", "), number(float64(most*len(jobs))/float64(sum)))
}

const mastersNotes = `
Ratio: CPU of all masters together to that of a single server in the same round. Busiest: CPU of the busiest master to the mean of the masters.
Jobs of the queue by master, as its shards' hash tags fall: %s; the most to the mean is %s.
`
