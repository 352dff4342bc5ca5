package recurring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// eachRedis runs a test as [redistest.Each] does.
func eachRedis(t *testing.T, test func(t *testing.T, c *protocol.Client)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, url string, hooks ...redis.Hook) {
		c, err := protocol.Open(protocol.Config{Redis: url, Cluster: strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()), Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for _, hook := range hooks {
			c.DB().ForTests().AddHook(hook)
		}
		test(t, c)
	})
}

func no(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

func get(t *testing.T, b *Book, name string) Entry {
	t.Helper()
	e, err := b.Entry(t.Context(), name)
	no(t, err)
	return e
}

func TestBook(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *protocol.Client) {
		ctx, b := t.Context(), Of(c)
		hourly := spec(`{"every":"1h","queue":"q","payload":{"at":"{tick}"}}`)
		want(t, "add with no queue", b.Add(ctx, "n", hourly), lowkiq.ErrUnknownQueue)
		_, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
		no(t, err)
		want(t, "add without a time", b.Add(ctx, "n", Spec{Queue: "q"}), ErrSpec)
		no(t, b.Add(ctx, "n", hourly))
		e := get(t, b, "n")
		now, err := c.Time(ctx)
		no(t, err)
		if next := now.Truncate(time.Hour).Add(time.Hour); e.Origin != AtRunTime || e.ID != "n" || e.Missed != 0 || e.Next == nil || e.Next.Sub(next).Abs() > time.Hour || e.Schedule != "every 1h" {
			t.Errorf("got %+v, want it next at %v", e, next)
		}
		for what, err := range map[string]error{
			"edit": b.Edit(ctx, "x", func(*Spec) error { return nil }), "pause": b.Pause(ctx, "x"), "remove": b.Remove(ctx, "x"), "reset": b.Reset(ctx, "x"),
		} {
			want(t, what+" of what is not there", err, ErrUnknown)
		}
		_, err = b.Run(ctx, "x")
		want(t, "run of what is not there", err, ErrUnknown)
		no(t, b.Pause(ctx, "n"))
		if !get(t, b, "n").Paused {
			t.Error("paused: it is not")
		}
		no(t, b.Resume(ctx, "n"))
		no(t, b.Edit(ctx, "n", func(s *Spec) error { s.Every = Duration(2 * time.Hour); return nil }))
		if e := get(t, b, "n"); e.Schedule != "every 2h" || e.Next.Unix()%7200 != 0 || !e.Next.After(now) {
			t.Errorf("edited: got %+v", e)
		}
		want(t, "a bad edit", b.Edit(ctx, "n", func(s *Spec) error { s.Every = 5; return nil }), ErrSpec)
		want(t, "reset of what no file has", b.Reset(ctx, "n"), ErrSpec)
		times, err := b.Upcoming(ctx, "n", 3)
		no(t, err)
		if len(times) != 3 || times[2].Sub(times[0]) != 4*time.Hour {
			t.Errorf("upcoming: got %v", times)
		}
		_, err = b.Run(ctx, "n")
		no(t, err)
		q, err := c.Queue(ctx, "q")
		no(t, err)
		stats, err := q.Stats(ctx)
		no(t, err)
		if stats.Jobs.Ready != 1 {
			t.Errorf("run: got %+v, want one job", stats.Jobs)
		}
		no(t, b.Remove(ctx, "n"))
		all, err := b.List(ctx)
		no(t, err)
		if len(all) != 0 {
			t.Errorf("removed: got %+v", all)
		}
	})
}

// An Add whose script is sent twice succeeds.
func TestAddTwice(t *testing.T) {
	t.Parallel()
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL(), Timeout: time.Minute})
	no(t, err)
	defer c.Close()
	_, err = c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 1})
	no(t, err)
	b := Of(c)
	no(t, b.Add(t.Context(), "n", spec(`{"every":"1h","queue":"q"}`)))
	want(t, "the second", b.Add(t.Context(), "n", spec(`{"every":"2h","queue":"q"}`)), ErrExists)
}

// All entries are read together, so they are bounded together. Existing entries can be paused, made
// smaller and removed.
func TestBookIsFull(t *testing.T) {
	t.Parallel()
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL(), Timeout: time.Minute})
	no(t, err)
	defer c.Close()
	ctx, b := t.Context(), Of(c)
	_, err = c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1})
	no(t, err)
	large := spec(`{"every":"1h","queue":"q","payload":"` + strings.Repeat("x", maxPayload-100) + `"}`)
	n, full := 0, error(nil)
	for ; full == nil && n <= MaxEntries; n++ {
		full = b.Add(ctx, fmt.Sprint("n", n), large)
	}
	want(t, fmt.Sprintf("%d large entries", n), full, ErrTooMany)
	want(t, "one from a file", b.Declare(ctx, map[string]Spec{"f": large}, time.Now(), "b"), ErrTooMany)
	no(t, b.Pause(ctx, "n0"))
	no(t, b.Resume(ctx, "n0"))
	no(t, b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = nil; return nil }))
	no(t, b.Declare(ctx, map[string]Spec{"f": large}, time.Now(), "b"))
	want(t, "an edit", b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = large.Payload; return nil }), ErrTooMany)
	no(t, b.Remove(ctx, "n2"))
	no(t, b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = large.Payload; return nil }))
}

// An entry of a file is never removed, and Reset undoes its edits. Of the files of two processes,
// the file of the process that began later counts.
func TestFiles(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *protocol.Client) {
		ctx, b := t.Context(), Of(c)
		_, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1})
		no(t, err)
		old, later := time.Unix(1_700_000_000, 0), time.Unix(1_700_000_100, 0)
		hour, two := spec(`{"every":"1h","queue":"q"}`), spec(`{"every":"2h","queue":"q"}`)
		no(t, b.Declare(ctx, map[string]Spec{"n": two}, later, "b"))
		no(t, b.Declare(ctx, map[string]Spec{"n": hour}, old, "b"))
		if e := get(t, b, "n"); e.Schedule != "every 2h" || e.Origin != OfFile {
			t.Errorf("of two files: got %+v, want that of the later process", e)
		}
		want(t, "remove", b.Remove(ctx, "n"), ErrOfFile)
		no(t, b.Pause(ctx, "n"))
		no(t, b.Edit(ctx, "n", func(s *Spec) error { s.Every = Duration(3 * time.Hour); return nil }))
		no(t, b.Declare(ctx, map[string]Spec{"n": hour}, later.Add(time.Second), "b"))
		if e := get(t, b, "n"); e.Schedule != "every 3h" || !e.Edited || !e.Paused {
			t.Errorf("edited: got %+v, want the edit and the pause to stay", e)
		}
		no(t, b.Reset(ctx, "n"))
		if e := get(t, b, "n"); e.Schedule != "every 1h" || e.Edited {
			t.Errorf("reset: got %+v, want what the newest file has", e)
		}
		no(t, b.releaseFile(ctx, "n", old.UnixMicro())) // a file of before
		no(t, b.Declare(ctx, map[string]Spec{"n": two}, old, "a"))
		if e := get(t, b, "n"); e.Schedule != "every 1h" {
			t.Errorf("of an older process: got %+v, want what the newest file has", e)
		}
		no(t, b.releaseFile(ctx, "n", later.Add(time.Second).UnixMicro()))
		no(t, b.Declare(ctx, map[string]Spec{"n": two}, old, "a"))
		if e := get(t, b, "n"); e.Schedule != "every 2h" {
			t.Errorf("the newest process has ended: got %+v, want what the older one has", e)
		}
		no(t, b.Declare(ctx, map[string]Spec{"n": hour}, later.Add(time.Second), "b"))
		no(t, b.dropFile(ctx, "n", old.UnixMicro())) // a file of before
		get(t, b, "n")
		no(t, b.dropFile(ctx, "n", later.Add(time.Second).UnixMicro()))
		_, err = b.Entry(ctx, "n")
		want(t, "dropped", err, ErrUnknown)
	})
}

// The scripts do the same as the fake of the model: a tick is delivered once, and only its own next
// tick replaces it.
func TestTicksInRedis(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *protocol.Client) {
		ctx, b := t.Context(), Of(c)
		q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
		no(t, err)
		no(t, b.Add(ctx, "n", spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}"}}`)))
		p, err := b.readSince(ctx, "")
		no(t, err)
		tick, text := p.ticks["n"], p.entries["n"]
		for range 2 {
			no(t, b.deliverTick(ctx, "n", tick.UnixMicro(), begunPush{Tick: tick.UnixMicro(), Spec: spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}"}}`)}))
		}
		jobs, err := q.Stats(ctx)
		no(t, err)
		if jobs.Jobs.Ready != 1 {
			t.Errorf("delivered twice: got %+v, want one", jobs.Jobs)
		}
		next := tick.Add(time.Hour)
		move := func(text string, from time.Time, was string) bool {
			ok, err := b.advanceTick(ctx, "n", text, from, next, was, lastTick{Tick: from.UnixMicro(), Number: from.UnixMicro()})
			no(t, err)
			return ok
		}
		if move(text, tick.Add(-time.Second), "") || move(strings.Replace(text, `"rev":1`, `"rev":2`, 1), tick, "") || move(text, time.Time{}, "") ||
			move(text, tick, "{}") {
			t.Error("a tick that is not the next one, of another entry, or with another last one was replaced")
		}
		move(text, tick, "")
		if p, err = b.readSince(ctx, p.rev); err != nil || !p.ticks["n"].Equal(next) || p.entries != nil {
			t.Errorf("got %+v, %v, want the next tick at %v", p, err, next)
		}
		if ok, err := b.advanceTick(ctx, "n", text, tick, next, "", lastTick{}); ok || err != nil {
			t.Errorf("got %v, %v, want the same tick not replaced again", ok, err)
		}
		if p, err = b.readSince(ctx, ""); err != nil || p.highest != tick.UnixMicro() {
			t.Errorf("got %d, %v, want the number of the push", p.highest, err)
		}
	})
}

// A push that has begun is finished as it began. After that the edit counts.
func TestEditOfABegunPush(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *protocol.Client) {
		ctx, b := t.Context(), Of(c)
		q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
		no(t, err)
		no(t, b.Add(ctx, "n", spec(`{"every":"1h","queue":"q","id":"old"}`)))
		p, err := b.readSince(ctx, "")
		no(t, err)
		tick := p.ticks["n"].Add(-time.Hour)
		no(t, c.DB().ForTests().ZAdd(ctx, c.DB().Keys.Ticks(), redis.Z{Score: float64(tick.UnixMicro()), Member: "n"}).Err())
		of := lastTick{Number: tick.UnixMicro(), Begun: &begunPush{Tick: tick.UnixMicro(), Spec: spec(`{"every":"1h","queue":"q","id":"old"}`)}}
		done, err := b.advanceTick(ctx, "n", p.entries["n"], tick, tick, "", of)
		no(t, err)
		no(t, b.Edit(ctx, "n", func(s *Spec) error { s.ID, s.Every = "new", Duration(2*time.Hour); return nil }))
		if e := get(t, b, "n"); !done || !e.Next.Equal(tick) {
			t.Errorf("got %v, %+v, want the tick to stay, %v", done, e, tick)
		}
		f := firer(new(true))
		f.book, f.entries, f.absent = b, map[string]knownEntry{}, map[string]time.Time{}
		f.runOnce(ctx)
		e := get(t, b, "n")
		if e.Last == nil || !e.Last.Equal(tick) || e.Error != "" || e.Missed != 0 || !e.Next.After(p.now) || e.Next.Unix()%7200 != 0 {
			t.Errorf("got %+v, want the tick pushed and the next one by the edit", e)
		}
		for id, want := range map[string]int64{"old": 1, "new": 0} {
			n, err := c.DB().ForTests().HLen(ctx, q.Of(id).Keys().Jobs).Result()
			no(t, err)
			if q.Of("old") != q.Of("new") && n != want {
				t.Errorf("the shard of %s: got %d jobs, want %d", id, n, want)
			}
		}
	})
}

// A firer on a real Redis pushes once each second, also beside another firer.
func TestFirersOnRedis(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *protocol.Client) {
		b := Of(c)
		_, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 2})
		no(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		for range 2 {
			f := firer(new(true))
			f.File = map[string]Spec{"f": spec(`{"every":"1s","queue":"q","id":"id","payload":{"at":"{tick}"}}`)}
			f.Since, f.Log = c.Time, slog.New(slog.DiscardHandler)
			go func() { f.Run(ctx, b); ended <- struct{}{} }()
		}
		defer func() { cancel(); <-ended; <-ended }()
		deadline := time.Now().Add(time.Minute)
		for time.Now().Before(deadline) {
			e, err := b.Entry(ctx, "f")
			if err == nil && e.Last != nil {
				q, err := c.Queue(ctx, "q")
				no(t, err)
				stats, err := q.Stats(ctx)
				no(t, err)
				if stats.Jobs.Ready != 1 || e.Error != "" || e.Missed != 0 {
					t.Errorf("got %+v, %+v, want the job of the ticks", stats.Jobs, e)
				}
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Error("no tick was pushed")
	})
}

// Damage is reported, and an edit, the file or a removal repairs it.
func TestDamagedEntries(t *testing.T) {
	t.Parallel()
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL(), Timeout: time.Minute})
	no(t, err)
	defer c.Close()
	ctx, b := t.Context(), Of(c)
	_, err = c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1})
	no(t, err)
	no(t, b.Add(ctx, "n", spec(`{"every":"1s","queue":"q"}`)))
	no(t, c.DB().ForTests().HSet(ctx, c.DB().Keys.Recurring(), "n", "{bad", "#", "7").Err())
	all, err := b.List(ctx)
	no(t, err)
	if len(all) != 1 || !strings.Contains(all[0].Error, "cannot be read") {
		t.Errorf("got %+v, want it listed with its damage", all)
	}
	f := firer(new(true))
	f.book, f.entries, f.absent = b, map[string]knownEntry{}, map[string]time.Time{}
	if wait := f.runOnce(ctx); wait > lookEvery {
		t.Errorf("got %v, want the firer to go on", wait)
	}
	no(t, b.Declare(ctx, map[string]Spec{"n": spec(`{"every":"1h","queue":"q"}`)}, time.Now(), "b"))
	if e := get(t, b, "n"); e.Error != "" || e.Origin != OfFile {
		t.Errorf("got %+v, want it whole", e)
	}
}

// noted is a book that records deliveries.
type noted struct {
	*Book
	mu     sync.Mutex // guards what is below
	stored map[string][]time.Time
	faults []string
}

func (n *noted) deliverTick(ctx context.Context, name string, number int64, of begunPush) error {
	q, err := n.client.Queue(ctx, of.Spec.Queue)
	if err != nil {
		return err
	}
	tick := time.UnixMicro(of.Tick)
	result, err := q.Deliver(ctx, protocol.Delivery{Source: "recurring/" + name, Number: number}, of.Spec.buildPush(name, tick, of.Missed))
	n.mu.Lock()
	defer n.mu.Unlock()
	if all := n.stored[name]; errors.Is(err, protocol.ErrDelivered) && len(all) > 0 && all[len(all)-1].Equal(tick) {
		return nil // an edit came between this push and its record
	}
	if protocol.Transient(err) {
		return err // the firer repeats it
	}
	if err != nil {
		n.faults = append(n.faults, fmt.Sprintf("%s at %v: %v", name, tick, err))
		return err
	}
	if n.stored[name] = append(n.stored[name], tick); result.Merged && name != "anew" {
		n.faults = append(n.faults, fmt.Sprintf("%s at %v: pushed again", name, tick))
	}
	return nil
}

// While Redis's clock is ahead for some time, changes of entries drop no tick and push none again.
// A tick that must be left out counts as missed, and the entry says why.
func TestClockWasAhead(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	c, err := protocol.Open(protocol.Config{Redis: server.URL(), Timeout: time.Minute})
	no(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
	no(t, err)
	b := &noted{Book: Of(c), stored: map[string][]time.Time{}}
	names := []string{"alone", "paused", "edited", "moved", "anew"}
	each := spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}"}}`)
	for _, name := range names {
		no(t, b.Add(ctx, name, each))
	}
	f, ended := firer(new(true)), make(chan struct{})
	go func() { f.runWith(ctx, b); close(ended) }()
	defer func() { cancel(); <-ended }()
	await := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	last := func(name string) time.Time {
		if e := get(t, b.Book, name); e.Last != nil {
			return *e.Last
		}
		return time.Time{}
	}
	all := func(from time.Time) func() bool {
		return func() bool {
			return !slices.ContainsFunc(names, func(name string) bool { return !last(name).After(from) })
		}
	}
	await("a push of each", all(time.Time{}))
	clock.Set(40 * time.Second) // so that a busy machine does the rest before that time comes again; and no tick is late by a minute
	ahead, err := c.Time(ctx)
	no(t, err)
	await("pushes by the clock that is ahead", all(ahead))
	clock.Set(0)
	right, err := c.Time(ctx)
	no(t, err)
	no(t, b.Pause(ctx, "paused"))
	no(t, b.Resume(ctx, "paused"))
	no(t, b.Edit(ctx, "edited", func(s *Spec) error { s.ID = "another"; return nil }))
	no(t, b.Edit(ctx, "moved", func(s *Spec) error { s.Offset = Duration(500 * time.Millisecond); return nil }))
	no(t, b.Remove(ctx, "anew"))
	no(t, b.Add(ctx, "anew", each))
	await("the entry that is new is pushed at once", func() bool {
		at := last("anew")
		return at.After(right) && at.Before(ahead)
	})
	await("a tick that was left out", func() bool {
		e := get(t, b.Book, "moved")
		return e.Missed > 0 && strings.Contains(e.Error, "clock was ahead")
	})
	clock.Set(40 * time.Second)
	await("pushes as before", all(ahead.Add(2*time.Second)))
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		t.Error(fault)
	}
	for _, name := range names[:3] {
		for i, tick := range b.stored[name][1:] {
			if want := b.stored[name][i].Add(time.Second); !tick.Equal(want) {
				t.Errorf("%s: got the tick %v, want %v", name, tick, want)
			}
		}
	}
}

// clocked is a book on a Redis with an adjustable clock.
type clocked struct {
	*Book
	t     *testing.T
	clock *redistest.Clock
	f     *Firer
}

func startClocked(t *testing.T) clocked {
	t.Helper()
	server, clock := redistest.StartClocked(t)
	c, err := protocol.Open(protocol.Config{Redis: server.URL(), Timeout: time.Minute})
	no(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 2})
	no(t, err)
	b := clocked{Of(c), t, clock, firer(new(true))}
	b.f.book, b.f.entries, b.f.absent = b.Book, map[string]knownEntry{}, map[string]time.Time{}
	return b
}

func (b clocked) at(to time.Time) { b.clock.Set(time.Until(to)) }

func (b clocked) look() { b.f.runOnce(b.t.Context()) }

func (b clocked) tick(name string) time.Time {
	b.t.Helper()
	p, err := b.readSince(b.t.Context(), "")
	no(b.t, err)
	return p.ticks[name]
}

// begin does the first step of the push of an entry's tick.
func (b clocked) begin(name string) {
	b.t.Helper()
	p, err := b.readSince(b.t.Context(), "")
	no(b.t, err)
	s, err := p.storedEntry(name)
	no(b.t, err)
	tick := p.ticks[name]
	of := lastTick{Number: tick.UnixMicro(), Begun: &begunPush{Tick: tick.UnixMicro(), Spec: s.effectiveSpec().withDefaults(name)}}
	done, err := b.advanceTick(b.t.Context(), name, p.entries[name], tick, tick, p.ticked[name].text, of)
	no(b.t, err)
	if !done {
		b.t.Fatalf("the push of %s has not begun", name)
	}
}

// A tick that has come is pushed, is skipped in a pause, or counts as missed, whatever happens to
// its entry before its push.
func TestChangeBeforeAPush(t *testing.T) {
	t.Parallel()
	b, ctx := startClocked(t), t.Context()
	daily := spec(`{"every":"24h","jitter":"1h","queue":"q"}`)
	day := time.Now().Truncate(24 * time.Hour).Add(48 * time.Hour)
	b.at(day.Add(-time.Hour))
	var names []string // with a push from 10 to 50 minutes after the tick
	for i := 0; len(names) < 6; i++ {
		name := fmt.Sprint("n", i)
		if j := calendar.Jitter(name, day, time.Hour); j > 10*time.Minute && j < 50*time.Minute {
			names = append(names, name)
		}
	}
	resumed, edited, filed, passed, late, added := names[0], names[1], names[2], names[3], names[4], names[5]
	no(t, b.Declare(ctx, map[string]Spec{filed: daily}, day, "b1"))
	for _, name := range []string{resumed, edited, passed, late} {
		no(t, b.Add(ctx, name, daily))
	}
	b.at(day.Add(5 * time.Minute))
	no(t, b.Add(ctx, added, daily))
	for _, name := range []string{resumed, added} {
		no(t, b.Pause(ctx, name))
		no(t, b.Resume(ctx, name))
	}
	no(t, b.Pause(ctx, passed))
	other := daily
	other.Every = Duration(12 * time.Hour)
	no(t, b.Edit(ctx, edited, func(s *Spec) error { *s = other; return nil }))
	no(t, b.Declare(ctx, map[string]Spec{filed: other}, day.Add(time.Second), "b2"))
	b.at(day.Add(70 * time.Minute))
	no(t, b.Pause(ctx, late))
	no(t, b.Resume(ctx, late))
	no(t, b.Resume(ctx, passed))
	counted := map[string]int64{}
	b.f.Missed = func(name string, n int64) { counted[name] += n }
	b.look()
	b.look()
	for _, c := range []struct {
		name   string
		next   time.Duration
		pushed bool
		missed int64
		why    string
	}{
		{resumed, 24 * time.Hour, true, 0, ""},
		{added, 24 * time.Hour, false, 0, ""},
		{edited, 12 * time.Hour, false, 1, "times were changed"},
		{filed, 12 * time.Hour, false, 1, "times were changed"},
		{passed, 24 * time.Hour, false, 0, ""},
		{late, 24 * time.Hour, false, 1, "was paused"},
	} {
		e := get(t, b.Book, c.name)
		pushed := e.Last != nil && e.Last.Equal(day) && e.Error == ""
		if tick := b.tick(c.name); !tick.Equal(day.Add(c.next)) || pushed != c.pushed || e.Missed != c.missed || !strings.Contains(e.Error, c.why) {
			t.Errorf("%s: got %+v with the tick %v, want %+v", c.name, e, tick.Sub(day), c)
		}
		if counted[c.name] != c.missed {
			t.Errorf("%s: the metric counts %d missed ticks, want %d", c.name, counted[c.name], c.missed)
		}
	}
}

// A change during a push counts for the ticks from then on, however late the push ends.
func TestChangeOfABegunPush(t *testing.T) {
	t.Parallel()
	b, ctx := startClocked(t), t.Context()
	all := spec(`{"every":"1h","queue":"q","missed":"all"}`)
	tick := time.Now().Truncate(time.Hour).Add(2 * time.Hour)
	b.at(tick.Add(-30 * time.Minute))
	for _, name := range []string{"paused", "edited", "late"} {
		no(t, b.Add(ctx, name, all))
	}
	b.at(tick.Add(time.Minute))
	for _, name := range []string{"paused", "edited", "late"} {
		b.begin(name)
	}
	half := func(s *Spec) error { s.Every = Duration(30 * time.Minute); return nil }
	b.at(tick.Add(10 * time.Minute))
	no(t, b.Pause(ctx, "paused"))
	no(t, b.Edit(ctx, "edited", half))
	b.at(tick.Add(2*time.Hour + 10*time.Minute))
	no(t, b.Resume(ctx, "paused"))
	no(t, b.Edit(ctx, "late", half))
	b.at(tick.Add(2*time.Hour + 20*time.Minute))
	b.look()
	for _, c := range []struct {
		name       string
		last, next time.Duration
		missed     int64
	}{
		{"paused", 0, 3 * time.Hour, 0},
		{"edited", 2 * time.Hour, 150 * time.Minute, 0},
		{"late", 2 * time.Hour, 150 * time.Minute, 2},
	} {
		e := get(t, b.Book, c.name)
		if e.Last == nil || !e.Last.Equal(tick.Add(c.last)) || !e.Next.Equal(tick.Add(c.next)) || e.Missed != c.missed {
			t.Errorf("%s: got %+v, want %+v from %v", c.name, e, c, tick)
		}
	}
}

// If Redis loses the tick of an entry during its push, the push ends at once, even if the entry was
// changed before.
func TestTickOfABegunPushIsLost(t *testing.T) {
	t.Parallel()
	b, ctx := startClocked(t), t.Context()
	tick := time.Now().Truncate(24 * time.Hour).Add(48 * time.Hour)
	b.at(tick.Add(-time.Hour))
	for _, name := range []string{"kept", "edited"} {
		no(t, b.Add(ctx, name, spec(`{"every":"24h","queue":"q"}`)))
	}
	b.at(tick.Add(10 * time.Minute))
	for _, name := range []string{"kept", "edited"} {
		b.begin(name)
	}
	no(t, b.client.DB().ForTests().Del(ctx, b.client.DB().Keys.Ticks()).Err())
	no(t, b.Edit(ctx, "edited", func(s *Spec) error { s.Every = Duration(12 * time.Hour); return nil }))
	for range 2 {
		b.look()
	}
	for name, next := range map[string]time.Duration{"kept": 24 * time.Hour, "edited": 12 * time.Hour} {
		if e := get(t, b.Book, name); e.Last == nil || !e.Last.Equal(tick) || !e.Next.Equal(tick.Add(next)) {
			t.Errorf("%s: got %+v, want %v pushed", name, e, tick)
		}
	}
}
