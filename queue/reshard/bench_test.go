package reshard

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// benchEntries is the number of entries that an operation of BenchmarkReshard moves.
const benchEntries = 100_000

// benchKinds fill a queue with entries of one kind each.
var benchKinds = []struct {
	name string
	fill func(b *testing.B, q *protocol.Queue)
}{
	{"jobs", func(b *testing.B, q *protocol.Queue) { pushMany(b, q, 1, 40) }},
	{"large jobs", func(b *testing.B, q *protocol.Queue) { pushMany(b, q, 1, 1000) }},
	{"spilled payloads", func(b *testing.B, q *protocol.Queue) { pushMany(b, q, 500, 40) }},
	{"morgue", func(b *testing.B, q *protocol.Queue) {
		fillMany(b, q, "redis.call('HSET', KEYS[1], ARGV[i], 'a\\0\\5\\175\\49\\7\\164\\0\\0\\0' .. string.rep('x', 40)) redis.call('ZADD', KEYS[2], i, ARGV[i])",
			func(s *protocol.Shard) []string { return []string{s.Keys().Morgue, s.Keys().Dead} })
	}},
	{"states", func(b *testing.B, q *protocol.Queue) {
		fillMany(b, q, "redis.call('HSET', KEYS[1], ARGV[i], string.rep('x', 40)) redis.call('ZADD', KEYS[2], i, ARGV[i])",
			func(s *protocol.Shard) []string { return []string{s.Keys().States, s.Keys().Statesx} })
	}},
}

// pushMany pushes benchEntries payloads, so many for each id.
func pushMany(b *testing.B, q *protocol.Queue, each, size int) {
	b.Helper()
	var jobs []lowkiq.Push
	for i := range benchEntries {
		payload := fmt.Appendf(nil, "%0*d", size, i)
		if jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint("order-", i/each), Payload: payload}); len(jobs) == 5000 {
			if _, err := q.Push(b.Context(), jobs...); err != nil {
				b.Fatal(err)
			}
			jobs = nil
		}
	}
}

// fillMany runs a line of Lua for each of benchEntries ids in their shards.
func fillMany(b *testing.B, q *protocol.Queue, line string, keys func(*protocol.Shard) []string) {
	b.Helper()
	ids := map[*protocol.Shard][]any{}
	send := func(s *protocol.Shard) {
		names := keys(s)
		args := []any{"EVAL", "for i = 1, #ARGV do " + line + " end return 1", len(names)}
		for _, name := range names {
			args = append(args, name)
		}
		if err := s.DB().ForTests().Do(b.Context(), append(args, ids[s]...)...).Err(); err != nil {
			b.Fatal(err)
		}
		ids[s] = nil
	}
	for i := range benchEntries {
		id := fmt.Sprint("order-", i)
		s := q.Of(id)
		if ids[s] = append(ids[s], id); len(ids[s]) == 1000 {
			send(s)
		}
	}
	for s, left := range ids {
		if len(left) > 0 {
			send(s)
		}
	}
}

// redisFigure returns a number of INFO.
func redisFigure(b *testing.B, c *protocol.Client, names ...string) (sum float64) {
	b.Helper()
	servers, err := c.Info(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		x, _ := strconv.ParseFloat(servers[0].Fields[name], 64)
		sum += x
	}
	return sum
}

func benchDriver(c *protocol.Client) *Driver {
	return &Driver{Client: c, Leads: func() bool { return true }, Entries: c.Registry().Entries, By: changes.Itself("n1"), Log: slog.New(slog.DiscardHandler)}
}

// BenchmarkReshard reshards a queue from 16 to 64 shards and compares the estimate with the measured time and memory. The
// constants of the estimate are its results. An op moves benchEntries entries.
func BenchmarkReshard(b *testing.B) {
	for _, kind := range benchKinds {
		b.Run(kind.name, func(b *testing.B) {
			c, err := protocol.Open(protocol.Config{Redis: redistest.Start(b).URL(), Timeout: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			var took, pause time.Duration
			var cpu, memory, room float64
			for n := range b.N {
				b.StopTimer()
				name := fmt.Sprint("q", n)
				q, err := c.Register(b.Context(), lowkiq.Queue{Name: name, Shards: 16})
				if err != nil {
					b.Fatal(err)
				}
				kind.fill(b, q)
				e, err := Measure(b.Context(), c, Request{Queue: name, Shards: 64})
				if err != nil {
					b.Fatal(err)
				}
				pause, room = pause+e.Pause, room+float64(e.Memory)
				if _, err := Begin(b.Context(), c, Request{Queue: name, Shards: 64}); err != nil {
					b.Fatal(err)
				}
				d := benchDriver(c)
				used, worked := redisFigure(b, c, "used_memory"), redisFigure(b, c, "used_cpu_sys", "used_cpu_user")
				b.StartTimer()
				begun := time.Now()
				for next := stepNone; next != stepEnd; { // before the old shards are dropped
					_, entry, err := c.Registry().Stored(b.Context(), name)
					if err != nil {
						b.Fatal(err)
					}
					l, _ := layoutsOf(c.Registry(), name, entry)
					f, err := d.readFacts(b.Context(), name, entry, l)
					if err != nil {
						b.Fatal(err)
					}
					if next = nextStep(entry, f); next != stepEnd {
						if _, _, err := d.takeStep(b.Context(), name, nil); err != nil {
							b.Fatal(err)
						}
					}
				}
				took += time.Since(begun)
				b.StopTimer()
				memory += redisFigure(b, c, "used_memory") - used
				cpu += redisFigure(b, c, "used_cpu_sys", "used_cpu_user") - worked
				d.Drive(b.Context(), name)
				b.StartTimer()
			}
			entries := float64(b.N) * benchEntries
			b.ReportMetric(took.Seconds()*1e6/entries, "us/entry")
			b.ReportMetric(cpu*1e6/entries, "us_redis/entry")
			b.ReportMetric(memory/entries, "B/entry")
			b.ReportMetric(pause.Seconds()/took.Seconds(), "estimated_pause/pause")
			b.ReportMetric(room/memory, "estimated_memory/memory")
		})
	}
}

// BenchmarkFlip reshards a queue with 64 shards while 4 producers push. It reports the longest push, which has waited for the
// flip.
func BenchmarkFlip(b *testing.B) {
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(b).URL(), Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var longest time.Duration
	for n := range b.N {
		name := fmt.Sprint("q", n)
		q, err := c.Register(b.Context(), lowkiq.Queue{Name: name, Shards: 64})
		if err != nil {
			b.Fatal(err)
		}
		pushMany(b, q, 1, 40)
		var producers sync.WaitGroup
		var mu sync.Mutex
		done := make(chan struct{})
		for p := range 4 {
			producers.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-done:
						return
					default:
					}
					begun := time.Now()
					if _, err := q.Push(b.Context(), lowkiq.Push{ID: fmt.Sprint("live-", p, k%100), Payload: fmt.Append(nil, k)}); err != nil {
						b.Error(err)
					}
					mu.Lock()
					longest = max(longest, time.Since(begun))
					mu.Unlock()
					_ = sleep.For(b.Context(), time.Millisecond)
				}
			})
		}
		if _, err := Begin(b.Context(), c, Request{Queue: name, Shards: 128}); err != nil {
			b.Fatal(err)
		}
		benchDriver(c).Drive(b.Context(), name)
		close(done)
		producers.Wait()
	}
	b.ReportMetric(float64(longest.Milliseconds()), "ms_longest_push")
}
