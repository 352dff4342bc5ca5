package bench

import (
	"context"
	"fmt"
	"runtime"
	"strconv"

	"github.com/lowkiq/lowkiq"
)

// Run measures. It empties the Redis it is given, before every measurement and at the end.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	on, err := open(ctx, cfg.Redis)
	if err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	defer on.close()
	b := &bench{cfg: cfg, on: on, got: samples{}, others: samples{}}
	var masters *Masters
	if cfg.Masters > 0 {
		masters, err = b.runMasters(ctx)
	} else {
		err = b.run(ctx)
	}
	if err != nil {
		return Report{}, fmt.Errorf("bench: %w", err)
	}
	return b.report(ctx, masters), nil
}

// bench is one run.
type bench struct {
	cfg    Config
	on     *Server
	got    samples
	others samples // of Config.Steps
}

// payload is 16 bytes, as in the comparison with other systems.
const payload = "0123456789abcdef"

// makeJobs makes some of a run's jobs, each time anew: a table of ten million would be a gigabyte of
// pointers, which the collector would follow while others are measured.
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

func (b *bench) run(ctx context.Context) error {
	var steps []Step
	if b.cfg.Only != OnlyStream {
		steps = append(steps,
			Step{"floor", b.floor},
			Step{"bulk push, drain at batch 100", b.batch100},
			Step{"drain at batch 100 with journal: all", b.journal},
			Step{"bulk push, drain at batch 1", b.batch1},
			Step{"50 goroutines push one by one", b.single},
			Step{"push to start on an idle node", b.start},
			Step{"calls", b.calls})
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
		if err := b.measure(ctx, steps[i], got); err != nil {
			return err
		}
	}
	if b.cfg.Idle {
		b.cfg.Progress("1,000 idle shards", float64(total-1)/float64(total))
		if err := b.measure(ctx, Step{"1,000 idle shards", b.idle}, b.got); err != nil {
			return err
		}
	}
	b.cfg.Progress("done", 1)
	return b.on.empty(ctx)
}

// measure does one step on an empty Redis, with the garbage of the steps before collected.
func (b *bench) measure(ctx context.Context, s Step, got samples) error {
	if err := b.on.empty(ctx); err != nil {
		return err
	}
	runtime.GC()
	if err := s.Run(ctx, b.on, got.note); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}
