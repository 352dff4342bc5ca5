package dashboard

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/timings"
	"github.com/lowkiq/lowkiq/status"
)

// fakeSource has queues of which each read takes a while.
type fakeSource struct {
	mu      sync.Mutex // guards what follows
	entries map[string]protocol.RegistryEntry
	takes   time.Duration
	err     error
	reads   int
	busy    time.Duration // in reads
	done    int64         // jobs processed, more with every read of a first shard
}

func (f *fakeSource) overview(context.Context) (overview, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return overview{Entries: f.entries, Owners: func(lowkiq.Shard, string) (string, status.ShardState) { return "n1", status.Owned }}, f.err
}

func (f *fakeSource) timings(context.Context) (map[string]timings.Minute, error) { return nil, nil }

func (f *fakeSource) stats(_ context.Context, shards []lowkiq.Shard) ([]protocol.Stats, error) {
	f.mu.Lock()
	f.reads++
	f.busy += f.takes
	err := f.err
	all := make([]protocol.Stats, len(shards))
	for i, s := range shards {
		if s.Index == 0 {
			f.done += 10
		}
		all[i] = protocol.Stats{Jobs: protocol.Counts{Ready: 1}, Processed: f.done, Now: time.Now()}
	}
	f.mu.Unlock()
	time.Sleep(f.takes) // the bubble's clock
	return all, err
}

func (f *fakeSource) count() (reads int, busy time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads, f.busy
}

func (f *fakeSource) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// inBubble runs a sampler over a source.
func inBubble(t *testing.T, src *fakeSource, story func(t *testing.T, s *sampler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := newSampler(src)
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		story(t, s)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v, want no error", err)
		}
	})
}

func oneQueue(shards int) map[string]protocol.RegistryEntry {
	return map[string]protocol.RegistryEntry{"orders": {Shards: shards, Layout: 1}}
}

func TestSamplerReadsMoreWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	src := &fakeSource{entries: oneQueue(3), takes: time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		time.Sleep(time.Hour + time.Second)
		idle, _ := src.count()
		if idle < 235 || idle > 245 {
			t.Fatalf("got %d reads in the hour before the first look, want one every %s", idle, idleInterval)
		}
		now := s.await(t.Context(), "", hasFigures)
		if got := now.sumTotals(); got.Read != 1 || got.Jobs.Ready != 3 {
			t.Errorf("got %+v at the first look, want all 3 shards", got)
		}
		time.Sleep(attention)
		if reads, _ := src.count(); reads-idle < 13 || reads-idle > 18 {
			t.Errorf("got %d reads in %s, want one every %s", reads-idle, attention, interval)
		}
		time.Sleep(time.Hour)
		if now := s.await(t.Context(), "", hasFigures); time.Since(now.At) > interval {
			t.Errorf("got figures that are %s old at the next look, want fresh ones", time.Since(now.At))
		}
	})
}

// An hour of chart is there when one opens it, and it cost little.
func TestSamplerRemembersAnHour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shards, sweeps int
		takes          time.Duration // a chunk
	}{{3, 480, time.Millisecond}, {4_000, 28, 60 * time.Millisecond}} {
		src := &fakeSource{entries: oneQueue(c.shards), takes: c.takes}
		inBubble(t, src, func(t *testing.T, s *sampler) {
			time.Sleep(2*time.Hour + time.Second)
			reads, busy := src.count()
			if sweeps := reads * chunkShards / max(c.shards, chunkShards); sweeps < c.sweeps-4 || sweeps > c.sweeps+4 || busy > 2*time.Hour/150 {
				t.Errorf("%d shards: got %d sweeps in two hours, %s of Redis; want %d", c.shards, sweeps, busy, c.sweeps)
			}
			now := s.await(t.Context(), "", hasFigures)
			first := now.Samples[0]
			if age := now.At.Sub(first.At); age > time.Hour+idleInterval || age < 54*time.Minute {
				t.Errorf("%d shards: the first point is %s old, want an hour", c.shards, age)
			}
			if first.Processed <= 0 || chartOf(now.Samples, now.At).Processed == "" {
				t.Errorf("%d shards: got %v, want a line", c.shards, first)
			}
			if c.shards > chunkShards {
				return
			}
			for range 3 * 3600 { // somebody looks on for three hours
				time.Sleep(time.Second)
				now, _ = s.registerWatcher("")
			}
			if n := len(now.Samples); n < 255 || n > 300 {
				t.Errorf("%d shards: got %d points after three hours, want about 270", c.shards, n)
			}
		})
	}
}

func TestSamplerLeavesRedisToTheJobs(t *testing.T) {
	t.Parallel()
	entries := map[string]protocol.RegistryEntry{}
	for i := range 1000 {
		entries["q"+string(rune('a'+i/100))+string(rune('a'+i/10%10))+string(rune('a'+i%10))] = protocol.RegistryEntry{Shards: 50}
	}
	src := &fakeSource{entries: entries, takes: 6 * time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		began := time.Now()
		now := s.await(t.Context(), "", hasFigures)
		if took := time.Since(began); took > firstWait {
			t.Errorf("got %s for the first look, want at most %s", took, firstWait)
		}
		if got := now.sumTotals(); got.Queues != 1000 || hasFigures(now) {
			t.Errorf("got %d queues, figured %t, at the first look; want their names, and no figures", got.Queues, hasFigures(now))
		}
		_, change := s.registerWatcher("")
		<-change
		partial, _ := s.registerWatcher("qjjj")
		if got := partial.sumTotals(); got.Read == 0 || got.Complete() {
			t.Errorf("got %d of %d queues in the first snapshot, want some", got.Read, got.Queues)
		}
		time.Sleep(3 * interval)
		if now, _ := s.registerWatcher("qjjj"); now.queue("qjjj").At.IsZero() {
			t.Error("got no figures of the queue that somebody looks at, want it read out of turn")
		}
		for range 10 {
			time.Sleep(interval)
			s.registerWatcher("")
		}
		if now, _ := s.registerWatcher(""); !now.sumTotals().Complete() || now.sumTotals().Jobs.Ready != 50_000 {
			t.Errorf("got %+v after 24 s, want all 50,000 shards", now.sumTotals())
		}
		_, busy := src.count()
		if share := float64(busy) / float64(time.Since(began)); share > .11 {
			t.Errorf("got %.0f%% of Redis's time, want a tenth", 100*share)
		}
	})
}

func TestSamplerSaysWhenItCannotRead(t *testing.T) {
	t.Parallel()
	src := &fakeSource{entries: oneQueue(2), takes: time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		s.await(t.Context(), "", hasFigures)
		src.fail(errors.New("away"))
		time.Sleep(2 * interval)
		now, _ := s.registerWatcher("")
		if now.Err == nil || now.sumTotals().Jobs.Ready != 2 {
			t.Errorf("got error %v and %d jobs, want the error and what was known", now.Err, now.sumTotals().Jobs.Ready)
		}
		src.fail(nil)
		time.Sleep(2 * interval)
		if now, _ := s.registerWatcher(""); now.Err != nil {
			t.Errorf("got %v after Redis was back, want no error", now.Err)
		}
	})
}

func TestSamplerReckonsRates(t *testing.T) {
	t.Parallel()
	src := &fakeSource{entries: oneQueue(1), takes: time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		s.await(t.Context(), "", hasFigures)
		time.Sleep(5*interval + interval/2)
		now, _ := s.registerWatcher("")
		if got := now.sumTotals().Rate.Processed; got < 4.5 || got > 5.5 {
			t.Errorf("got %.1f per second, want about 5", got)
		}
		if n := len(now.Samples); n < 4 || n > 7 {
			t.Errorf("got %d points, want about one every %s", n, interval)
		}
		if c := chartOf(now.Samples, now.At); c.Processed == "" || c.Area == "" || c.Top != 5 && c.Top != 10 {
			t.Errorf("got chart %+v, want lines", c)
		}
	})
}

func TestSamplerForgetsQueuesThatAreGone(t *testing.T) {
	t.Parallel()
	src := &fakeSource{entries: oneQueue(1), takes: time.Millisecond}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		s.await(t.Context(), "", hasFigures)
		src.mu.Lock()
		src.entries = map[string]protocol.RegistryEntry{"mail": {Shards: 2}}
		src.mu.Unlock()
		time.Sleep(3 * interval)
		now, _ := s.registerWatcher("")
		if now.queue("orders") != nil || now.queue("mail") == nil {
			t.Errorf("got %+v, want mail alone", now.Queues)
		}
	})
}

func TestSamplerNeverGoesBackBehindAPage(t *testing.T) {
	t.Parallel()
	src := &fakeSource{entries: oneQueue(3), takes: interval / 50}
	inBubble(t, src, func(t *testing.T, s *sampler) {
		began := time.Now()
		known := s.await(t.Context(), "", hasFigures)
		time.Sleep(interval + interval/100 - time.Since(began)) // the second sweep is under way
		page := *known.queue("orders")
		page.Entry.Paused, page.At, page.Sum = true, time.Now(), protocol.Stats{Jobs: protocol.Counts{Ready: 7}}
		s.learnFigures(&page)
		now, change := s.registerWatcher("")
		for sight := range 2 {
			if f := now.queue("orders"); !f.Entry.Paused || f.Sum.Jobs.Ready != 7 {
				t.Errorf("got paused %t and %d jobs in sight %d, want what the page has shown", f.Entry.Paused, f.Sum.Jobs.Ready, sight)
			}
			<-change
			now, change = s.registerWatcher("")
		}
		time.Sleep(2 * interval)
		now, _ = s.registerWatcher("")
		if f := now.queue("orders"); f.Entry.Paused || f.Sum.Jobs.Ready != 3 {
			t.Errorf("got paused %t and %d jobs at last, want what was read since", f.Entry.Paused, f.Sum.Jobs.Ready)
		}
	})
}

// A point of the chart is the mean of all readings of its quarter of a minute, which grow old one by one.
func TestThinnedIsTheMean(t *testing.T) {
	t.Parallel()
	began := time.Unix(1763600010, 0).Truncate(idleInterval)
	var samples []sample
	for i := range 60 {
		at := began.Add(time.Duration(i) * 3 * time.Second)
		samples = thinSamples(append(samples, sample{At: at, rate: rate{Processed: float64(i % 5), Failed: float64(i % 5 * 2)}}), at, chartFine, idleInterval)
	}
	if n := len(samples); n > 30 {
		t.Errorf("got %d points of three minutes, want one for each quarter of the first two", n)
	}
	for _, s := range samples[:7] {
		if s.readings != 5 || s.Processed != 2 || s.Failed != 4 {
			t.Errorf("got %v, want 2 processed and 4 failed, of 5 readings", s)
		}
	}
}
