package bench

import (
	"context"
	"fmt"
	"runtime"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// Run measures. It empties the given Redis before every measurement and at the end.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	on, err := openServer(ctx, cfg.Redis)
	if err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	defer on.close()
	b := &bench{cfg: cfg, on: on, got: samples{}, others: samples{}}
	var masters *Masters
	if cfg.Masters > 0 {
		masters, err = b.runMasters(ctx)
	} else {
		err = b.runSteps(ctx)
	}
	if err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	return b.buildReport(ctx, masters), nil
}

// bench is a call of [Run].
type bench struct {
	cfg    Config
	on     *Server
	got    samples
	others samples // samples of Config.Steps
}

// payload has 16 bytes, as in the comparison with other systems.
const payload = "0123456789abcdef"

// makeJobs returns some of the jobs of a run. It makes them anew each time: a table of ten million jobs would be a gigabyte
// of pointers, and the garbage collector would follow them during a measurement.
func makeJobs(from, to int) []lowkiq.Push {
	data := []byte(payload)
	text, ends := make([]byte, 0, (to-from)*len("job-1234567")), make([]int, to-from)
	for i := range ends {
		text = strconv.AppendInt(append(text, "job-"...), int64(from+i), 10)
		ends[i] = len(text)
	}
	ids, start := string(text), 0
	jobs := make([]lowkiq.Push, len(ends))
	for i, end := range ends {
		jobs[i] = lowkiq.Push{ID: ids[start:end], Payload: data}
		start = end
	}
	return jobs
}

// runSteps measures every step once per round, and the idle shards once after the last round. It leaves Redis empty.
func (b *bench) runSteps(ctx context.Context) error {
	var steps []Step
	if b.cfg.Only != OnlyStream {
		steps = append(steps,
			Step{"floor", b.measureFloor},
			Step{"bulk push, drain at batch 100", b.batch100},
			Step{"drain at batch 100 with journal: all", b.measureJournal},
			Step{"bulk push, drain at batch 1", b.batch1},
			Step{"50 goroutines push one by one", b.measureSingle},
			Step{"push to start on an idle node", b.measureStart},
			Step{"calls", b.measureCalls})
	}
	if b.cfg.Only != OnlyDrain {
		steps = append(steps, b.streamSteps()...)
	}
	steps = append(steps, b.cfg.Steps...)
	total := b.cfg.Rounds * len(steps)
	if b.cfg.Idle {
		total++
	}
	for done := range b.cfg.Rounds * len(steps) {
		i := done % len(steps)
		b.cfg.Progress(steps[i].Name, float64(done)/float64(total))
		got := b.got
		if i >= len(steps)-len(b.cfg.Steps) {
			got = b.others
		}
		if err := b.measureStep(ctx, steps[i], got); err != nil {
			return err
		}
	}
	if b.cfg.Idle {
		b.cfg.Progress("1,000 idle shards", float64(total-1)/float64(total))
		if err := b.measureStep(ctx, Step{"1,000 idle shards", b.measureIdle}, b.got); err != nil {
			return err
		}
	}
	b.cfg.Progress("done", 1)
	return b.on.flushAll(ctx)
}

// measureStep runs a step on an empty Redis. It first collects the garbage of the steps before.
func (b *bench) measureStep(ctx context.Context, s Step, got samples) error {
	if err := b.on.flushAll(ctx); err != nil {
		return err
	}
	runtime.GC()
	if err := s.Run(ctx, b.on, got.note); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}
