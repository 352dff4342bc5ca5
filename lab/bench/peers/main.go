package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/lab/bench"
)

func main() {
	jobs := flag.Int("jobs", 100_000, "jobs of each system and round")
	shards := flag.Int("shards", 5, "shards of lowkiq's queue")
	rounds := flag.Int("rounds", 3, "rounds; the figures are their medians")
	only := flag.String("only", "", "measure only drain, or only stream")
	output := flag.String("o", "table", "table or json")
	flag.Parse()
	if *output != "table" && *output != "json" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(64) // EX_USAGE
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := bench.Config{Jobs: *jobs, Shards: *shards, Rounds: *rounds, Only: *only, StreamShards: []int{streamShards},
		Progress: func(what string, done float64) {
			fmt.Fprintf(os.Stderr, "%3.0f %%  %s\n", 100*done, what)
		}}
	r := rival{jobs: *jobs, samples: 30, pause: time.Second, streamFor: 1200 * time.Millisecond}
	if err := run(ctx, os.Stdout, cfg, r, *output); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

// run measures and prints.
func run(ctx context.Context, w io.Writer, cfg bench.Config, r rival, output string) error {
	cfg.Steps = r.steps(cfg.Only)
	report, err := bench.Run(ctx, cfg)
	if err != nil {
		return err
	}
	c := compare(report)
	if output == "table" {
		return c.table(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(c)
}
