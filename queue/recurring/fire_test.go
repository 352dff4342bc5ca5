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
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// fakeBook is a book in memory that follows the rules of the scripts in Redis.
type fakeBook struct {
	mu      sync.Mutex // guards the fields below
	entries map[string]string
	rev     int
	ticks   map[string]time.Time
	ticked  map[string]lastTick
	from    map[string]int64       // by name, queue and id: the number of the last push that was taken in
	pushed  map[string][]time.Time // by name, in order
	missed  map[string]int64       // as their headers say

	ahead  time.Duration           // by how much Redis's clock is ahead
	refuse func(name string) error // what the queue says
	twice  bool                    // for a test that must fail: deliveries are not compared
}

func newFake() *fakeBook {
	return &fakeBook{
		entries: map[string]string{}, ticks: map[string]time.Time{}, ticked: map[string]lastTick{}, from: map[string]int64{}, pushed: map[string][]time.Time{},
		missed: map[string]int64{}, refuse: func(string) error { return nil },
	}
}

func (b *fakeBook) set(name string, s storedEntry) {
	b.rev++
	s.Rev = int64(b.rev)
	text, _ := json.Marshal(s)
	b.entries[name] = string(text)
	schedule, err := s.effectiveSpec().parseSchedule()
	if err != nil {
		panic(err)
	}
	b.ticks[name] = schedule.Next(time.Now())
}

// edit changes an entry and leaves its tick.
func (b *fakeBook) edit(name string, change func(*Spec)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := parseEntry(name, b.entries[name])
	if err != nil {
		panic(err)
	}
	spec := s.effectiveSpec()
	change(&spec)
	b.rev++
	s.Edit, s.Rev = &spec, int64(b.rev)
	text, _ := json.Marshal(s)
	b.entries[name] = string(text)
}

func (b *fakeBook) readSince(_ context.Context, rev string) (snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := snapshot{now: time.Now().Add(b.ahead), rev: fmt.Sprint(b.rev), ticks: maps.Clone(b.ticks), ticked: maps.Clone(b.ticked)}
	if rev != p.rev || len(b.ticks) != len(b.entries) {
		p.entries = maps.Clone(b.entries)
	}
	return p, nil
}

func (b *fakeBook) advanceTick(_ context.Context, name, text string, tick, next time.Time, was string, of lastTick) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to, err := of.encodeJSON()
	switch {
	case err != nil || b.entries[name] != text:
		return false, err
	case b.ticked[name].text == to && b.ticks[name].Equal(next):
		return true, nil
	case b.ticked[name].text != was || !b.ticks[name].Equal(tick):
		return false, nil
	}
	of = lastTick{text: to}
	if err := json.Unmarshal([]byte(to), &of); err != nil {
		return false, err
	}
	b.ticks[name], b.ticked[name] = next, of
	return true, nil
}

func (b *fakeBook) deliverTick(_ context.Context, name string, number int64, of begunPush) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	shard := fmt.Sprintf("%s/%s/%s", name, of.Spec.Queue, of.Spec.ID)
	if number <= b.from[shard] && !b.twice {
		return nil
	}
	if err := b.refuse(name); err != nil {
		return err
	}
	b.from[shard] = number
	b.pushed[name] = append(b.pushed[name], time.UnixMicro(of.Tick))
	b.missed[name] += of.Missed
	return nil
}

func (b *fakeBook) dropFile(_ context.Context, name string, _ int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, name)
	delete(b.ticks, name)
	b.rev++
	return nil
}

func (b *fakeBook) releaseFile(_ context.Context, name string, since int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, err := parseEntry(name, b.entries[name]); err == nil && s.Since == since {
		s.Since, s.By = 0, ""
		b.set(name, s)
	}
	return nil
}

func (b *fakeBook) Declare(_ context.Context, file map[string]Spec, since time.Time, boot string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, spec := range file {
		if s, err := parseEntry(name, b.entries[name]); err == nil && s.Since >= since.UnixMicro() {
			continue
		}
		b.set(name, storedEntry{File: &spec, Since: since.UnixMicro(), By: boot})
	}
	return nil
}

// mortal is the book of a process that may die or be slow before and after each step.
type mortal struct {
	*fakeBook
	step func() error
}

func (m *mortal) readSince(ctx context.Context, rev string) (snapshot, error) {
	if err := m.step(); err != nil {
		return snapshot{}, err
	}
	return m.fakeBook.readSince(ctx, rev)
}

func (m *mortal) advanceTick(ctx context.Context, name, text string, tick, next time.Time, was string, of lastTick) (bool, error) {
	if err := m.step(); err != nil {
		return false, err
	}
	done, _ := m.fakeBook.advanceTick(ctx, name, text, tick, next, was, of)
	return done, m.step()
}

func (m *mortal) deliverTick(ctx context.Context, name string, number int64, of begunPush) error {
	if err := m.step(); err != nil {
		return err
	}
	return errors.Join(m.fakeBook.deliverTick(ctx, name, number, of), m.step())
}

// firer returns a firer that leads if leads says so.
func firer(leads *bool) *Firer {
	return &Firer{
		Leads:    func() bool { return *leads },
		Files:    func(context.Context) ([]Process, bool) { return nil, true },
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

// check compares the pushes with the ticks of each second in a period.
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

// lives runs firers for two minutes that die at any step and restart, and leaders that come and go,
// sometimes two at once, while the entry's id and queue are edited.
func lives(seed uint64, twice bool) (err error) {
	b := newFake()
	b.twice = twice
	var mu sync.Mutex // guards r, leads and calm
	r := rand.New(rand.NewPCG(seed, 1))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	var leads [3]bool
	calm := false
	b.set("s", storedEntry{Edit: new(every(time.Second))})
	begun := time.Now()
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range leads {
		all.Go(func() {
			for ctx.Err() == nil {
				life, die := context.WithCancel(ctx)
				f := firer(new(false))
				f.Leads = func() bool { mu.Lock(); defer mu.Unlock(); return leads[i] }
				f.runWith(life, &mortal{b, func() error {
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
	all.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			time.Sleep(time.Duration(roll(1000)) * time.Millisecond)
			b.edit("s", func(s *Spec) { s.ID, s.Queue = fmt.Sprint("id", n), fmt.Sprint("q", n%3) })
		}
	})
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

// Each tick is pushed once, although leaders die between any two steps, others take over, two lead
// at once, and the entry is edited.
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

// Without the comparison of delivery numbers this test must fail.
func TestOnePushPerTickObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := lives(1, true); err == nil {
			t.Error("deliveries that are taken in twice: got no objection")
		}
	})
}

// runFor runs a leading firer for a while.
func runFor(b *fakeBook, d time.Duration, change ...func(*Firer)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	f := firer(new(true))
	for _, do := range change {
		do(f)
	}
	f.runWith(ctx, b)
}

// After an outage of all processes ticks are caught up by the rule. Ticks that are late by less
// than a minute are pushed one by one.
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
			b.set("s", storedEntry{Edit: new(every(10*time.Second, slices.DeleteFunc([]func(*Spec){c.rule}, func(f func(*Spec)) bool { return f == nil })...))})
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

// A tick that its queue refuses is missed. The next tick comes as planned.
func TestRefusedTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", storedEntry{Edit: new(every(10 * time.Second))})
		n := 0
		b.refuse = func(string) error {
			if n++; n == 2 {
				return fmt.Errorf("job s: %w", protocol.ErrTooManyPayloads)
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

// A tick that a process cannot push waits for a process that can.
func TestTickThatNeedsAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", storedEntry{Edit: new(every(time.Minute))})
		lacks := true
		b.refuse = func(string) error {
			if lacks {
				return protocol.ErrCodec
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

// Without a leader any process pushes ticks that are late by its patience.
func TestAnyProcessPushesWhatIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("s", storedEntry{Edit: new(every(time.Minute))})
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

// The ticks of a paused entry are skipped, jitter moves pushes and not ticks, and an entry without
// a tick gets one.
func TestPausedJitteredAndLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("p", storedEntry{Edit: new(every(time.Second)), Paused: true})
		b.set("j", storedEntry{Edit: new(every(10*time.Second, func(s *Spec) { s.Jitter = Duration(9 * time.Second) }))})
		b.set("l", storedEntry{Edit: new(every(time.Second))})
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

// The entries of a file are written, and are removed a minute after the last live process that has
// them has ended.
func TestEntriesOfFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		runFor(b, time.Minute, func(f *Firer) { f.Boot, f.File = "b1", map[string]Spec{"f": every(time.Second)} })
		if len(b.entries) != 1 || len(b.pushed["f"]) < 55 {
			t.Fatalf("got %v, %d pushes, want the file's entry pushed each second", b.entries, len(b.pushed["f"]))
		}
		runFor(b, 2*time.Minute, func(f *Firer) {
			f.Files = func(context.Context) ([]Process, bool) { return []Process{{"b1", []string{"f"}}}, true }
		})
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

// The minute of absence is measured by the process's own clock, and leases are read every ten
// seconds.
func TestAbsenceIsByTheClockOfTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newFake()
		b.set("f", storedEntry{File: new(every(time.Hour)), Since: 1, By: "b1"})
		asked := 0
		runFor(b, 55*time.Second, func(f *Firer) {
			f.Files = func(context.Context) ([]Process, bool) {
				asked++
				b.mu.Lock()
				defer b.mu.Unlock()
				b.ahead += 10 * time.Minute
				return nil, true
			}
		})
		if len(b.entries) != 1 || asked < 4 || asked > 6 {
			t.Errorf("got %d entries, leases read %d times within 55 s, want the entry kept and leases read each 10 s", len(b.entries), asked)
		}
	})
}

// Of two processes with different files, the later process counts while it lives, and the other a
// minute after it has ended, whichever of them leads.
func TestFileOfTheLivingHolds(t *testing.T) {
	t.Parallel()
	for _, leader := range []string{"old", "other"} {
		synctest.Test(t, func(t *testing.T) {
			b := newFake()
			files := map[string]map[string]Spec{
				"old": {"f": every(time.Second)}, "new": {"f": every(time.Hour)}, "other": {"g": every(time.Hour)},
			}
			live := map[string]bool{}
			run := func(boot string) (end func()) {
				ctx, cancel := context.WithCancel(t.Context())
				f := firer(new(boot == leader))
				f.Boot, f.File = boot, files[boot]
				f.Files = func(context.Context) (all []Process, _ bool) {
					b.mu.Lock()
					defer b.mu.Unlock()
					for boot := range live {
						all = append(all, Process{boot, slices.Collect(maps.Keys(files[boot]))})
					}
					return all, true
				}
				b.mu.Lock()
				live[boot] = true
				b.mu.Unlock()
				ended := make(chan struct{})
				go func() { f.runWith(ctx, b); close(ended) }()
				time.Sleep(time.Second)
				return func() {
					b.mu.Lock()
					delete(live, boot)
					b.mu.Unlock()
					cancel()
					<-ended
				}
			}
			holds := func(what string, want time.Duration) {
				t.Helper()
				b.mu.Lock()
				defer b.mu.Unlock()
				if s, err := parseEntry("f", b.entries["f"]); err != nil || s.effectiveSpec().Every != Duration(want) {
					t.Errorf("%s leads, %s: got %+v, %v, want each %v", leader, what, s.effectiveSpec(), err, want)
				}
			}
			defer run("old")()
			defer run("other")()
			end := run("new")
			time.Sleep(3 * time.Minute)
			holds("all live", time.Hour)
			end()
			time.Sleep(40 * time.Second)
			holds("the later one has ended just now", time.Hour)
			time.Sleep(time.Minute)
			holds("the later one has ended", time.Second)
			defer run("new")()
			time.Sleep(3 * time.Minute)
			holds("the later one is back", time.Hour)
		})
	}
}

// decideStep never pushes a tick that is not due, always advances, and counts each tick once, as
// pushed or as missed.
func TestDecideCountsEachTick(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := every(time.Duration(rapid.IntRange(1, 500).Draw(t, "every"))*time.Second, func(s *Spec) {
			s.Missed = rapid.SampledFrom([]Missed{One, None, All}).Draw(t, "missed")
			s.Jitter = Duration(time.Duration(rapid.IntRange(0, 900).Draw(t, "jitter")) * time.Millisecond)
		}).withDefaults("n")
		schedule, err := spec.parseSchedule()
		if err != nil {
			t.Fatal(err)
		}
		tick := schedule.Next(time.Unix(rapid.Int64Range(1_700_000_000, 1_700_001_000).Draw(t, "from"), 0))
		now := tick.Add(time.Duration(rapid.Int64Range(-10, 5000).Draw(t, "late")) * time.Second)
		first, counted := tick, int64(0)
		for steps := 0; ; steps++ {
			do, due := decideStep("n", spec, schedule, false, tick, now)
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
