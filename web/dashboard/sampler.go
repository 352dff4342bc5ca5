package dashboard

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// How figures are sampled. Reading a chunk takes Redis a few milliseconds; the pause
// after it keeps the whole at a tenth of Redis's time however many shards there are.
const (
	chunkShards  = 200              // read in one round trip
	restFactor   = 9                // pause after a chunk, in times what it took
	interval     = time.Second      // between snapshots, and at least between sweeps
	firstTurn    = interval / 4     // until the first figures are shown after a pause
	attention    = 30 * time.Second // how long sampling goes on after the last look
	idleEvery    = 15 * time.Second // between points of the chart while nobody looks
	idleShard    = time.Millisecond // and at least that for each shard: what a node reads then is a thousandth of Redis's time
	timingsEvery = 5 * time.Second  // nodes publish theirs every ten
)

// overview is what is read before the shards.
type overview struct {
	Status  status.Status // Queues is empty
	Members []status.Member
	Entries map[string]queue.Entry
	Owners  status.Owners
	Handled status.Handled // nil: not known
}

// unhandled reports whether no living node handles a queue.
func (o overview) unhandled(name string) bool {
	return o.Handled != nil && len(o.Handled.By(name)) == 0
}

// source is where the sampler reads.
type source interface {
	overview(ctx context.Context) (overview, error)
	// stats reads shards: at most chunkShards at once.
	stats(ctx context.Context, shards []lowkiq.Shard) ([]queue.Stats, error)
	timings(ctx context.Context) (map[string]queue.Timing, error)
	// counted sums what all shards have processed and failed.
	counted(ctx context.Context) (processed, failed int64, shards int, err error)
}

// sampler reads the figures of the cluster while somebody looks at them: once for all
// who look, in steps that leave Redis to the jobs. While nobody does it reads two counters
// of each shard now and then, so that the chart has its hour when one is opened.
type sampler struct {
	src    source
	wake   chan struct{} // one slot: somebody looks
	closed chan struct{} // closed when run has ended

	mu     sync.Mutex           // guards what follows
	seen   time.Time            // the last look
	focus  map[string]time.Time // queues that have a viewer of their own, and since when they were looked at
	fresh  map[string]*figures  // what pages have read of a queue themselves, until a sweep is newer
	now    *snapshot
	change chan struct{} // closed at the next snapshot
}

func newSampler(src source) *sampler {
	return &sampler{
		src: src, wake: make(chan struct{}, 1), closed: make(chan struct{}), now: &snapshot{},
		focus: map[string]time.Time{}, fresh: map[string]*figures{}, change: make(chan struct{}),
	}
}

// look says that somebody is looking, at one queue if it is named, and returns the newest
// snapshot and a channel that is closed when there is a newer one.
func (s *sampler) look(focus string) (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	select {
	case s.wake <- struct{}{}: // after seen: who is woken must find it
	default:
	}
	if focus != "" && (len(s.focus) < maxFocus || !s.focus[focus].IsZero()) {
		s.focus[focus] = s.seen
	}
	return s.now, s.change
}

// maxFocus bounds the queues that are read out of turn.
const maxFocus = 8

// recent reports whether a snapshot was made since somebody looks.
func recent(s *snapshot) bool { return time.Since(s.At) < 2*interval }

// figured reports whether it has figures that were read since.
func figured(s *snapshot) bool { return recent(s) && !s.Early }

// await is look, but waits a moment for a snapshot that is good enough.
func (s *sampler) await(ctx context.Context, focus string, enough func(*snapshot) bool) *snapshot {
	deadline := time.NewTimer(firstWait)
	defer deadline.Stop()
	for {
		now, change := s.look(focus)
		if enough(now) {
			return now
		}
		select {
		case <-change:
		case <-deadline.C:
			return now
		case <-ctx.Done():
			return now
		case <-s.closed:
			return now
		}
	}
}

// run samples until ctx ends.
func (s *sampler) run(ctx context.Context) error {
	defer close(s.closed)
	m := &memory{have: map[string]*figures{}}
	idle := time.NewTimer(idleEvery)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			idle.Reset(s.count(ctx, m))
			continue
		case <-s.wake:
		}
		for m.early = true; s.watched() && ctx.Err() == nil; {
			began := time.Now()
			if err := s.sweep(ctx, m); err != nil {
				s.publish(m.failed(err))
			}
			pause(ctx, interval-time.Since(began))
		}
	}
}

// count adds a point to the chart, and says when to count again.
func (s *sampler) count(ctx context.Context, m *memory) (pause time.Duration) {
	began := time.Now()
	processed, failed, shards, err := s.src.counted(ctx)
	if err == nil {
		m.count(counts{At: began, Processed: processed, Failed: failed})
	}
	return max(idleEvery, time.Duration(shards)*idleShard)
}

func (s *sampler) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.focus, func(_ string, at time.Time) bool { return time.Since(at) > attention })
	return time.Since(s.seen) <= attention
}

func (s *sampler) focused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.focus))
}

func (s *sampler) publish(next *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(next)
}

// replace publishes a snapshot; s.mu is held.
func (s *sampler) replace(next *snapshot) {
	for name, f := range s.fresh {
		newer, needed := next.notBefore(f)
		if !needed {
			delete(s.fresh, name)
		}
		next = newer
	}
	s.now = next
	close(s.change)
	s.change = make(chan struct{})
}

// learn takes what a page has read of a queue itself: what the page shows after a person
// has acted must not be taken back by a stream whose figures are of the moment before.
func (s *sampler) learn(f *figures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh[f.Name] = f
	s.replace(s.now)
}

// sweep reads every shard once. It publishes what it has once an interval.
func (s *sampler) sweep(ctx context.Context, m *memory) error {
	if err := s.begin(ctx, m); err != nil {
		return err
	}
	due := time.Now().Add(interval)
	if m.early {
		s.publish(m.snapshot())
		due = time.Now().Add(firstTurn)
	}
	for chunk := range chunks(m.seen.Entries, chunkShards) {
		if err := s.read(ctx, m, chunk); err != nil {
			return err
		}
		if time.Now().Before(due) {
			continue
		}
		if !s.watched() {
			return nil
		}
		if err := s.turn(ctx, m); err != nil {
			return err
		}
		due = time.Now().Add(interval)
	}
	s.publish(m.sampled())
	return nil
}

// begin reads what stands above the shards.
func (s *sampler) begin(ctx context.Context, m *memory) error {
	began := time.Now()
	seen, err := s.src.overview(ctx)
	if err != nil {
		return err
	}
	m.see(seen, began)
	if !m.timed.IsZero() && time.Since(m.timed) < timingsEvery {
		return nil
	}
	timings, err := s.src.timings(ctx)
	if err == nil {
		m.time(timings, time.Now())
	}
	return err
}

// turn publishes in the middle of a long sweep, the queues that people look at first.
func (s *sampler) turn(ctx context.Context, m *memory) error {
	if err := s.begin(ctx, m); err != nil {
		return err
	}
	for _, name := range s.focused() {
		entry, ok := m.seen.Entries[name]
		if !ok || entry.Shards > chunkShards {
			continue
		}
		for chunk := range chunks(map[string]queue.Entry{name: entry}, chunkShards) {
			m.parts[name] = nil
			if err := s.read(ctx, m, chunk); err != nil {
				return err
			}
		}
	}
	s.publish(m.sampled())
	return nil
}

// read reads one chunk, and then leaves Redis alone for a while.
func (s *sampler) read(ctx context.Context, m *memory, chunk []lowkiq.Shard) error {
	began := time.Now()
	stats, err := s.src.stats(ctx, chunk)
	if err != nil {
		return err
	}
	for i, shard := range chunk {
		m.add(shard, stats[i], began)
	}
	return pause(ctx, restFactor*time.Since(began))
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// peek returns the newest snapshot without counting as a look.
func (s *sampler) peek() (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.change
}
