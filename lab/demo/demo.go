package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/embedded"
	"github.com/lowkiq/lowkiq/lab/demodata"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// Config says how to run the demo.
type Config struct {
	// Worker returns the command line of a worker process with these settings. The process must call RunWorker.
	Worker func(WorkerConfig) []string
	// Limit is the maximum time of the demo, without the end of the last nodes (at most 5 s). Default: 50 s.
	Limit time.Duration
	// Say is called with a line for each event, and Show several times per second with the state of the cluster. The
	// goroutine that called Run calls both.
	Say  func(format string, args ...any)
	Show func(Picture)
}

// Payloads is the number of payloads to handle.
const Payloads = demodata.Count

// firstNodes is the number of nodes at the start.
const firstNodes = 3

var errLimit = errors.New("the demo took too long")

// Run shows the whole demo. The outcome is good if every promise was kept. An error means that there is no outcome.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	if cfg.Limit == 0 {
		cfg.Limit = 50 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Limit, errLimit)
	defer cancel()
	redis, err := embedded.Start()
	if err != nil {
		return Outcome{}, err
	}
	defer redis.Close()
	dir, err := os.MkdirTemp("", "lowkiq-demo-")
	if err != nil {
		return Outcome{}, fmt.Errorf("demo: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "history")
	notes, err := judge.OpenAs(path, "demo")
	if err != nil {
		return Outcome{}, err
	}
	defer notes.Close()
	s := newStage(cfg, WorkerConfig{Redis: redis.URL(), History: path}, notes)
	return s.playActs(ctx)
}

// stage is a demo in progress. Its fields belong to the goroutine of Run, except those that are safe for all.
type stage struct {
	cfg      Config
	settings WorkerConfig
	notes    *judge.Writer
	workers  []*worker // in order of their start
	apis     *apis     // safe for all
	handled  atomic.Int64
	seen     atomic.Pointer[view] // the latest view
	feeder   *feeder
	fed      chan error // receives the result of the feeder
	rate     rate
	now      string // the current event
}

func newStage(cfg Config, settings WorkerConfig, notes *judge.Writer) *stage {
	s := &stage{cfg: cfg, settings: settings, notes: notes, apis: &apis{}, fed: make(chan error, 1)}
	s.seen.Store(&view{})
	s.feeder = &feeder{apis: s.apis, handled: &s.handled, pace: pace}
	s.feeder.allow(acts[0].gate())
	return s
}

// playActs performs the whole demo.
func (s *stage) playActs(ctx context.Context) (outcome Outcome, err error) {
	defer s.killAll()
	ctx, cancel := context.WithCancel(ctx)
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		observeCluster(ctx, s.apis, s.seen.Store)
	}()
	defer func() { cancel(); <-observed }()
	if err := s.startCluster(ctx); err != nil {
		return outcome, err
	}
	stopFeeding := s.startFeeder(ctx)
	defer stopFeeding()
	for i, act := range acts {
		change, err := s.performAct(ctx, act, i)
		if err != nil {
			return outcome, err
		}
		outcome.Changes = append(outcome.Changes, change)
	}
	s.now = "the rest of the stream"
	if err := s.awaitCondition(ctx, "handle the rest", s.feeder.ended.Load); err != nil {
		return outcome, err
	}
	if err := <-s.fed; err != nil {
		return outcome, err
	}
	s.now = "the nodes end"
	s.showPicture()
	cancel()
	<-observed
	if err := s.endWorkers(); err != nil {
		return outcome, err
	}
	outcome.Repeated = s.feeder.repeated
	outcome.Verdict, err = judgeHistory(s.feeder, s.settings.History)
	return outcome, err
}

// startCluster starts the first nodes and waits until they share the shards.
func (s *stage) startCluster(ctx context.Context) error {
	s.cfg.Say("%d changes of %d files flow over HTTP into a cluster of %d nodes.", demodata.Count, demodata.IDs, firstNodes)
	s.cfg.Say("Redis: embedded (miniredis). It is for trying only: its jobs end with this process.")
	began := time.Now()
	for range firstNodes {
		w, err := s.startWorker()
		if err != nil {
			return err
		}
		s.cfg.Say("Started %s as process %d.", w.name, w.pid())
	}
	s.now = "the nodes find each other"
	if err := s.awaitBalance(ctx, began); err != nil {
		return err
	}
	s.cfg.Say("One cluster after %s, led by %s. Shards: %s.", formatSeconds(time.Since(began)), s.seen.Load().leader, s.seen.Load().sharesText())
	s.now = "jobs flow"
	return nil
}

// startFeeder starts the feeder. stop ends it.
func (s *stage) startFeeder(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.feeder.pushAll(ctx)
		if err == nil {
			err = s.feeder.awaitDrained(ctx)
		}
		s.fed <- err
		s.feeder.ended.Store(true)
	}()
	return func() { cancel(); <-done }
}

// awaitCondition shows the picture until a condition holds. It returns an error if a node ends by itself.
func (s *stage) awaitCondition(ctx context.Context, what string, until func() bool) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !until() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", what, context.Cause(ctx), s.seen.Load().sharesText())
		case err := <-s.fed:
			if err != nil {
				return err
			}
			s.fed <- nil // playActs reads it at the end
		case <-ticker.C:
		}
		for _, w := range s.workers {
			if w.state == working && w.hasEnded() {
				return fmt.Errorf("node %s ended by itself: %v: %s", w.name, w.err, w.errors)
			}
		}
		s.showPicture()
	}
	return nil
}

func (s *stage) showPicture() {
	handled := min(int(s.handled.Load()), Payloads)
	s.rate.add(time.Now(), handled)
	seen := s.seen.Load()
	p := Picture{Handled: handled, PerSecond: s.rate.perSecond(), Lag: seen.lag, Now: s.now, Unowned: queueShards}
	for _, w := range s.workers {
		n := NodePicture{Name: w.name, State: string(w.state), Shards: seen.owned[w.name], Leads: seen.leader == w.name}
		if w.state == killed || w.state == drained {
			n.Shards, n.Leads = 0, false // its claims may still exist
		}
		p.Unowned -= n.Shards
		p.Nodes = append(p.Nodes, n)
	}
	s.cfg.Show(p)
}
