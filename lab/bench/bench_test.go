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

// tiny is a run that proves that every figure is measured, not what it is.
func tiny() Config {
	return Config{Jobs: 2000, Shards: 3, Rounds: 1, samples: 20, StreamShards: []int{3, 50}, StreamFor: 50 * time.Millisecond,
		settle: time.Millisecond, watch: 50 * time.Millisecond}
}

func TestRun(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	var progress []float64
	var steps []string
	cfg := tiny()
	cfg.Idle = true
	cfg.Progress = func(what string, done float64) { steps, progress = append(steps, what), append(progress, done) }
	cfg.Steps = []Step{{"other", func(ctx context.Context, on *Server, note func(string, float64)) error {
		used, err := on.Usage(ctx)
		note("other_commands", float64(used.Commands))
		note("start_p50_ms", 1e6) // a name of lowkiq's own
		return err
	}}}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name    string
		figures *Figures
	}{{"lowkiq", &r.Figures}, {"floor", &r.Floor}, {"ratio", &r.ToFloor}} {
		for _, f := range part.figures.listFigures() {
			// The floor has no calls and no journal.
			if *f.value <= 0 != (part.name != "lowkiq" && (strings.HasPrefix(f.name, "call") || strings.Contains(f.name, "journal"))) {
				t.Errorf("%s of %s: got %v, want > 0", f.name, part.name, *f.value)
			}
		}
	}
	if r.Idle == nil || r.Idle.Commands <= 0 || r.Idle.CPUPercent <= 0 {
		t.Errorf("idle: got %+v, want both > 0", r.Idle)
	}
	if len(r.Steps) != 2 || r.Steps["other_commands"] <= 0 || r.Steps["start_p50_ms"] != 1e6 || r.StartP50 >= 1e5 {
		t.Errorf("steps: got %v beside %+v, want their own two figures", r.Steps, r.Figures)
	}
	if !slices.IsSorted(progress) || progress[0] != 0 || progress[len(progress)-1] != 1 || !slices.Contains(steps, "other") {
		t.Errorf("progress: got %v of %q, want 0 to 1 rising, with the step", progress, steps)
	}
	if len(r.Stream) != 2*4+2 {
		t.Errorf("stream: got %d loads, want 4 for each number of shards and 2 beside slow ones", len(r.Stream))
	}
	for i := range r.Stream {
		for _, f := range r.Stream[i].listFigures() {
			if *f.value <= 0 != (f.name == "late_p99_ms" && r.Stream[i].Load == "saturation") {
				t.Errorf("%s: got %v, want > 0 but for how late a closed loop is", r.Stream[i].figureName(f.name), *f.value)
			}
		}
	}
	if len(r.Goals) != 20 {
		t.Errorf("goals: got %d, want all 13 and 7 of the stream: %v", len(r.Goals), r.Goals)
	}
}

// The names are what scripts read; add, never rename.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Report{})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	floor, _ := got["floor"].(map[string]any)
	ratio, _ := got["to_floor"].(map[string]any)
	for _, name := range []string{
		"push_bulk_per_s", "push_single50_per_s", "drain_batch1_per_s", "drain_batch100_per_s", "start_p50_ms", "start_p99_ms", "call_p50_ms", "calls_per_s",
		"drain_journal_per_s", "redis_us_per_job_journal", "journal_bytes_per_run", "redis_us_per_job_push", "redis_us_per_job_drain", "redis_bytes_per_job", "allocs_per_job",
	} {
		for where, object := range map[string]map[string]any{"report": got, "floor": floor, "to_floor": ratio} {
			if _, ok := object[name]; !ok {
				t.Errorf("%s lacks %s: %s", where, name, text)
			}
		}
	}
	load, _ := json.Marshal(StreamRow{})
	for _, name := range []string{"shards", "shard_concurrency", "load", "per_s", "p50_ms", "p99_ms", "p999_ms", "scripts_per_job",
		"redis_us_per_job", "late_p99_ms"} {
		if !strings.Contains(string(load), `"`+name+`":`) {
			t.Errorf("a load lacks %s: %s", name, load)
		}
	}
	var figures Figures
	text, _ = json.Marshal(figures)
	for _, f := range figures.listFigures() {
		if !strings.Contains(string(text), `"`+f.name+`"`) {
			t.Errorf("figure %s has another name in %s", f.name, text)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"few jobs", Config{Jobs: 10}, "jobs is 10, want at least 1000"},
		{"negative shards", Config{Shards: -1}, "shards is -1, want 1 to"},
		{"negative rounds", Config{Rounds: -1}, "rounds is -1, want at least 1"},
		{"an unknown part", Config{Only: "push"}, `only is "push", want drain or stream`},
		{"idle beside a stream", Config{Only: OnlyStream, Idle: true}, "an idle node is not part of stream"},
		{"stream without shards", Config{StreamShards: []int{0}}, "shards is 0, want 1 to"},
		{"no single redis", Config{Redis: "redis+cluster://a:1"}, "bench needs a single Redis"},
		{"nobody there", Config{Redis: "redis://127.0.0.1:1/0"}, "redis 127.0.0.1:1: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Run(t.Context(), c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// A part alone measures nothing of the other, and holds nothing of it against a goal.
func TestRunOnly(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, c := range []struct {
		only           string
		loads, figures bool
	}{{OnlyDrain, false, true}, {OnlyStream, true, false}} {
		t.Run(c.only, func(t *testing.T) {
			t.Parallel()
			cfg := tiny()
			cfg.Only, cfg.StreamShards = c.only, []int{5}
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := len(r.Stream) > 0; got != c.loads {
				t.Errorf("got %d loads, want some: %v", len(r.Stream), c.loads)
			}
			if got := r.PushBulk > 0; got != c.figures {
				t.Errorf("got push_bulk_per_s %v, want it measured: %v", r.PushBulk, c.figures)
			}
			for _, g := range r.Goals {
				if strings.HasPrefix(g.Figure, "stream/") != c.loads {
					t.Errorf("got a goal for %s, which was not measured", g.Figure)
				}
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	tier.All(t)
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cfg := tiny()
	cfg.Progress = func(what string, _ float64) {
		if strings.HasPrefix(what, "push to start") {
			cancel()
		}
	}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestStepFails(t *testing.T) {
	tier.All(t)
	t.Parallel()
	broken := errors.New("broken")
	cfg := tiny()
	cfg.Steps = []Step{{"other", func(context.Context, *Server, func(string, float64)) error { return broken }}}
	_, err := Run(t.Context(), cfg)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "other: ") {
		t.Errorf("got %v, want %v of step other", err, broken)
	}
}

// A drain that misses jobs must not look fast.
func TestFloorDrainObjects(t *testing.T) {
	t.Parallel()
	on, err := openServer(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer on.close()
	cfg := tiny().withDefaults()
	b := &bench{cfg: cfg, on: on, got: samples{}}
	f, err := newMinimal(t.Context(), on.rdb, cfg.Shards)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.pushAll(t.Context(), makeJobs(0, cfg.Jobs-1)); err != nil {
		t.Fatal(err)
	}
	_, err = b.floorDrain(t.Context(), f)
	if err == nil || err.Error() != "drained 1999 jobs, want 2000" {
		t.Errorf("got %v, want that one job is missing", err)
	}
}
