package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Config says what to measure. The zero value of a field stands for its default.
type Config struct {
	// Redis is the URL of a single Redis. Run empties all its databases. Default: a private redis-server without
	// persistence, on a free port.
	Redis  string
	Jobs   int // unique ids, at least 1,000. Default: 100,000
	Shards int // shards of the queue. Default: 5
	Rounds int // the figures are medians of the rounds. Default: 3
	// Idle also watches a node with 1,000 idle shards for a minute, once.
	Idle bool
	// Only limits the measurements of lowkiq to OnlyDrain or OnlyStream. Default: all.
	Only string
	// Masters compares a private Redis Cluster of this many masters (2 to 32), without replicas, with a private single
	// server at the same shards. Nothing else is measured then.
	Masters int
	// StreamShards are the shard counts of the live streams, and StreamFor is the time of each load. Defaults: 5, 50, 500,
	// and 1.2 s.
	StreamShards []int
	StreamFor    time.Duration
	// Steps are measured in every round after the steps of lowkiq.
	Steps []Step
	// Progress is called with the name of the next measurement and the part of the whole that is done (0 to 1).
	Progress func(what string, done float64)

	// settle is the time before the idle node is watched, and watch the time of watching. The time between two polls of an
	// idle shard doubles from 1 s to 60 s, beginning 10 s after its last work. After 30 s more a shard is polled about once
	// in half a minute.
	settle, watch time.Duration
	samples       int // samples of the time from push to start, per round

	lanes int           // shard_concurrency of drains; 0 is the default of a node
	takes time.Duration // the duration of a handler call in drains
}

// Values of Config.Only.
const (
	OnlyDrain  = "drain"  // pushes, drains, memory, push to start, with the floor
	OnlyStream = "stream" // jobs that are handled while others are pushed
)

// Step is a measurement of a round. It begins with an empty Redis. It notes a value per round under the name of a figure.
// The report has the median of the rounds.
type Step struct {
	Name string
	Run  func(ctx context.Context, on *Server, note func(figure string, value float64)) error
}

const minJobs = 1000 // fewer jobs give no useful figures

// mostMasters is the maximum number of masters, which are processes of this machine.
const mostMasters = 32

func (cfg Config) withDefaults() Config {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&cfg.Jobs, 100_000)
	set(&cfg.Shards, 5)
	set(&cfg.Rounds, 3)
	set(&cfg.samples, 500)
	if cfg.StreamShards == nil {
		cfg.StreamShards = []int{5, 50, 500}
	}
	if cfg.StreamFor == 0 {
		cfg.StreamFor = 1200 * time.Millisecond
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, float64) {}
	}
	if cfg.settle == 0 {
		cfg.settle = 30 * time.Second
	}
	if cfg.watch == 0 {
		cfg.watch = 30 * time.Second
	}
	return cfg
}

// Validate returns all errors of the configuration.
func (cfg Config) Validate() error {
	cfg = cfg.withDefaults()
	var errs []error
	if cfg.Jobs < minJobs {
		errs = append(errs, fmt.Errorf("jobs is %d, want at least %d", cfg.Jobs, minJobs))
	}
	if cfg.Only != "" && cfg.Only != OnlyDrain && cfg.Only != OnlyStream {
		errs = append(errs, fmt.Errorf("only is %q, want %s or %s", cfg.Only, OnlyDrain, OnlyStream))
	}
	if cfg.Only == OnlyStream && cfg.Idle {
		errs = append(errs, fmt.Errorf("an idle node is not part of %s", OnlyStream))
	}
	for _, shards := range append([]int{cfg.Shards}, cfg.StreamShards...) {
		if shards < 1 || shards > lowkiq.MaxShards {
			errs = append(errs, fmt.Errorf("shards is %d, want 1 to %d", shards, lowkiq.MaxShards))
		}
	}
	errs = append(errs, cfg.validateMasters())
	if cfg.Rounds < 1 {
		errs = append(errs, fmt.Errorf("rounds is %d, want at least 1", cfg.Rounds))
	}
	if cfg.Redis != "" {
		_, err := redisOptions(cfg.Redis)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (cfg *Config) validateMasters() error {
	switch {
	case cfg.Masters == 0:
		return nil
	case cfg.Masters < 2 || cfg.Masters > mostMasters:
		return fmt.Errorf("masters is %d, want 2 to %d", cfg.Masters, mostMasters)
	case cfg.Redis != "":
		return errors.New("masters are private processes, so redis must not be set")
	case cfg.Idle || len(cfg.Steps) > 0:
		return errors.New("with masters, an idle node and other steps are not measured")
	}
	return nil
}
