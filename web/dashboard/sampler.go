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
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
)

// How figures are read. Reading a chunk takes Redis a few milliseconds; the pause after it keeps
// the whole at a tenth of Redis's time however many shards there are.
const (
	chunkShards  = 200              // read in one round trip
	restFactor   = 9                // pause after a chunk, in times what it took
	interval     = 2 * time.Second  // between sweeps at least, and between snapshots in a long one, while watched
	attention    = 30 * time.Second // how long a look counts as watching
	idleInterval = 15 * time.Second // between sweeps at least while not watched: the chart has its hour then
	idleFactor   = 200              // and that many times what one took: half a percent of Redis's time at most
	timingsEvery = 5 * time.Second  // nodes publish theirs every ten
	maxFocus     = 8                // queues that are read out of turn
	firstWait    = 150 * time.Millisecond
)

// source is where the sampler reads.
type source interface {
	overview(ctx context.Context) (overview, error)
	// stats reads shards: at most chunkShards at once.
	stats(ctx context.Context, shards []lowkiq.Shard) ([]queue.Stats, error)
	timings(ctx context.Context) (map[string]browse.Timing, error)
}

// sampler reads the figures of the cluster, once for all pages, in sweeps through all shards:
// one every 2 s while pages are watched, one every 15 s, or fewer, otherwise.
type sampler struct {
	src    source
	wake   chan struct{} // one slot: there was a look
	closed chan struct{} // closed when run has ended

	mu      sync.Mutex           // guards what follows
	seen    time.Time            // the last look
	focus   map[string]time.Time // queues that are looked at by themselves, and when last
	top     overview
	have    map[string]*figures // the newest that are known, by queue
	speeds  map[string]speed    // of handlers, by queue
	timed   time.Time           // when speeds were read
	swept   time.Time           // when figures were read last
	sums    totals              // of the last sweep that came to its end
	sumsAt  time.Time           // when it began
	samples []sample
	now     *snapshot
	change  chan struct{} // closed at the next snapshot
}

func newSampler(src source) *sampler {
	return &sampler{
		src: src, wake: make(chan struct{}, 1), closed: make(chan struct{}), now: &snapshot{},
		focus: map[string]time.Time{}, have: map[string]*figures{}, change: make(chan struct{}),
	}
}

// look notes that a page is watched, that of one queue if it is named, and returns the newest
// snapshot and a channel that is closed when there is a newer one.
func (s *sampler) look(focus string) (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	select {
	case s.wake <- struct{}{}: // after seen, which run reads when it is woken
	default:
	}
	if focus != "" && (len(s.focus) < maxFocus || !s.focus[focus].IsZero()) {
		s.focus[focus] = s.seen
	}
	return s.now, s.change
}

// peek returns the newest snapshot without counting as a look.
func (s *sampler) peek() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// recent reports whether a snapshot is as new as those of pages that are watched.
func recent(s *snapshot) bool { return time.Since(s.At) < 2*interval }

// figured reports whether its figures are, too.
func figured(s *snapshot) bool { return recent(s) && time.Since(s.Swept) < 2*interval }

// await is look, but waits a moment for a snapshot that is good enough. The rest comes live.
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

// watched reports whether pages are watched, and which queues are looked at by themselves.
func (s *sampler) watched() (watched bool, focus []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.focus, func(_ string, at time.Time) bool { return time.Since(at) > attention })
	return time.Since(s.seen) <= attention, slices.Sorted(maps.Keys(s.focus))
}

// run sweeps until ctx ends.
func (s *sampler) run(ctx context.Context) error {
	defer close(s.closed)
	for began := time.Now(); ctx.Err() == nil; began = time.Now() {
		work, err := s.sweep(ctx)
		if err != nil {
			s.publish(err)
		}
		if watched, _ := s.watched(); watched {
			pause(ctx, interval-time.Since(began), nil)
		} else {
			pause(ctx, max(idleInterval-time.Since(began), idleFactor*work), s.wake)
		}
	}
	return nil
}

// pause waits, until woken.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// sweep reads every shard once, and says how long Redis took. While it is watched it publishes once
// an interval, and reads the queues that are looked at by themselves then.
func (s *sampler) sweep(ctx context.Context) (work time.Duration, err error) {
	top, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	s.publish(nil)
	began, published := top.At, time.Now()
	for _, names := range batches(top.Entries) {
		took, err := s.read(ctx, top, names)
		if err != nil {
			return work, err
		}
		work += took
		watched, focus := s.watched()
		if !watched || time.Since(published) < interval/2 {
			continue
		}
		if top, err = s.begin(ctx); err != nil {
			return work, err
		}
		focus = slices.DeleteFunc(focus, func(name string) bool { n := top.Entries[name].Shards; return n == 0 || n > chunkShards })
		if _, err := s.read(ctx, top, focus); err != nil {
			return work, err
		}
		s.publish(nil)
		published = time.Now()
	}
	s.finish(began)
	return work, nil
}

// batches are the names of queues in order, about a chunk of shards together.
func batches(entries map[string]queue.Entry) (all [][]string) {
	shards := chunkShards
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if shards += entries[name].Shards; shards > chunkShards {
			all, shards = append(all, nil), entries[name].Shards
		}
		all[len(all)-1] = append(all[len(all)-1], name)
	}
	return all
}

// begin reads what stands above the shards. Queues that are gone are forgotten.
func (s *sampler) begin(ctx context.Context) (top overview, err error) {
	at := time.Now()
	if top, err = s.src.overview(ctx); err != nil {
		return top, err
	}
	top.At = at
	var timings map[string]browse.Timing
	if s.timed.IsZero() || time.Since(s.timed) >= timingsEvery { // this goroutine alone writes it
		timings, _ = s.src.timings(ctx) // pages do without
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.top = top
	if timings != nil {
		s.speeds, s.timed = map[string]speed{}, time.Now()
		for name, timing := range timings {
			s.speeds[name] = speedOf(timing)
		}
	}
	maps.DeleteFunc(s.have, func(name string, f *figures) bool {
		_, registered := top.Entries[name]
		return !registered && f.At.Before(at)
	})
	for name, entry := range top.Entries {
		f := figures{Name: name}
		if known := s.have[name]; known != nil {
			f = *known
		}
		if f.At.Before(at) { // a page may have read it since
			f.Entry, f.Unhandled, f.Speed = entry, top.unhandled(name), s.speeds[name]
			s.have[name] = &f
		}
	}
	return top, nil
}

// read reads queues, and leaves Redis alone for a while after each chunk.
func (s *sampler) read(ctx context.Context, top overview, names []string) (took time.Duration, err error) {
	stats, took, err := readShards(ctx, s.src, top.Entries, names, restFactor)
	if err != nil {
		return took, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		n := top.Entries[name].Shards
		s.put(top.figures(name, stats[:n]))
		stats = stats[n:]
	}
	s.swept = time.Now()
	return took, nil
}

// readShards reads all shards of queues in chunks, and rests after each.
func readShards(ctx context.Context, src source, entries map[string]queue.Entry, names []string, rest time.Duration) (stats []queue.Stats, took time.Duration, err error) {
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
		if pause(ctx, rest*once, nil); ctx.Err() != nil {
			return nil, took, ctx.Err()
		}
	}
	return stats, took, nil
}

// put keeps the newer of two readings of a queue; s.mu is held. What a page has read itself,
// because a person has just acted, is not taken back by a sweep that began before.
func (s *sampler) put(f *figures) {
	if known := s.have[f.Name]; known != nil {
		if known.At.After(f.At) {
			return
		}
		f.Rate = f.rateSince(known)
		if f.At.Sub(known.At) < interval/2 {
			f.Rate = known.Rate // too little time to tell
		}
	}
	f.Speed = s.speeds[f.Name]
	s.have[f.Name] = f
}

// learn takes what a page has read of a queue itself, and returns a snapshot with it.
func (s *sampler) learn(f *figures) *snapshot {
	s.mu.Lock()
	s.put(f)
	s.mu.Unlock()
	return s.publish(s.peek().Err)
}

// finish adds a point to the chart: what was counted since the sweep before.
func (s *sampler) finish(began time.Time) {
	s.mu.Lock()
	sums := (&snapshot{Queues: inOrder(s.have)}).totals()
	if age := began.Sub(s.sumsAt); !s.sumsAt.IsZero() && age > 0 && age <= chartSpan/6 {
		s.samples = append(s.samples, sample{At: began, rate: rateOf(s.sums.Stats, sums.Stats, age)})
	}
	s.sums, s.sumsAt, s.swept = sums, began, time.Now()
	s.mu.Unlock()
	s.publish(nil)
}

// publish makes a snapshot of what is known. A failure is shown beside it.
func (s *sampler) publish(failure error) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.samples = thinned(s.samples, now)
	s.now = &snapshot{At: now, Swept: s.swept, Status: s.top.Status, Members: s.top.Members, Queues: inOrder(s.have), Samples: s.samples, Err: failure}
	close(s.change)
	s.change = make(chan struct{})
	return s.now
}

// redisSource reads what the node knows and what Redis holds.
type redisSource struct {
	node   web.Node
	client *queue.Client
}

func (r redisSource) overview(ctx context.Context) (o overview, err error) {
	if o.Status, err = r.node.Cluster().Status(ctx); err != nil {
		return o, err
	}
	if o.Members, err = r.node.Cluster().Members(); err != nil && !errors.Is(err, status.ErrNoCluster) {
		return o, err
	}
	err = r.join(ctx, &o)
	return o, err
}

// join reads what queues and their shards are judged by.
func (r redisSource) join(ctx context.Context, o *overview) (err error) {
	if o.Owners, err = r.node.Cluster().Owners(ctx); err != nil {
		return err
	}
	if o.Handled, err = r.node.Cluster().Handled(ctx); err != nil {
		return err
	}
	o.Entries, err = r.client.Registry().Entries(ctx)
	return err
}

func (r redisSource) stats(ctx context.Context, shards []lowkiq.Shard) ([]queue.Stats, error) {
	asked := make([]*queue.Shard, len(shards))
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

func (r redisSource) timings(ctx context.Context) (map[string]browse.Timing, error) {
	return browse.Timings(ctx, r.client)
}

// figures reads one queue now.
func (r redisSource) figures(ctx context.Context, name string) (*figures, error) {
	o := overview{At: time.Now()}
	if err := r.join(ctx, &o); err != nil {
		return nil, err
	}
	if _, ok := o.Entries[name]; !ok {
		return nil, lowkiq.ErrUnknownQueue
	}
	stats, _, err := readShards(ctx, r, o.Entries, []string{name}, 0)
	if err != nil {
		return nil, err
	}
	return o.figures(name, stats), nil
}
