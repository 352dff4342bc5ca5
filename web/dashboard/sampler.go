package dashboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/timings"
	"github.com/lowkiq/lowkiq/status"
)

// Bounds of the sweeps. Reading a chunk takes Redis a few milliseconds. The pause after it keeps sweeps at
// a tenth of Redis's time, however many shards there are.
const (
	chunkShards  = 200              // read in one round trip
	restFactor   = 9                // pause after a chunk, as a multiple of the time of the chunk
	interval     = 2 * time.Second  // minimum between sweeps, and between snapshots of a long sweep, while watched
	attention    = 30 * time.Second // a page counts as watched this long after a request
	idleInterval = 15 * time.Second // minimum between sweeps while not watched; the chart still gets its hour
	idleFactor   = 200              // the same as a multiple of the sweep's time, so that sweeps take at most half a percent of Redis's time
	timingsEvery = 5 * time.Second  // nodes publish them every ten seconds
	maxFocus     = 8                // maximum number of queues that are read out of turn
	firstWait    = 150 * time.Millisecond
)

// source is the source of the sampler's figures.
type source interface {
	overview(ctx context.Context) (overview, error)
	// stats reads at most chunkShards shards at once.
	stats(ctx context.Context, shards []lowkiq.Shard) ([]protocol.Stats, error)
	timings(ctx context.Context) (map[string]timings.Minute, error)
}

// sampler reads the figures of the cluster, once for all pages, in sweeps through all shards. It sweeps
// every 2 s while pages are watched, and every 15 s or less often otherwise. So the load on Redis depends on
// the number of shards, and not on the number of people who watch.
type sampler struct {
	src    source
	wake   chan struct{} // gets a value when a page is watched, if it has room
	closed chan struct{} // closed when run has ended

	mu          sync.Mutex           // guards the following fields
	lastWatched time.Time            // when a page was last watched
	focus       map[string]time.Time // queues whose own pages are watched, and when last
	top         overview
	figures     map[string]*figures // the newest figures, by queue
	speeds      map[string]speed    // of handlers, by queue
	timed       time.Time           // when speeds were read
	swept       time.Time           // when figures were read last
	sums        totals              // of the last complete sweep
	sumsAt      time.Time           // when it began
	samples     []sample
	now         *snapshot
	change      chan struct{} // closed at the next snapshot
}

func newSampler(src source) *sampler {
	return &sampler{
		src: src, wake: make(chan struct{}, 1), closed: make(chan struct{}), now: &snapshot{},
		focus: map[string]time.Time{}, figures: map[string]*figures{}, change: make(chan struct{}),
	}
}

// registerWatcher records that a page is watched. focus is the queue of the page, "" for pages of all queues. It
// returns the newest snapshot, and a channel that is closed when there is a newer snapshot.
func (s *sampler) registerWatcher(focus string) (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastWatched = time.Now()
	select {
	case s.wake <- struct{}{}: // after lastWatched, which run reads when it is woken
	default:
	}
	if focus != "" && (len(s.focus) < maxFocus || !s.focus[focus].IsZero()) {
		s.focus[focus] = s.lastWatched
	}
	return s.now, s.change
}

// latest returns the newest snapshot. It does not count as watching.
func (s *sampler) latest() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// isRecent reports whether a snapshot is as new as on watched pages.
func isRecent(s *snapshot) bool { return time.Since(s.At) < 2*interval }

// hasFigures reports whether the figures of all queues in a snapshot are as new as on watched pages.
func hasFigures(s *snapshot) bool { return isRecent(s) && time.Since(s.Swept) < 2*interval }

// await does the same as registerWatcher, but waits a moment until enough accepts the snapshot. Later figures
// come by the stream.
func (s *sampler) await(ctx context.Context, focus string, enough func(*snapshot) bool) *snapshot {
	deadline := time.NewTimer(firstWait)
	defer deadline.Stop()
	for {
		now, change := s.registerWatcher(focus)
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

// listWatched reports whether pages are watched, and the queues whose own pages are watched.
func (s *sampler) listWatched() (watched bool, focus []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.focus, func(_ string, at time.Time) bool { return time.Since(at) > attention })
	return time.Since(s.lastWatched) <= attention, slices.Sorted(maps.Keys(s.focus))
}

// run sweeps until ctx ends.
func (s *sampler) run(ctx context.Context) error {
	defer close(s.closed)
	for began := time.Now(); ctx.Err() == nil; began = time.Now() {
		work, err := s.readAll(ctx)
		if err != nil {
			s.publish(err)
		}
		if watched, _ := s.listWatched(); watched {
			sleepUntilWoken(ctx, interval-time.Since(began), nil)
		} else {
			sleepUntilWoken(ctx, max(idleInterval-time.Since(began), idleFactor*work), s.wake)
		}
	}
	return nil
}

// sleepUntilWoken waits until the time is over, ctx ends, or it is woken.
func sleepUntilWoken(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// readAll reads every shard once, and returns the time that Redis took. While pages are watched, it
// publishes a snapshot once an interval, and then also reads the queues whose own pages are watched.
func (s *sampler) readAll(ctx context.Context) (work time.Duration, err error) {
	top, err := s.readOverview(ctx)
	if err != nil {
		return 0, err
	}
	s.publish(nil)
	began, published := top.At, time.Now()
	for _, names := range splitBatches(top.Entries) {
		took, err := s.readQueues(ctx, top, names)
		if err != nil {
			return work, err
		}
		work += took
		watched, focus := s.listWatched()
		if !watched || time.Since(published) < interval/2 {
			continue
		}
		if top, err = s.readOverview(ctx); err != nil {
			return work, err
		}
		focus = slices.DeleteFunc(focus, func(name string) bool { n := top.Entries[name].Shards; return n == 0 || n > chunkShards })
		if _, err := s.readQueues(ctx, top, focus); err != nil {
			return work, err
		}
		s.publish(nil)
		published = time.Now()
	}
	s.finishSweep(began)
	return work, nil
}

// splitBatches splits the names of queues, in their order, into parts with about a chunk of shards each.
func splitBatches(entries map[string]protocol.RegistryEntry) (all [][]string) {
	shards := chunkShards
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if shards += entries[name].Shards; shards > chunkShards {
			all, shards = append(all, nil), entries[name].Shards
		}
		all[len(all)-1] = append(all[len(all)-1], name)
	}
	return all
}

// readOverview reads the overview, and forgets queues that are gone.
func (s *sampler) readOverview(ctx context.Context) (top overview, err error) {
	at := time.Now()
	if top, err = s.src.overview(ctx); err != nil {
		return top, err
	}
	top.At = at
	var minutes map[string]timings.Minute
	if s.timed.IsZero() || time.Since(s.timed) >= timingsEvery { // this goroutine alone writes it
		minutes, _ = s.src.timings(ctx) // on an error pages show none
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.top = top
	if minutes != nil {
		s.speeds, s.timed = map[string]speed{}, time.Now()
		for name, timing := range minutes {
			s.speeds[name] = speedOf(timing)
		}
	}
	maps.DeleteFunc(s.figures, func(name string, f *figures) bool {
		_, registered := top.Entries[name]
		return !registered && f.At.Before(at)
	})
	for name, entry := range top.Entries {
		f := figures{Name: name}
		if known := s.figures[name]; known != nil {
			f = *known
		}
		if f.At.Before(at) { // a page may have read it since
			f.Entry, f.Unhandled, f.Speed = entry, top.isUnhandled(name), s.speeds[name]
			s.figures[name] = &f
		}
	}
	return top, nil
}

// readQueues reads queues, and leaves Redis alone for a while after each chunk.
func (s *sampler) readQueues(ctx context.Context, top overview, names []string) (took time.Duration, err error) {
	stats, took, err := readShards(ctx, s.src, top.Entries, names, restFactor)
	if err != nil {
		return took, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		n := top.Entries[name].Shards
		s.putFigures(top.newFigures(name, stats[:n]))
		stats = stats[n:]
	}
	s.swept = time.Now()
	return took, nil
}

// readShards reads all shards of queues in chunks. After each chunk it rests for rest times the time of the chunk.
func readShards(ctx context.Context, src source, entries map[string]protocol.RegistryEntry, names []string, rest time.Duration) (stats []protocol.Stats, took time.Duration, err error) {
	var shards []lowkiq.Shard
	for _, name := range names {
		for i := range entries[name].Shards {
			shards = append(shards, lowkiq.Shard{Queue: name, Index: i})
		}
	}
	for chunk := range slices.Chunk(shards, chunkShards) {
		began := time.Now()
		some, err := src.stats(ctx, chunk)
		if err != nil {
			return nil, took, err
		}
		stats = append(stats, some...)
		once := time.Since(began)
		took += once
		if sleepUntilWoken(ctx, rest*once, nil); ctx.Err() != nil {
			return nil, took, ctx.Err()
		}
	}
	return stats, took, nil
}

// putFigures keeps the newer of two readings of a queue. The caller holds s.mu. After an action of a person the
// page reads the queue itself, and a sweep that began before must not replace that reading.
func (s *sampler) putFigures(f *figures) {
	if known := s.figures[f.Name]; known != nil {
		if known.At.After(f.At) {
			return
		}
		f.Rate, f.Past = f.rateSince(known), known.Past
		if f.At.Sub(known.At) < interval/2 {
			f.Rate = known.Rate // too little time to tell
		} else {
			f.remember(known)
		}
	}
	f.Speed = s.speeds[f.Name]
	s.figures[f.Name] = f
}

// learnFigures adds a page's own reading of a queue, and returns a snapshot with it.
func (s *sampler) learnFigures(f *figures) *snapshot {
	s.mu.Lock()
	s.putFigures(f)
	s.mu.Unlock()
	return s.publish(s.latest().Err)
}

// finishSweep adds a point to the chart, with the counts since the sweep before.
func (s *sampler) finishSweep(began time.Time) {
	s.mu.Lock()
	sums := (&snapshot{Queues: inOrder(s.figures)}).sumTotals()
	if age := began.Sub(s.sumsAt); !s.sumsAt.IsZero() && age > 0 && age <= chartSpan/6 {
		s.samples = append(s.samples, sample{At: began, rate: rateOf(s.sums.Stats, sums.Stats, age)})
	}
	s.sums, s.sumsAt, s.swept = sums, began, time.Now()
	s.mu.Unlock()
	s.publish(nil)
}

// publish makes a snapshot of all readings. A failure is shown beside the figures, which stay as they were read last.
// All streams wait on the channel that publish closes, so each of them gets the snapshot.
func (s *sampler) publish(failure error) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.samples = thinSamples(s.samples, now, chartFine, idleInterval) // at most 300 points
	s.now = &snapshot{At: now, Swept: s.swept, Status: s.top.Status, Members: s.top.Members, Queues: inOrder(s.figures), Samples: s.samples, Err: failure}
	close(s.change)
	s.change = make(chan struct{})
	return s.now
}

// redisSource reads from the node and from Redis.
type redisSource struct {
	cluster status.Cluster
	client  *protocol.Client
}

func (r redisSource) overview(ctx context.Context) (o overview, err error) {
	if o.Status, err = r.cluster.Status(ctx); err != nil {
		return o, err
	}
	if o.Members, err = r.cluster.Members(); err != nil && !errors.Is(err, status.ErrNoCluster) {
		return o, err
	}
	err = r.joinCluster(ctx, &o)
	return o, err
}

// joinCluster reads the facts that are needed to judge queues and their shards.
func (r redisSource) joinCluster(ctx context.Context, o *overview) (err error) {
	if o.Owners, err = r.cluster.Owners(ctx); err != nil {
		return err
	}
	if o.Handled, err = r.cluster.Handled(ctx); err != nil {
		return err
	}
	o.Refuses, o.Full = r.cluster.RedisRefuses(), r.cluster.RedisFull()
	if o.Entries, err = r.client.Registry().Entries(ctx); err != nil {
		return err
	}
	o.Reshard, err = status.ReadReshards(ctx, r.client, o.Entries)
	return err
}

func (r redisSource) stats(ctx context.Context, shards []lowkiq.Shard) ([]protocol.Stats, error) {
	asked := make([]*protocol.Shard, len(shards))
	for i, s := range shards {
		q, err := r.client.Queue(ctx, s.Queue)
		if err != nil {
			return nil, err
		}
		if s.Index >= q.Shards {
			return nil, fmt.Errorf("queue %q: %w", s.Queue, lowkiq.ErrShardCount)
		}
		asked[i] = q.Shard(s.Index)
	}
	return r.client.Stats(ctx, asked...)
}

func (r redisSource) timings(ctx context.Context) (map[string]timings.Minute, error) {
	return timings.Read(ctx, r.client)
}

// figures reads a queue now.
func (r redisSource) figures(ctx context.Context, name string) (*figures, error) {
	o := overview{At: time.Now()}
	if err := r.joinCluster(ctx, &o); err != nil {
		return nil, err
	}
	if _, ok := o.Entries[name]; !ok {
		return nil, lowkiq.ErrUnknownQueue
	}
	stats, _, err := readShards(ctx, r, o.Entries, []string{name}, 0)
	if err != nil {
		return nil, err
	}
	return o.newFigures(name, stats), nil
}
