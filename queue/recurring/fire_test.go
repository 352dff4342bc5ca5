package recurring

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/queue"
)

// fakeBook is the book by its rules, in memory: what Redis does in its scripts.
type fakeBook struct {
	mu      sync.Mutex // guards the fields below
	entries map[string]string
	rev     int
	ticks   map[string]time.Time
	ticked  map[string]kept
	from    map[string]int64       // by name: the number of the last tick that was taken in
	pushed  map[string][]time.Time // by name, in order
	missed  map[string]int64       // as their headers say

	refuse func(name string) error // what the queue says
	twice  bool                    // for a test that must fail: deliveries are not compared
}

func newFake() *fakeBook {
	return &fakeBook{
		entries: map[string]string{}, ticks: map[string]time.Time{}, ticked: map[string]kept{}, from: map[string]int64{}, pushed: map[string][]time.Time{},
		missed: map[string]int64{}, refuse: func(string) error { return nil },
	}
}

func (b *fakeBook) set(name string, s stored) {
	b.rev++
	s.Rev = int64(b.rev)
	text, _ := json.Marshal(s)
	b.entries[name] = string(text)
	schedule, err := s.spec().schedule()
	if err != nil {
		panic(err)
	}
	b.ticks[name] = schedule.Next(time.Now())
}

func (b *fakeBook) read(_ context.Context, rev string) (page, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := page{now: time.Now(), rev: fmt.Sprint(b.rev), ticks: maps.Clone(b.ticks), ticked: maps.Clone(b.ticked)}
	if rev != p.rev || len(b.ticks) != len(b.entries) {
		p.entries = maps.Clone(b.entries)
	}
	return p, nil
}

func (b *fakeBook) advance(_ context.Context, name, text string, tick, next time.Time, of kept) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entries[name] != text || !b.ticks[name].Equal(tick) {
		return false, nil
	}
	b.ticks[name], b.ticked[name] = next, of
	return true, nil
}

func (b *fakeBook) deliver(_ context.Context, name string, _ Spec, tick time.Time, missed int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if tick.UnixMicro() <= b.from[name] && !b.twice {
		return nil
	}
	if err := b.refuse(name); err != nil {
		return err
	}
	b.from[name] = tick.UnixMicro()
	b.pushed[name] = append(b.pushed[name], tick)
	b.missed[name] += missed
	return nil
}

func (b *fakeBook) drop(_ context.Context, name string, _ int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, name)
	delete(b.ticks, name)
	b.rev++
	return nil
}

func (b *fakeBook) Declare(_ context.Context, file map[string]Spec, since time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, spec := range file {
		b.set(name, stored{File: &spec, Since: since.UnixMicro()})
	}
	return nil
}

// mortal is the book in the hands of a process that may die, or be slow, before and behind each step.
type mortal struct {
	*fakeBook
	step func() error
}

func (m *mortal) read(ctx context.Context, rev string) (page, error) {
	if err := m.step(); err != nil {
		return page{}, err
	}
	return m.fakeBook.read(ctx, rev)
}

func (m *mortal) advance(ctx context.Context, name, text string, tick, next time.Time, of kept) (bool, error) {
	if err := m.step(); err != nil {
		return false, err
	}
	done, _ := m.fakeBook.advance(ctx, name, text, tick, next, of)
	return done, m.step()
}

func (m *mortal) deliver(ctx context.Context, name string, spec Spec, tick time.Time, missed int64) error {
	if err := m.step(); err != nil {
		return err
	}
	return errors.Join(m.fakeBook.deliver(ctx, name, spec, tick, missed), m.step())
}

// firer is one that leads, or not, as leads says.
func firer(leads *bool) *Firer {
	return &Firer{
		Leads:    func() bool { return *leads },
		Files:    func(context.Context) ([]string, bool) { return nil, true },
		Patience: 18 * time.Second, Since: func(context.Context) (time.Time, error) { return time.Now(), nil },
		Late: func(time.Duration) {}, Missed: func(string, int64) {}, Warn: func(string, error) {}, Log: slog.New(slog.DiscardHandler),
	}
}

func every(d time.Duration, change ...func(*Spec)) Spec {
	s := Spec{Every: Duration(d), Queue: "q"}
	for _, f := range change {
		f(&s)
	}
	return s
}

// check compares what was pushed with the ticks of a second each in a time.
func (b *fakeBook) check(name string, from, to time.Time, d time.Duration) error {
	var errs []error
	var want []time.Time
	for tick := from.Truncate(d).Add(d); !tick.After(to); tick = tick.Add(d) {
		want = append(want, tick)
	}
	got := b.pushed[name]
	if len(got) < len(want)-1 || len(got) > len(want)+1 {
		errs = append(errs, fmt.Errorf("got %d pushes, want %d", len(got), len(want)))
	}
	for i := range min(len(got), len(want)) {
		if !got[i].Equal(want[i]) {
			return errors.Join(append(errs, fmt.Errorf("push %d: got the tick %v, want %v", i, got[i], want[i]))...)
		}
	}
	return errors.Join(errs...)
}

var errDied = errors.New("died")

// lives runs firers that die at any step and begin anew, and leaders that come and go, two at once
// now and then, for two minutes.
func lives(seed uint64, twice bool) (err error) {
	b := newFake()
	b.twice = twice
	var mu sync.Mutex // guards r, leads and calm
	r := rand.New(rand.NewPCG(seed, 1))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	var leads [3]bool
	calm := false
	b.set("s", stored{Edit: new(every(time.Second))})
	begun := time.Now()
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range leads {
		all.Go(func() {
			for ctx.Err() == nil {
				life, die := context.WithCancel(ctx)
				f := firer(new(false))
				f.Leads = func() bool { mu.Lock(); defer mu.Unlock(); return leads[i] }
				f.run(life, &mortal{b, func() error {
					time.Sleep(time.Duration(roll(40)) * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					if !calm && r.IntN(12) == 0 {
						die()
					}
					if life.Err() != nil {
						return errDied
					}
					return nil
				}})
				die()
				time.Sleep(time.Duration(roll(3000)) * time.Millisecond)
			}
		})
	}
	for range 60 {
		time.Sleep(2 * time.Second)
		one, other := roll(3), roll(3)
		mu.Lock()
		leads[one], leads[other] = true, false
		mu.Unlock()
	}
	mu.Lock()
	leads, calm = [3]bool{true, true, true}, true
	mu.Unlock()
	time.Sleep(10 * time.Second)
	end()
	until := time.Now()
	all.Wait()
	return b.check("s", begun, until, time.Second)
}

// One push per tick: leaders die between each two steps, others take over, two lead at once.
func TestOnePushPerTick(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			if err := lives(seed, false); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

// Were deliveries not compared by their numbers, it would show.
func TestOnePushPerTickObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := lives(1, true); err == nil {
			t.Error("deliveries that are taken in twice: got no objection")
		}
	})
}

// runFor has one firer lead for a while.
func runFor(b *fakeBook, d time.Duration, change ...func(*Firer)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	f := firer(new(true))
	for _, do := range change {
		do(f)
	}
	f.run(ctx, b)
}

// An outage of all is caught up as the rule says, and what is less late than a minute by itself.
func TestMissedTicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule         func(*Spec)
		down         time.Duration
		pushed       int // at once
		missed, told int64
	}{
		{nil, 30 * time.Second, 3, 0, 0},
		{nil, 10 * time.Minute, 1 + 6, 53, 53},
		{func(s *Spec) { s.Missed = None }, 10 * time.Minute, 6, 0, 54},
		{func(s *Spec) { s.Missed = All }, 10 * time.Minute, 60, 0, 0},
		{func(s *Spec) { s.Missed, s.Backlog = All, 20 }, 10 * time.Minute, 20 + 6, 34, 34},
		{nil, 500 * 24 * time.Hour, 1 + 6, 366*8640 - 7, 366*8640 - 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newFake()
			b.set("s", stored{Edit: new(every(10*time.Second, slices.DeleteFunc([]func(*Spec){c.rule}, func(f func(*Spec)) bool { return f == nil })...))})
			time.Sleep(c.down + 5*time.Second)
			told := int64(0)
			runFor(b, 3*time.Second, func(f *Firer) { f.Missed = func(_ string, n int64) { told += n } })
			if got := len(b.pushed["s"]); got != c.pushed {
				t.Errorf("down for %v: got %d pushes at once, want %d", c.down, got, c.pushed)
			}
			if b.missed["s"] != c.missed || told != c.told || b.ticked["s"].Missed != c.told {
				t.Errorf("down for %v: got %d missed by the headers, %d counted, want %d, %d", c.down, b.missed["s"], told, c.missed, c.told)
			}
		})
	}
}

// A tick that its queue refuses is missed; the next one comes as planned.
func TestRefusedTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", stored{Edit: new(every(10 * time.Second))})
		n := 0
		b.refuse = func(string) error {
			if n++; n == 2 {
				return fmt.Errorf("job s: %w", queue.ErrTooManyPayloads)
			}
			return nil
		}
		runFor(b, 25*time.Second)
		if got := b.ticked["s"]; len(b.pushed["s"]) != 1 || got.Missed != 1 || got.Error == "" {
			t.Errorf("got %v, %+v, want one push and one missed", b.pushed["s"], got)
		}
		runFor(b, 10*time.Second)
		if got := b.ticked["s"]; len(b.pushed["s"]) != 2 || got.Missed != 1 || got.Error != "" {
			t.Errorf("got %v, %+v, want the next one pushed", b.pushed["s"], got)
		}
	})
}

// What one process cannot push waits for another one that can.
func TestTickThatNeedsAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", stored{Edit: new(every(time.Minute))})
		lacks := true
		b.refuse = func(string) error {
			if lacks {
				return queue.ErrCodec
			}
			return nil
		}
		runFor(b, 75*time.Second)
		if len(b.pushed["s"]) != 0 || b.ticked["s"].Missed != 0 {
			t.Fatalf("got %v, %+v, want neither a push nor a missed tick yet", b.pushed["s"], b.ticked["s"])
		}
		lacks = false
		runFor(b, 10*time.Second, func(f *Firer) { f.Leads = func() bool { return false } })
		if len(b.pushed["s"]) != 1 {
			t.Errorf("got %v, want the tick pushed by who does not lead", b.pushed["s"])
		}
	})
}

// Without a leader any process pushes what is late by its patience.
func TestAnyProcessPushesWhatIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", stored{Edit: new(every(time.Minute))})
		tick := b.ticks["s"]
		var late time.Duration
		runFor(b, time.Until(tick)+17*time.Second, func(f *Firer) {
			f.Leads = func() bool { return false }
			f.Late = func(d time.Duration) { late = d }
		})
		if len(b.pushed["s"]) != 0 || late < 10*time.Second {
			t.Fatalf("got %v, late %v, want it late and not pushed yet", b.pushed["s"], late)
		}
		runFor(b, 8*time.Second, func(f *Firer) { f.Leads = func() bool { return false } })
		if len(b.pushed["s"]) != 1 {
			t.Errorf("got %v, want one push", b.pushed["s"])
		}
	})
}

// A paused entry's ticks go by, jitter moves pushes and not ticks, an entry without a tick gets one.
func TestPausedJitteredAndLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("p", stored{Edit: new(every(time.Second)), Paused: true})
		b.set("j", stored{Edit: new(every(10*time.Second, func(s *Spec) { s.Jitter = Duration(9 * time.Second) }))})
		b.set("l", stored{Edit: new(every(time.Second))})
		delete(b.ticks, "l")
		begun := time.Now()
		runFor(b, 61*time.Second)
		if len(b.pushed["p"]) != 0 || !b.ticks["p"].After(time.Now().Add(-2*time.Second)) {
			t.Errorf("paused: got %v, next %v, want ticks that go by", b.pushed["p"], b.ticks["p"])
		}
		if err := b.check("j", begun, time.Now().Add(-9*time.Second), 10*time.Second); err != nil {
			t.Errorf("jittered: %v", err)
		}
		if len(b.pushed["l"]) < 50 {
			t.Errorf("without a tick: got %d pushes, want it to get one", len(b.pushed["l"]))
		}
	})
}

// What a file has is written, and removed a minute after no live process has it.
func TestEntriesOfFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		runFor(b, time.Minute, func(f *Firer) { f.File = map[string]Spec{"f": every(time.Second)} })
		if len(b.entries) != 1 || len(b.pushed["f"]) < 55 {
			t.Fatalf("got %v, %d pushes, want the file's entry pushed each second", b.entries, len(b.pushed["f"]))
		}
		runFor(b, 2*time.Minute, func(f *Firer) { f.Files = func(context.Context) ([]string, bool) { return []string{"f"}, true } })
		if len(b.entries) != 1 {
			t.Fatal("the entry of another live process was removed")
		}
		runFor(b, 59*time.Second)
		if len(b.entries) != 1 {
			t.Fatal("the entry was removed before a minute was over")
		}
		runFor(b, 63*time.Second)
		if len(b.entries) != 0 {
			t.Errorf("got %v, want the entry of no file removed", b.entries)
		}
	})
}

// decide never pushes what is not due, goes on, and counts each tick once: as pushed or as missed.
func TestDecideCountsEachTick(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := every(time.Duration(rapid.IntRange(1, 500).Draw(t, "every"))*time.Second, func(s *Spec) {
			s.Missed = rapid.SampledFrom([]Missed{One, None, All}).Draw(t, "missed")
			s.Jitter = Duration(time.Duration(rapid.IntRange(0, 900).Draw(t, "jitter")) * time.Millisecond)
		}).withDefaults("n")
		schedule, err := spec.schedule()
		if err != nil {
			t.Fatal(err)
		}
		tick := schedule.Next(time.Unix(rapid.Int64Range(1_700_000_000, 1_700_001_000).Draw(t, "from"), 0))
		now := tick.Add(time.Duration(rapid.Int64Range(-10, 5000).Draw(t, "late")) * time.Second)
		first, counted := tick, int64(0)
		for steps := 0; ; steps++ {
			do, due := decide("n", spec, schedule, false, tick, now)
			if do.next.IsZero() {
				if !due.After(now) {
					t.Fatal("something is due, and nothing is done")
				}
				break
			}
			if do.push && do.tick.Add(calendar.Jitter("n", do.tick, time.Duration(spec.Jitter))).After(now) {
				t.Fatalf("pushed %v before its time, %v", do.tick, now)
			}
			counted += do.missed
			if do.push {
				counted++
			}
			if !do.next.After(cmp.Or(do.tick, tick)) || steps > 300 {
				t.Fatalf("step %d: %+v does not go on", steps, do)
			}
			tick = do.next
		}
		if want := int64(tick.Sub(first) / time.Duration(spec.Every)); counted != want {
			t.Errorf("got %d ticks pushed or missed, want %d", counted, want)
		}
	})
}
