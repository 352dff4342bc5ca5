package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"

	"github.com/lowkiq/lowkiq/bench"
	"github.com/lowkiq/lowkiq/queue"
)

type benchCommand struct {
	Jobs   []int `default:"100000" placeholder:"N,…" help:"Unique ids (${default}). Every number is measured with every number of shards."`
	Shards []int `default:"5" placeholder:"N,…" help:"Shards of the queue (${default})."`
	Rounds int   `default:"3" placeholder:"N" help:"Rounds; the figures are their medians (${default})."`
	// Not from LOWKIQ_REDIS: that one has jobs in it.
	Redis      string `placeholder:"URL" help:"Measure with this Redis, which is emptied: asks for --flush. Default: a private redis-server without persistence."`
	Flush      bool   `help:"Empty the Redis of --redis, all databases."`
	Idle       bool   `help:"Also watch a node with 1,000 idle shards; takes a minute."`
	Output     string `short:"o" enum:"table,json" default:"table" help:"table or json: one line with one object per measurement."`
	CPUProfile string `name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile of this process."`
}

func (*benchCommand) Help() string {
	return "Measures pushes, drains, latency, memory and allocations, and the floor: two minimal scripts without checks. Machines drift: compare ratios to the floor.\n\nExamples:\n\n" +
		"    lowkiq-node bench --jobs 100000,1000000 --shards 5,50\n    lowkiq-node bench --redis redis://10.0.0.1:6379/0 --flush -o json\n\n" + exitHelp
}

// Run measures every combination and prints each as it ends.
func (c *benchCommand) Run(s *streams) error {
	combinations, err := c.configs()
	if err != nil {
		return &exitError{exitUsage, err}
	}
	stopProfile, err := profileTo(c.CPUProfile)
	if err != nil {
		return fail(exitUsage, "bench: %w", err)
	}
	ctx, stop := underSignals(s.err)
	defer stop()
	err = c.measure(ctx, s, combinations)
	return errors.Join(err, stopProfile())
}

// configs are all combinations of jobs and shards.
func (c *benchCommand) configs() ([]bench.Config, error) {
	switch {
	case c.Redis != "" && !c.Flush:
		return nil, fmt.Errorf("bench: it empties redis %s: say --flush if nothing in it is needed", queue.MaskURL(c.Redis))
	case c.Redis == "" && c.Flush:
		return nil, errors.New("bench: --flush is for the Redis of --redis, and none is named")
	}
	var all []bench.Config
	for _, jobs := range c.Jobs {
		for _, shards := range c.Shards {
			if jobs == 0 || shards == 0 || c.Rounds == 0 {
				return nil, errors.New("bench: jobs, shards and rounds must not be 0")
			}
			cfg := bench.Config{Redis: c.Redis, Jobs: jobs, Shards: shards, Rounds: c.Rounds, Idle: c.Idle && len(all) == 0}
			if err := cfg.Validate(); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			all = append(all, cfg)
		}
	}
	return all, nil
}

func (c *benchCommand) measure(ctx context.Context, s *streams, combinations []bench.Config) error {
	shown := newBar(s.err, 100, "")
	defer shown.clear()
	for i, cfg := range combinations {
		cfg.Progress = func(what string, done float64) { shown.describe(what, (float64(i)+done)/float64(len(combinations))) }
		report, err := bench.Run(ctx, cfg)
		switch {
		case ctx.Err() != nil:
			return fail(exitInterrupted, "bench: interrupted")
		case errors.Is(err, bench.ErrNoServer):
			return &exitError{exitUnreachable, err}
		case err != nil:
			return err
		}
		shown.clear()
		if err := c.print(s, &report, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *benchCommand) print(s *streams, report *bench.Report, before int) error {
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(report)
	}
	if before > 0 {
		fmt.Fprintln(s.out)
	}
	return report.Table(s.out)
}

// profileTo starts a CPU profile, if a file is named. stop ends and closes it.
func profileTo(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
