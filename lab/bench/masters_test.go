package bench

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// Every figure is measured on a single server and on a cluster, in turns.
func TestMasters(t *testing.T) {
	tier.All(t)
	t.Parallel()
	cfg := tiny()
	cfg.Masters, cfg.Shards = 3, 50
	var steps []string
	cfg.Progress = func(what string, _ float64) { steps = append(steps, what) }
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := r.ByMasters
	if m == nil || m.Masters != 3 || len(m.Rows) != len(cfg.mastersRows()) {
		t.Fatalf("got %+v, want rows %q of 3 masters", m, cfg.mastersRows())
	}
	for _, row := range m.Rows {
		for _, f := range []MastersFigures{row.Single, row.Cluster} {
			if f.RedisCPU <= 0 || f.Scripts <= 0 || f.PerSecond <= 0 {
				t.Errorf("%s: got %+v, want all > 0", row.What, row)
			}
		}
		if row.Ratio <= 0 || row.Busiest < 1 || row.Busiest > 3 {
			t.Errorf("%s: got ratio %v and busiest %v, want > 0 and 1 to 3", row.What, row.Ratio, row.Busiest)
		}
	}
	sum := 0
	for _, n := range m.Jobs {
		sum += n
	}
	if len(m.Jobs) != 3 || sum != cfg.Jobs || !slices.IsSortedFunc(m.Jobs, func(x, y int) int { return y - x }) {
		t.Errorf("got jobs %v, want %d on 3 masters, the most first", m.Jobs, cfg.Jobs)
	}
	if m.Jobs[0]*3 > sum*6/5 {
		t.Errorf("got jobs %v, want them spread evenly, as shards are", m.Jobs)
	}
	if len(steps) < 4 || steps[0] != "1 server: floor" || steps[1] != "3 masters: floor" {
		t.Errorf("got steps %q, want each on one server, then on three", steps)
	}
	if len(r.Stream) != 0 || r.PushBulk != 0 {
		t.Errorf("got figures of another measurement: %+v", r)
	}
	if len(r.Goals) != 3 {
		t.Errorf("got goals %v, want those of the push and of two drains", r.Goals)
	}
	var table strings.Builder
	if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "3 masters") {
		t.Errorf("got table %q, %v", table.String(), err)
	}
}

// Parts are measured alone, as without masters.
func TestMastersOnly(t *testing.T) {
	t.Parallel()
	cfg := Config{Only: OnlyStream}
	if got := cfg.mastersRows(); !slices.Equal(got, []string{streamOnBoth}) {
		t.Errorf("got %q, want the stream alone", got)
	}
	cfg.Only = OnlyDrain
	if got := cfg.mastersRows(); len(got) != 5 || slices.Contains(got, streamOnBoth) {
		t.Errorf("got %q, want all but the stream", got)
	}
}

func TestMastersRefuses(t *testing.T) {
	t.Parallel()
	step := Step{"other", func(context.Context, *Server, func(string, float64)) error { return nil }}
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"one", Config{Masters: 1}, "masters is 1, want 2 to 32"},
		{"negative", Config{Masters: -3}, "masters is -3, want 2 to 32"},
		{"too many", Config{Masters: 33}, "masters is 33, want 2 to 32"},
		{"another redis", Config{Masters: 3, Redis: "redis://127.0.0.1:1/0"}, "masters are private processes"},
		{"idle", Config{Masters: 3, Idle: true}, "an idle node and other steps are not measured"},
		{"steps", Config{Masters: 3, Steps: []Step{step}}, "an idle node and other steps are not measured"},
	} {
		if err := c.cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

// A run that is interrupted leaves no process behind: goleak sees who waits for one.
func TestMastersEndsWithItsContext(t *testing.T) {
	tier.All(t)
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cfg := tiny()
	cfg.Masters = 2
	cfg.Progress = func(what string, _ float64) {
		if strings.HasPrefix(what, "2 masters") {
			cancel()
		}
	}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// goleak again: a cluster that does not come about leaves nothing.
func TestMastersThatDoNotForm(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := openCluster(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestUsageSince(t *testing.T) {
	t.Parallel()
	before := Usage{CPU: 5, Each: []time.Duration{2, 3}, Bytes: 7, Commands: 10, Scripts: 1}
	after := Usage{CPU: 9, Each: []time.Duration{5, 4}, Bytes: 6, Commands: 30, Scripts: 4}
	got := after.since(before)
	if got.CPU != 4 || !slices.Equal(got.Each, []time.Duration{3, 1}) || got.Bytes != -1 || got.Commands != 20 || got.Scripts != 3 {
		t.Errorf("got %+v", got)
	}
	noted := samples{}
	new(bench).noteUsage(noted.note, "x", 4, 2, Usage{CPU: 4 * time.Millisecond,
		Each: []time.Duration{3 * time.Millisecond, time.Millisecond}, Scripts: 2})
	want := map[string]float64{"x/per_s": 2, "x/redis_us_per_job": 1000, "x/scripts_per_job": 0.5, "x/busiest_to_mean": 1.5}
	for name, value := range want {
		if got := noted.median(name); got != value {
			t.Errorf("%s: got %v, want %v", name, got, value)
		}
	}
}

func sampleMasters() Report {
	r := sample()
	r.Figures, r.Floor, r.ToFloor, r.Shards = Figures{}, Figures{}, Figures{}, 50
	r.ByMasters = &Masters{Masters: 3, Jobs: []int{42_000, 30_000, 28_000}, Rows: []MastersRow{
		{floorPushed, MastersFigures{1.1, 0.01, 900_000}, MastersFigures{1.2, 0.01, 1_000_000}, 1.09, 1.1},
		{bulkPush, MastersFigures{1.8, 0.01, 500_000}, MastersFigures{1.9, 0.01, 600_000}, 1.05, 1.2},
		{drain1, MastersFigures{1.9, 0.02, 300_000}, MastersFigures{2.3, 0.02, 310_000}, 1.21, 1.25},
		{streamOnBoth, MastersFigures{24.1, 0.17, 30_000}, MastersFigures{51.2, 1.15, 21_000}, 2.13, 1.2},
	}}
	r.Goals = reportGoals(&r)
	return r
}

const wantMasters = `100,000 jobs of 16 bytes, 50 shards; medians of 3 rounds; 2 cores, shared with Redis 7.0.15 if it runs here

Redis CPU per job, us          1 server    3 masters      ratio    busiest   goal
floor: bulk push                   1.10         1.20       1.09       1.10
bulk push                          1.80         1.90       1.05       1.20   <= 1.1    reached
drain at batch 1                   1.90         2.30       1.21       1.25   <= 1.1    NOT REACHED
live stream, saturation            24.1         51.2       2.13       1.20

scripts per job
floor: bulk push                   0.01         0.01
bulk push                          0.01         0.01
drain at batch 1                   0.02         0.02
live stream, saturation            0.17         1.15

jobs/s
floor: bulk push                900,000    1,000,000
bulk push                       500,000      600,000
drain at batch 1                300,000      310,000
live stream, saturation          30,000       21,000

Ratio: CPU of all masters together to that of a single server in the same round. Busiest: CPU of the busiest master to the mean of the masters.
Jobs of the queue by master, as its shards' hash tags fall: 42,000, 30,000, 28,000; the most to the mean is 1.26.
`

func TestMastersTable(t *testing.T) {
	t.Parallel()
	r := sampleMasters()
	var got strings.Builder
	if err := r.Table(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != wantMasters {
		t.Errorf("got\n%s\nwant\n%s", got.String(), wantMasters)
	}
}

// The names are what scripts read; add, never rename.
func TestMastersJSON(t *testing.T) {
	t.Parallel()
	r := sampleMasters()
	text, err := json.Marshal(r.ByMasters)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"masters":3,"jobs_of_each":[42000,30000,28000],"rows":[{"what":"floor: bulk push",` +
		`"single":{"redis_us_per_job":1.1,"scripts_per_job":0.01,"per_s":900000},"cluster":{"redis_us_per_job":1.2,"scripts_per_job":0.01,"per_s":1000000},` +
		`"redis_us_per_job_ratio":1.09,"busiest_to_mean":1.1},`
	if !strings.HasPrefix(string(text), want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", text, want)
	}
}

// A part of the jobs is the same part of them, however they are cut.
func TestMakeJobs(t *testing.T) { // not parallel: it counts allocations
	all := makeJobs(0, 1200)
	if all[0].ID != "job-0" || all[1199].ID != "job-1199" || string(all[7].Payload) != payload {
		t.Errorf("got %v and %v, want job-0 and job-1199 with the payload", all[0], all[1199])
	}
	for from := 0; from < len(all); from += 500 {
		for i, job := range makeJobs(from, min(from+500, len(all))) {
			if job.ID != all[from+i].ID {
				t.Errorf("from %d: job %d is %q, want %q", from, i, job.ID, all[from+i].ID)
			}
		}
	}
	if allocs := testing.AllocsPerRun(3, func() { makeJobs(9_000_000, 9_001_000) }); allocs > 6 {
		t.Errorf("got %v allocations for 1,000 jobs, want few: ten million are made", allocs)
	}
}
