package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Config says what to measure. The zero value of a field is its default.
type Config struct {
	// Redis is the URL of a single Redis, which Run empties, all databases. Default: a
	// private redis-server without persistence, on a free port.
	Redis  string
	Jobs   int // unique ids, at least 1,000. Default 100,000
	Shards int // of the queue. Default 5
	Rounds int // the figures are their medians. Default 3
	// Idle also watches a node with 1,000 idle shards, once, for a minute.
	Idle bool
	// Only is what is measured of lowkiq: OnlyDrain, OnlyStream, or, by default, all.
	Only string
	// Masters compares a private Redis Cluster of so many masters, without replicas, with a private
	// single server, at the same shards, and measures nothing else: 2 to 32.
	Masters int
	// StreamShards are the numbers of shards with which a live stream is measured, and
	// StreamFor how long each load lasts. Defaults 5, 50, 500 and 1.2 s
	StreamShards []int
	StreamFor    time.Duration
	// Steps are measured in every round after lowkiq's own.
	Steps []Step
	// Progress is told what is measured next, and how far the whole is (0 to 1).
	Progress func(what string, done float64)

	// How long the idle node settles, and is watched then. Polls double from 1 s to 60 s
	// after 10 s without work: 30 s later a shard is looked at about once in half a minute.
	settle, watch time.Duration
	samples       int // of the time from push to start, per round

	lanes int           // shard_concurrency of drains; 0: a node's default
	takes time.Duration // a handler call of drains
}

// Values of Config.Only.
const (
	OnlyDrain  = "drain"  // pushes, drains, memory, push to start; beside the floor
	OnlyStream = "stream" // jobs that are handled while others are pushed
)

// Step is one measurement of a round. It begins with an empty Redis. What it notes under
// a name, one value per round, is reported as the median of the rounds.
type Step struct {
	Name string
	Run  func(ctx context.Context, on *Server, note func(figure string, value float64)) error
}

const minJobs = 1000 // fewer say nothing

// mostMasters are processes that a machine can start.
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

// Validate says what is wrong with the configuration.
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
		errs = append(errs, fmt.Errorf("an idle node is no part of %s", OnlyStream))
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
		_, err := options(cfg.Redis)
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
		return errors.New("masters are private processes: name no redis")
	case cfg.Idle || len(cfg.Steps) > 0:
		return errors.New("neither an idle node nor other steps are measured with masters")
	}
	return nil
}
