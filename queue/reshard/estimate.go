package reshard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// ErrCost means that a reshard would pause the queue for too long, or need more memory than Redis has.
var ErrCost = errors.New("the reshard costs too much")

// Estimate says what a reshard would move and cost. It comes from counts and from a sample, so its times and bytes are rough.
type Estimate struct {
	From, To int
	Jobs     int   // ids that are not done
	Bytes    int64 // of their records
	Spilled  int   // payloads of ids that have too many for a record
	Morgue   int   // ids in the morgue
	States   int   // ids with a state of a handler
	Pause    time.Duration
	Calls    []Call // that the reshard would wait for before the pause begins to count, the oldest first
	Memory   int64  // that Redis needs in addition, bytes
	Room     int64  // that Redis may take in addition, bytes; -1 if it has no maxmemory
}

// The costs of an entry, by measurement (BenchmarkReshard): the time until it is copied, and its memory beside its own bytes.
const (
	jobTime, jobMemory         = 12 * time.Microsecond, 100
	spilledTime, spilledMemory = 15 * time.Microsecond, 260
	morgueTime, morgueMemory   = 40 * time.Microsecond, 200
	stateTime, stateMemory     = 24 * time.Microsecond, 180
	byteTime                   = 10 * time.Nanosecond
	tripEntries                = 500 // entries of a round trip
	openTime                   = 200 * time.Millisecond
)

// Bounds of the sample.
const (
	sampleShards = 20
	sampleIDs    = 100 // of a shard
	sampleOthers = 20  // payloads of a spill, ids in the morgue and states of a shard
)

// maxMemoryShare is the share of maxmemory that Redis may use during a reshard.
const maxMemoryShare = 0.8

// Measure estimates what a reshard to a number of shards would cost, and changes nothing. It returns an error if [Begin] would
// refuse the reshard.
func Measure(ctx context.Context, c *protocol.Client, r Request) (Estimate, error) {
	if err := r.Check(); err != nil {
		return Estimate{}, err
	}
	if err := protocol.CheckName("queue", r.Queue); err != nil {
		return Estimate{}, fmt.Errorf("%w: %w", lowkiq.ErrUnknownQueue, err)
	}
	_, entry, err := c.Registry().Stored(ctx, r.Queue)
	if err != nil {
		return Estimate{}, err
	}
	if same, err := r.checkEntry(entry); err != nil {
		return Estimate{}, err
	} else if same {
		return Estimate{}, fmt.Errorf("queue %q: %w", r.Queue, errSameUnderWay)
	}
	if err := checkFormer(ctx, c, r.Queue, entry); err != nil {
		return Estimate{}, err
	}
	if err := checkSources(ctx, c, r.Queue, entry); err != nil {
		return Estimate{}, err
	}
	q := c.Registry().Unlisted(r.Queue, entry)
	e := Estimate{From: entry.Shards, To: r.Shards}
	if err := e.countContents(ctx, c, q); err != nil {
		return e, err
	}
	s, err := takeSample(ctx, c, q)
	if err != nil {
		return e, err
	}
	e.computeCosts(s)
	return e, e.readRoom(ctx, c)
}

// Check returns an ErrCost if the reshard would pause the queue for longer than maxPause, or if Redis lacks the memory. A
// maxPause of 0 means no bound.
func (e *Estimate) Check(queue string, maxPause time.Duration) error {
	switch {
	case e.Room >= 0 && e.Memory > e.Room:
		return fmt.Errorf("queue %q: %w: it needs about %s for as long as it takes, and Redis may take %s more, as a fifth of maxmemory must stay free; raise maxmemory",
			queue, ErrCost, FormatBytes(e.Memory), FormatBytes(e.Room))
	case maxPause > 0 && e.Pause > maxPause:
		return fmt.Errorf("queue %q: %w: its handlers would pause for about %s, as %d jobs move, and at most %s are allowed; --max-pause %s allows it",
			queue, ErrCost, e.Pause.Round(time.Second), e.Jobs, maxPause, roundUp(e.Pause))
	}
	return nil
}

// roundUp returns a pause to allow, for people.
func roundUp(d time.Duration) time.Duration {
	if d > time.Minute {
		return d.Truncate(time.Minute) + time.Minute
	}
	return d.Truncate(10*time.Second) + 10*time.Second
}

// countContents counts what the shards hold.
func (e *Estimate) countContents(ctx context.Context, c *protocol.Client, q *protocol.Queue) error {
	now, err := c.Time(ctx)
	if err != nil {
		return err
	}
	stats, err := c.Stats(ctx, q.All()...)
	if err != nil {
		return err
	}
	sum := protocol.Sum(stats)
	e.Jobs, e.Morgue = sum.Jobs.Total(), sum.MorgueIDs
	for part := range slices.Chunk(q.All(), shardsPerRead) {
		var cmds []redisdb.Cmd
		for _, s := range part {
			cmds = append(cmds, redisdb.Cmd{"HLEN", s.Keys().States}, redisdb.Cmd{"ZCARD", s.Keys().Spill})
		}
		replies, err := c.DB().Pipeline(ctx, "count the states of "+q.Name, cmds...)
		if err != nil {
			return err
		}
		for i := 0; i < len(replies); i += 2 {
			e.States, e.Spilled = e.States+int(redisdb.Int(replies[i])), e.Spilled+int(redisdb.Int(replies[i+1]))
		}
	}
	old, err := readOld(ctx, c.DB(), q, now)
	if err != nil {
		return err
	}
	var f facts
	f.countOld(old, 0, func(string) bool { return false })
	e.Calls = f.calls
	return nil
}

// sample has the mean bytes of entries, and the time of a round trip.
type sample struct {
	job, spilled, morgue, state mean
	trip                        time.Duration
}

// mean is a mean of sizes.
type mean struct{ n, bytes int64 }

func (m *mean) addSizes(texts ...string) {
	m.n++
	for _, text := range texts {
		m.bytes += int64(len(text))
	}
}

// of returns the bytes of n entries.
func (m mean) of(n int) int64 {
	if m.n == 0 {
		return 0
	}
	return int64(n) * m.bytes / m.n
}

// takeSample reads entries of some shards. It refuses records of a later release, which this release cannot copy.
func takeSample(ctx context.Context, c *protocol.Client, q *protocol.Queue) (s sample, err error) {
	step := max(1, q.Shards/sampleShards)
	for i := 0; i < q.Shards; i += step {
		k := q.Shard(i).Keys()
		begun := time.Now()
		replies, err := c.DB().Pipeline(ctx, "sample "+q.Shard(i).String(),
			redisdb.Cmd{"HSCAN", k.Jobs, 0, "COUNT", sampleIDs}, redisdb.Cmd{"ZRANGE", k.Spill, 0, sampleOthers - 1},
			redisdb.Cmd{"HSCAN", k.Morgue, 0, "COUNT", sampleOthers}, redisdb.Cmd{"HSCAN", k.States, 0, "COUNT", sampleOthers})
		if err != nil {
			return s, err
		}
		if took := time.Since(begun); s.trip == 0 || took < s.trip {
			s.trip = took
		}
		for id, record := range fieldsOf(replies[0]) {
			if id == "" {
				continue // no job, see claim.lua
			}
			if record != "" && record[0] >= 'A' && record[0] <= 'Z' {
				return s, fmt.Errorf("queue %q: %w: job %q is stored in a form of a later release; run that release on every node first", q.Name, ErrBusy, id)
			}
			s.job.addSizes(id, record)
		}
		for _, member := range redisdb.Texts(replies[1]) {
			s.spilled.addSizes(member)
		}
		for id, record := range fieldsOf(replies[2]) {
			s.morgue.addSizes(id, record)
		}
		for id, state := range fieldsOf(replies[3]) {
			s.state.addSizes(id, state)
		}
	}
	return s, nil
}

// fieldsOf returns the fields of an answer of HSCAN.
func fieldsOf(reply any) map[string]string {
	parts := redisdb.List(reply)
	if len(parts) != 2 {
		return nil
	}
	return redisdb.Map(parts[1])
}

// computeCosts computes bytes, memory and pause.
func (e *Estimate) computeCosts(s sample) {
	e.Bytes = s.job.of(e.Jobs) + s.spilled.of(e.Spilled)
	moved := e.Bytes + s.morgue.of(e.Morgue) + s.state.of(e.States)
	e.Memory = moved + int64(e.Jobs)*jobMemory + int64(e.Spilled)*spilledMemory + int64(e.Morgue)*morgueMemory + int64(e.States)*stateMemory
	entries := e.Jobs + e.Spilled + e.Morgue + e.States
	trips := 2*entries/tripEntries + 4*e.From
	e.Pause = openTime + time.Duration(e.Jobs)*jobTime + time.Duration(e.Spilled)*spilledTime + time.Duration(e.Morgue)*morgueTime +
		time.Duration(e.States)*stateTime + time.Duration(moved)*byteTime + time.Duration(trips)*s.trip/copiesAtOnce
}

// readRoom reads how much memory Redis may take in addition. In a Redis Cluster all masters count alike, as shards are spread.
func (e *Estimate) readRoom(ctx context.Context, c *protocol.Client) error {
	servers, err := c.Info(ctx)
	if err != nil {
		return err
	}
	e.Room = -1
	for _, server := range servers {
		used, _ := strconv.ParseInt(server.Fields["used_memory"], 10, 64)
		most, _ := strconv.ParseInt(server.Fields["maxmemory"], 10, 64)
		if most == 0 {
			continue
		}
		room := max(0, int64(maxMemoryShare*float64(most))-used) * int64(len(servers))
		if e.Room < 0 || room < e.Room {
			e.Room = room
		}
	}
	return nil
}

// FormatBytes returns a size for people.
func FormatBytes(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", (n+1<<10-1)>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
