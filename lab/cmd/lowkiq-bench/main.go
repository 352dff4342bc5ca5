// Command lowkiq-bench measures speed on a private redis-server, and the floor. Package bench measures. This command reads
// flags and prints.
//
// Exit codes: 0 ok, 1 failed while running, 3 Redis is unreachable, 64 usage, 130 interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/lab/bench"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

const (
	exitFailed      = 1
	exitUnreachable = 3
	exitUsage       = 64
	exitInterrupted = 130
)

type flags struct {
	Jobs   []int `default:"100000" placeholder:"N,…" help:"Unique ids (${default}). Every number of jobs is measured with every number of shards."`
	Shards []int `default:"5" placeholder:"N,…" help:"Shards of the queue (${default})."`
	Rounds int   `default:"3" placeholder:"N" help:"Number of rounds (${default}). The figures are medians of the rounds."`
	// LOWKIQ_REDIS is not read, because that Redis has jobs.
	Redis      string `placeholder:"URL" help:"Measure with this Redis, which is emptied and therefore needs --flush. Default: a private redis-server without persistence."`
	Flush      bool   `help:"Empty the Redis of --redis, all databases."`
	Only       string `enum:"all,drain,stream" default:"all" placeholder:"PART" help:"Measure only drain (a queue that is filled, then drained) or only stream (jobs that are handled while others are pushed: 5, 50 and 500 shards, whatever --shards says). Default: all."`
	Masters    int    `placeholder:"N" help:"Compare a private Redis Cluster of N masters with a single server at the same shards instead: Redis CPU per job of bulk push, drain and stream, and how evenly the masters share it."`
	Idle       bool   `help:"Also watch a node with 1,000 idle shards, for a minute."`
	Output     string `short:"o" enum:"table,json" default:"table" help:"table, or json with a line for each measurement."`
	CPUProfile string `name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile of this process."`
}

const description = `Measures pushes, drains, latency, memory and allocations, and the floor: two minimal scripts without checks. Machines drift: compare ratios to the floor.

Examples:

    lowkiq-bench --jobs 100000,1000000 --shards 5,50
    lowkiq-bench --redis redis://10.0.0.1:6379/0 --flush -o json
    lowkiq-bench --masters 3 --shards 50

Exit codes: 0 ok, 1 failed while running, 3 Redis is unreachable, 64 usage, 130 interrupted.`

func main() {
	var f flags
	parser := kong.Must(&f, kong.Name("lowkiq-bench"), kong.Description(description))
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		exitWith(exitUsage, err)
	}
	combinations, err := f.listConfigs()
	if err != nil {
		exitWith(exitUsage, err)
	}
	stopProfile, err := profileTo(f.CPUProfile)
	if err != nil {
		exitWith(exitUsage, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err = errors.Join(f.measureAll(ctx, combinations), stopProfile())
	switch {
	case ctx.Err() != nil:
		exitWith(exitInterrupted, errors.New("interrupted"))
	case errors.Is(err, bench.ErrNoServer), protocol.Unreachable(err):
		exitWith(exitUnreachable, err)
	case err != nil:
		exitWith(exitFailed, err)
	}
}

func exitWith(code int, err error) {
	fmt.Fprintln(os.Stderr, "lowkiq-bench:", err)
	os.Exit(code)
}

// listConfigs returns all combinations of jobs and shards.
func (f *flags) listConfigs() ([]bench.Config, error) {
	switch {
	case f.Redis != "" && !f.Flush:
		return nil, fmt.Errorf("redis %s would be emptied; give --flush if its data is not needed", redisdb.MaskURL(f.Redis))
	case f.Redis == "" && f.Flush:
		return nil, errors.New("--flush needs --redis")
	case f.Only == bench.OnlyStream && f.Masters == 0 && (len(f.Jobs) > 1 || len(f.Shards) > 1):
		return nil, errors.New("--only stream has its own numbers of jobs and shards, and takes neither --jobs nor --shards")
	}
	only := f.Only
	if only == "all" {
		only = ""
	}
	var all []bench.Config
	for _, jobs := range f.Jobs {
		for _, shards := range f.Shards {
			if jobs == 0 || shards == 0 || f.Rounds == 0 {
				return nil, errors.New("jobs, shards and rounds must not be 0")
			}
			cfg := bench.Config{Redis: f.Redis, Jobs: jobs, Shards: shards, Rounds: f.Rounds, Idle: f.Idle && len(all) == 0, Only: only, Masters: f.Masters}
			if len(all) > 0 && only == "" && f.Masters == 0 {
				cfg.Only = bench.OnlyDrain // a stream has its own shard counts and is measured once
			}
			if err := cfg.Validate(); err != nil {
				return nil, err
			}
			all = append(all, cfg)
		}
	}
	return all, nil
}

// measureAll measures every combination and prints each when it ends.
func (f *flags) measureAll(ctx context.Context, combinations []bench.Config) error {
	progress := func(string, float64) {}
	clear := func() {}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		bar := progressbar.NewOptions(100, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
		progress = func(what string, done float64) {
			bar.Describe(what)
			bar.Set(int(100 * done)) //nolint:errcheck // a picture
		}
		clear = func() { bar.Clear() } //nolint:errcheck // a picture
	}
	defer clear()
	for i, cfg := range combinations {
		cfg.Progress = func(what string, done float64) { progress(what, (float64(i)+done)/float64(len(combinations))) }
		report, err := bench.Run(ctx, cfg)
		if err != nil {
			return err
		}
		clear()
		if err := f.printReport(&report, i > 0); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) printReport(report *bench.Report, more bool) error {
	if f.Output == "json" {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	if more {
		fmt.Println()
	}
	return report.Table(os.Stdout)
}

// profileTo starts a CPU profile if a file is named. stop ends and closes it.
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
