package recurring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
	"github.com/lowkiq/lowkiq/queue"
)

// twice sends each script again, as go-redis does in a Redis Cluster when an answer is lost; the
// second answer counts.
type twice struct{}

func (twice) DialHook(next redis.DialHook) redis.DialHook { return next }
func (twice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return err
	}
}
func (twice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// eachRedis runs a test on a Redis, with each script sent twice, on the embedded one, and in a Redis Cluster.
func eachRedis(t *testing.T, test func(t *testing.T, c *queue.Client)) {
	t.Parallel()
	url := redistest.Start(t).URL()
	open := func(t *testing.T, url string) *queue.Client {
		c, err := queue.Open(queue.Config{Redis: url, Cluster: strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	t.Run("single", func(t *testing.T) { test(t, open(t, url)) })
	t.Run("twice", func(t *testing.T) {
		c := open(t, url)
		c.DB().ForTests().AddHook(twice{})
		test(t, c)
	})
	t.Run("embedded", func(t *testing.T) { test(t, open(t, redistest.StartMini(t).URL())) })
	t.Run("cluster", func(t *testing.T) {
		tier.All(t)
		test(t, open(t, redistest.StartCluster(t, 3).URL()))
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
	eachRedis(t, func(t *testing.T, c *queue.Client) {
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

// With scripts that come once: Add that comes twice finds itself.
func TestAddTwice(t *testing.T) {
	t.Parallel()
	c, err := queue.Open(queue.Config{Redis: redistest.Start(t).URL()})
	no(t, err)
	defer c.Close()
	_, err = c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 1})
	no(t, err)
	b := Of(c)
	no(t, b.Add(t.Context(), "n", spec(`{"every":"1h","queue":"q"}`)))
	want(t, "the second", b.Add(t.Context(), "n", spec(`{"every":"2h","queue":"q"}`)), ErrExists)
}

// All entries are read together, so they are bounded together. What is there can be paused, made smaller and removed.
func TestBookIsFull(t *testing.T) {
	t.Parallel()
	c, err := queue.Open(queue.Config{Redis: redistest.Start(t).URL()})
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
	want(t, "one from a file", b.Declare(ctx, map[string]Spec{"f": large}, time.Now()), ErrTooMany)
	no(t, b.Pause(ctx, "n0"))
	no(t, b.Resume(ctx, "n0"))
	no(t, b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = nil; return nil }))
	no(t, b.Declare(ctx, map[string]Spec{"f": large}, time.Now()))
	want(t, "an edit", b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = large.Payload; return nil }), ErrTooMany)
	no(t, b.Remove(ctx, "n2"))
	no(t, b.Edit(ctx, "n1", func(s *Spec) error { s.Payload = large.Payload; return nil }))
}

// What a file has is never removed; what was edited comes back by reset; of two files that of the
// process that began later counts.
func TestFiles(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *queue.Client) {
		ctx, b := t.Context(), Of(c)
		_, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1})
		no(t, err)
		old, later := time.Unix(1_700_000_000, 0), time.Unix(1_700_000_100, 0)
		hour, two := spec(`{"every":"1h","queue":"q"}`), spec(`{"every":"2h","queue":"q"}`)
		no(t, b.Declare(ctx, map[string]Spec{"n": two}, later))
		no(t, b.Declare(ctx, map[string]Spec{"n": hour}, old))
		if e := get(t, b, "n"); e.Schedule != "every 2h" || e.Origin != OfFile {
			t.Errorf("of two files: got %+v, want that of the later process", e)
		}
		want(t, "remove", b.Remove(ctx, "n"), ErrOfFile)
		no(t, b.Pause(ctx, "n"))
		no(t, b.Edit(ctx, "n", func(s *Spec) error { s.Every = Duration(3 * time.Hour); return nil }))
		no(t, b.Declare(ctx, map[string]Spec{"n": hour}, later.Add(time.Second)))
		if e := get(t, b, "n"); e.Schedule != "every 3h" || !e.Edited || !e.Paused {
			t.Errorf("edited: got %+v, want the edit and the pause to stay", e)
		}
		no(t, b.Reset(ctx, "n"))
		if e := get(t, b, "n"); e.Schedule != "every 1h" || e.Edited {
			t.Errorf("reset: got %+v, want what the newest file has", e)
		}
		no(t, b.drop(ctx, "n", old.UnixMicro())) // a file of before
		get(t, b, "n")
		no(t, b.drop(ctx, "n", later.Add(time.Second).UnixMicro()))
		_, err = b.Entry(ctx, "n")
		want(t, "dropped", err, ErrUnknown)
	})
}

// The scripts do what the fake of the model does: a tick is delivered once, and only its own next
// one takes its place.
func TestTicksInRedis(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *queue.Client) {
		ctx, b := t.Context(), Of(c)
		q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 2})
		no(t, err)
		no(t, b.Add(ctx, "n", spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}"}}`)))
		p, err := b.read(ctx, "")
		no(t, err)
		tick, text := p.ticks["n"], p.entries["n"]
		for range 2 {
			no(t, b.deliver(ctx, "n", spec(`{"every":"1s","queue":"q","payload":{"at":"{tick}"}}`), tick, 0))
		}
		jobs, err := q.Stats(ctx)
		no(t, err)
		if jobs.Jobs.Ready != 1 {
			t.Errorf("delivered twice: got %+v, want one", jobs.Jobs)
		}
		next := tick.Add(time.Hour)
		move := func(text string, from time.Time) bool {
			ok, err := b.advance(ctx, "n", text, from, next, kept{Tick: from.UnixMicro()})
			no(t, err)
			return ok
		}
		if move(text, tick.Add(-time.Second)) || move(strings.Replace(text, `"rev":1`, `"rev":2`, 1), tick) || move(text, time.Time{}) {
			t.Error("a tick that is not the next one, or of another entry, was replaced")
		}
		move(text, tick)
		if p, err = b.read(ctx, p.rev); err != nil || !p.ticks["n"].Equal(next) || p.entries != nil {
			t.Errorf("got %+v, %v, want the next tick at %v", p, err, next)
		}
		if move(text, tick) {
			t.Error("the same tick was replaced again")
		}
	})
}

// A firer on a real Redis pushes each second once, also beside another one.
func TestFirersOnRedis(t *testing.T) {
	eachRedis(t, func(t *testing.T, c *queue.Client) {
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
		deadline := time.Now().Add(20 * time.Second)
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

// Damage is said, and heals by an edit, the file, or a removal.
func TestDamagedEntries(t *testing.T) {
	t.Parallel()
	c, err := queue.Open(queue.Config{Redis: redistest.Start(t).URL()})
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
	f.book, f.entries, f.absent = b, map[string]known{}, map[string]time.Time{}
	if wait := f.look(ctx); wait > lookEvery {
		t.Errorf("got %v, want the firer to go on", wait)
	}
	no(t, b.Declare(ctx, map[string]Spec{"n": spec(`{"every":"1h","queue":"q"}`)}, time.Now()))
	if e := get(t, b, "n"); e.Error != "" || e.Origin != OfFile {
		t.Errorf("got %+v, want it whole", e)
	}
}
