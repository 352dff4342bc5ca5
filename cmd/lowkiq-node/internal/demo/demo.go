package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/remote"
	"github.com/lowkiq/lowkiq/internal/embedded"
	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/internal/stream"
)

// Config says how to run the demo.
type Config struct {
	// Worker is the command line of a worker process for these settings; it calls Work.
	Worker func(WorkerConfig) []string
	// Limit of the whole. Default 55 s.
	Limit time.Duration
	// Say is told what happens, a line at a time; Progress how many payloads were
	// handled. Both are called from one goroutine.
	Say      func(format string, args ...any)
	Progress func(handled int)
}

// Payloads is how many there are to handle.
const Payloads = stream.Count

// errLimit ends a demo that takes too long.
var errLimit = errors.New("the demo took too long")

// Run shows everything. The verdict is good if every promise was kept; an error means
// that there is none.
func Run(ctx context.Context, cfg Config) (history.Verdict, error) {
	if cfg.Limit == 0 {
		cfg.Limit = 55 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Limit, errLimit)
	defer cancel()
	redis, err := embedded.Start()
	if err != nil {
		return history.Verdict{}, err
	}
	defer redis.Close()
	dir, remove, err := files()
	if err != nil {
		return history.Verdict{}, err
	}
	defer remove()
	address, err := freeAddress()
	if err != nil {
		return history.Verdict{}, err
	}
	s := &stage{cfg: cfg, settings: WorkerConfig{Redis: redis.URL(), HTTP: address, History: filepath.Join(dir, "history")}}
	return s.play(ctx)
}

// stage is a demo in progress.
type stage struct {
	cfg      Config
	settings WorkerConfig
	worker   *worker
	handled  atomic.Int64
	feeder   *feeder
	notes    *history.Writer
}

func (s *stage) play(ctx context.Context) (verdict history.Verdict, err error) {
	s.cfg.Say("%d changes of %d files, one job id per file: pushed over HTTP, handled by a worker process.", stream.Count, stream.IDs)
	s.cfg.Say("Redis: embedded (miniredis). It is for trying only: what it holds ends with this process.")
	if s.notes, err = history.OpenAs(s.settings.History, "demo"); err != nil {
		return verdict, err
	}
	defer s.notes.Close()
	node, err := remote.New(s.settings.HTTP, "")
	if err != nil {
		return verdict, err
	}
	s.feeder = &feeder{node: node, handled: &s.handled}
	if s.worker, err = startWorker(s.cfg.Worker(s.settings), &s.handled); err != nil {
		return verdict, err
	}
	defer func() { s.worker.destroy() }()
	if err := s.feedAndKill(ctx); err != nil {
		return verdict, err
	}
	if err := s.worker.stop(); err != nil {
		return verdict, err
	}
	if verdict, err = judge(s.feeder, s.settings.History); err != nil {
		return verdict, err
	}
	s.cfg.Say("Pushes repeated while the worker was away: %d.", s.feeder.retried)
	return verdict, nil
}

// judge gives the verdict on a history. A payload may be handled twice, that is the
// price of losing none; nothing else is allowed.
func judge(f *feeder, path string) (history.Verdict, error) {
	cfg := history.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1}
	verdict, err := history.Check(cfg, f.pushed(), path)
	if err != nil {
		return verdict, fmt.Errorf("verdict: %w", err)
	}
	if verdict.OK() && verdict.Distinct != Payloads {
		return verdict, fmt.Errorf("verdict: %d events were handled of %d", verdict.Distinct, Payloads)
	}
	return verdict, nil
}

// feedAndKill pushes all and waits until all is handled, killing the worker half-way.
func (s *stage) feedAndKill(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var fed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if fed = s.feeder.run(ctx); fed == nil {
			fed = s.feeder.drained(ctx)
		}
	}()
	err := s.watch(done)
	cancel()
	<-done
	if err != nil {
		return err
	}
	return fed
}

// watch shows the progress until done, and kills the worker half-way.
func (s *stage) watch(done <-chan struct{}) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for half := false; ; {
		select {
		case <-done:
			s.cfg.Progress(min(int(s.handled.Load()), Payloads))
			return nil
		case <-s.worker.ended:
			return fmt.Errorf("the worker ended by itself: %w: %s", s.worker.err, s.worker.errors)
		case <-ticker.C:
		}
		s.cfg.Progress(min(int(s.handled.Load()), Payloads))
		if !half && s.handled.Load() >= Payloads/2 {
			half = true
			if err := s.replace(); err != nil {
				return err
			}
		}
	}
}

// replace kills the worker and starts another.
func (s *stage) replace() error {
	pid := s.worker.cmd.Process.Pid
	if err := s.worker.kill(s.notes); err != nil {
		return err
	}
	s.worker.parent.Close()
	s.cfg.Say("Half-way: kill -9 of the worker, process %d.", pid)
	next, err := startWorker(s.cfg.Worker(s.settings), &s.handled)
	if err != nil {
		return err
	}
	s.worker = next
	s.cfg.Say("Restarted as process %d.", next.cmd.Process.Pid)
	return nil
}

// Words is the verdict for a person. The judge's own words follow if it is bad.
func Words(v history.Verdict) string {
	word := "GOOD: every promise was kept."
	if !v.OK() {
		word = "BAD: promises were broken."
	}
	text := fmt.Sprintf(`
Verdict: %s
  every event handled:              %s (%d of %d, %d lost)
  order of each file kept:          %s (%d out of order)
  no file handled twice at once:    %s (%d overlaps in %d handler calls)
  handled again after the kill:     %d events (at least once is the promise; %d calls were cut off)
  speed:                            %.0f jobs per second for %.1f s, on miniredis, with a handler of %s
`, word, yes(v.Lost == 0 && v.Distinct == Payloads), v.Distinct, Payloads, v.Lost, yes(v.Misordered == 0), v.Misordered,
		yes(v.Overlaps == 0), v.Overlaps, v.Calls, v.Duplicates, v.Interrupted, v.PerSecond, v.Wall.Seconds(), workTime)
	if !v.OK() {
		text += "\n" + v.Words()
	}
	return text
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
