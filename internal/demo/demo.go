package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/internal/embedded"
	"github.com/lowkiq/lowkiq/internal/judge"
	"github.com/lowkiq/lowkiq/internal/stream"
)

// Config says how to run the demo.
type Config struct {
	// Worker is the command line of a worker process for these settings; it calls Work.
	Worker func(WorkerConfig) []string
	// Limit of the whole, but for the last nodes' end (at most 5 s). Default 50 s.
	Limit time.Duration
	// Say is told what happens, a line at a time; Show how things are, several times a
	// second. Both are called from the goroutine that called Run.
	Say  func(format string, args ...any)
	Show func(Picture)
}

// Payloads is how many there are to handle.
const Payloads = stream.Count

// firstNodes is how many nodes there are at the start.
const firstNodes = 3

var errLimit = errors.New("the demo took too long")

// Run shows everything. The outcome is good if every promise was kept; an error means
// that there is none.
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
	return s.play(ctx)
}

// stage is a demo in progress. Its fields belong to the goroutine of Run, but for those
// that are safe for all.
type stage struct {
	cfg      Config
	settings WorkerConfig
	notes    *judge.Writer
	workers  []*worker // in order of their start
	apis     *apis     // safe for all
	handled  atomic.Int64
	seen     atomic.Pointer[view] // the latest
	feeder   *feeder
	fed      chan error // gets the feeder's end
	rate     rate
	now      string // what happens now
}

func newStage(cfg Config, settings WorkerConfig, notes *judge.Writer) *stage {
	s := &stage{cfg: cfg, settings: settings, notes: notes, apis: &apis{}, fed: make(chan error, 1)}
	s.seen.Store(&view{})
	s.feeder = &feeder{apis: s.apis, handled: &s.handled, pace: pace}
	s.feeder.allow(acts[0].gate())
	return s
}

// play tells the whole story.
func (s *stage) play(ctx context.Context) (outcome Outcome, err error) {
	defer s.destroy()
	ctx, cancel := context.WithCancel(ctx)
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		observe(ctx, s.apis, s.seen.Store)
	}()
	defer func() { cancel(); <-observed }()
	if err := s.begin(ctx); err != nil {
		return outcome, err
	}
	stopFeeding := s.feed(ctx)
	defer stopFeeding()
	for i, act := range acts {
		change, err := s.perform(ctx, act, i)
		if err != nil {
			return outcome, err
		}
		outcome.Changes = append(outcome.Changes, change)
	}
	s.now = "the rest of the stream"
	if err := s.await(ctx, "handle the rest", s.feeder.ended.Load); err != nil {
		return outcome, err
	}
	if err := <-s.fed; err != nil {
		return outcome, err
	}
	s.now = "the nodes end"
	s.show()
	cancel()
	<-observed
	if err := s.end(); err != nil {
		return outcome, err
	}
	outcome.Repeated = s.feeder.repeated
	outcome.Verdict, err = verdict(s.feeder, s.settings.History)
	return outcome, err
}

// begin starts the first nodes and waits until they share the shards.
func (s *stage) begin(ctx context.Context) error {
	s.cfg.Say("%d changes of %d files flow over HTTP into a cluster of %d nodes.", stream.Count, stream.IDs, firstNodes)
	s.cfg.Say("Redis: embedded (miniredis). It is for trying only: its jobs end with this process.")
	began := time.Now()
	for range firstNodes {
		w, err := s.start()
		if err != nil {
			return err
		}
		s.cfg.Say("Started %s as process %d.", w.name, w.pid())
	}
	s.now = "the nodes find each other"
	if err := s.awaitBalance(ctx, began); err != nil {
		return err
	}
	s.cfg.Say("One cluster after %s, led by %s. Shards: %s.", tenths(time.Since(began)), s.seen.Load().leader, s.seen.Load().shares())
	s.now = "jobs flow"
	return nil
}

// feed starts the feeder; stop ends it.
func (s *stage) feed(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.feeder.run(ctx)
		if err == nil {
			err = s.feeder.drained(ctx)
		}
		s.fed <- err
		s.feeder.ended.Store(true)
	}()
	return func() { cancel(); <-done }
}

// await shows the picture until a condition holds. A node that ends unasked is an error.
func (s *stage) await(ctx context.Context, what string, until func() bool) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !until() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", what, context.Cause(ctx), s.seen.Load().shares())
		case err := <-s.fed:
			if err != nil {
				return err
			}
			s.fed <- nil // for the end of the play
		case <-ticker.C:
		}
		for _, w := range s.workers {
			if w.state == working && w.over() {
				return fmt.Errorf("node %s ended by itself: %v: %s", w.name, w.err, w.errors)
			}
		}
		s.show()
	}
	return nil
}

func (s *stage) show() {
	handled := min(int(s.handled.Load()), Payloads)
	s.rate.add(time.Now(), handled)
	seen := s.seen.Load()
	p := Picture{Handled: handled, PerSecond: s.rate.perSecond(), Lag: seen.lag, Now: s.now, Unowned: queueShards}
	for _, w := range s.workers {
		n := NodePicture{Name: w.name, State: string(w.state), Shards: seen.owned[w.name], Leads: seen.leader == w.name}
		if w.state == killed || w.state == drained {
			n.Shards, n.Leads = 0, false // whatever its claims still say
		}
		p.Unowned -= n.Shards
		p.Nodes = append(p.Nodes, n)
	}
	s.cfg.Show(p)
}
