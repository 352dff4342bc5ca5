package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
)

// The scripts of the floor do the minimum of an ordered queue that survives a crash.
const (
	floorPush = `
redis.call('HSET', KEYS[1], unpack(ARGV))
local ids = {}
for i = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
redis.call('RPUSH', KEYS[2], unpack(ids))
return #ids`
	floorPop = `
redis.call('DEL', KEYS[3])
local ids = redis.call('LPOP', KEYS[2], ARGV[1])
if not ids then return {} end
local records = redis.call('HMGET', KEYS[1], unpack(ids))
redis.call('HDEL', KEYS[1], unpack(ids))
local flat = {}
for i = 1, #ids do
  flat[2 * i - 1] = ids[i]
  flat[2 * i] = records[i]
end
redis.call('RPUSH', KEYS[3], unpack(flat))
return flat`
)

// The chunks of the floor are those of packages queue and node: jobs per push script, ids per pop.
const (
	floorChunk    = 1000
	floorPrefetch = 100
)

// minimal is the queue of the floor.
type minimal struct {
	rdb       redis.UniversalClient
	push, pop string     // names of the loaded scripts
	keys      [][]string // by shard: jobs, ready, flight
}

// newMinimal loads the scripts. The keys of a shard share a hash tag, as a Redis Cluster requires.
func newMinimal(ctx context.Context, rdb redis.UniversalClient, shards int) (*minimal, error) {
	f := &minimal{rdb: rdb}
	var err error
	if f.push, err = rdb.ScriptLoad(ctx, floorPush).Result(); err != nil {
		return nil, fmt.Errorf("load the push script: %w", err)
	}
	if f.pop, err = rdb.ScriptLoad(ctx, floorPop).Result(); err != nil {
		return nil, fmt.Errorf("load the pop script: %w", err)
	}
	for i := range shards {
		tag := fmt.Sprintf("floor:{%d}:", i)
		f.keys = append(f.keys, []string{tag + "jobs", tag + "ready", tag + "flight"})
	}
	return f, nil
}

// pushAll pushes jobs in a pipeline, with a script per shard and 1,000 jobs, as queue.Push does.
func (f *minimal) pushAll(ctx context.Context, jobs []lowkiq.Push) error {
	text := payload
	pipe := f.rdb.Pipeline()
	chunks := make([][]any, len(f.keys))
	send := func(shard int) {
		pipe.EvalSha(ctx, f.push, f.keys[shard][:2], chunks[shard]...)
		chunks[shard] = nil
	}
	for i := range jobs {
		shard := lowkiq.ShardOf(jobs[i].ID, len(f.keys))
		if chunks[shard] == nil {
			chunks[shard] = make([]any, 0, 2*floorChunk)
		}
		chunks[shard] = append(chunks[shard], &jobs[i].ID, &text) // pointers need no boxing
		if len(chunks[shard]) == 2*floorChunk {
			send(shard)
		}
	}
	for shard, chunk := range chunks {
		if len(chunk) > 0 {
			send(shard)
		}
	}
	_, err := pipe.Exec(ctx)
	return err
}

// popAll pops all jobs with a goroutine per shard, and returns their number.
func (f *minimal) popAll(ctx context.Context) (total int, err error) {
	group, ctx := errgroup.WithContext(ctx)
	drained := make([]int, len(f.keys))
	for shard := range f.keys {
		group.Go(func() error {
			for {
				n, err := f.popSome(ctx, shard)
				if n == 0 || err != nil {
					return err
				}
				drained[shard] += n
			}
		})
	}
	err = group.Wait()
	for _, n := range drained {
		total += n
	}
	return total, err
}

// popSome acknowledges the ids of the last call and pops the next ids.
func (f *minimal) popSome(ctx context.Context, shard int) (int, error) {
	flat, err := f.rdb.EvalSha(ctx, f.pop, f.keys[shard], floorPrefetch).Slice()
	return len(flat) / 2, err
}

// measureFloor measures the minimal scripts.
func (b *bench) measureFloor(ctx context.Context, on *Server, note func(string, float64)) error {
	f, err := newMinimal(ctx, on.rdb, b.cfg.Shards)
	if err != nil {
		return err
	}
	rate, pushed, err := b.floorPush(ctx, f)
	if err != nil {
		return err
	}
	note(ofFloor+"push_bulk_per_s", rate)
	note(ofFloor+"push_single50_per_s", rate)
	note(ofFloor+"redis_us_per_job_push", b.usPerJob(pushed.CPU))
	note(ofFloor+"redis_bytes_per_job", float64(pushed.Bytes)/float64(b.cfg.Jobs))
	d, err := b.floorDrain(ctx, f)
	if err != nil {
		return err
	}
	note(ofFloor+"allocs_per_job", d.allocs)
	note(ofFloor+"redis_us_per_job_drain", d.redis)
	note(ofFloor+"drain_batch1_per_s", d.rate)
	note(ofFloor+"drain_batch100_per_s", d.rate)
	return b.floorStart(ctx, f, note)
}

// floorPush pushes all jobs in bulk.
func (b *bench) floorPush(ctx context.Context, f *minimal) (rate float64, used Usage, err error) {
	before, err := b.on.Usage(ctx)
	if err != nil {
		return 0, used, err
	}
	begun := time.Now()
	if err := b.inBatches(ctx, f.pushAll); err != nil {
		return 0, used, err
	}
	rate = b.perSecond(begun)
	pushed, err := b.on.Usage(ctx)
	if err != nil {
		return 0, used, err
	}
	return rate, pushed.since(before), nil
}

// floorDrain drains all jobs of the floor. It measures jobs per second, allocations per job, and
// Redis CPU time per job in microseconds. A job too few or too many is an error.
func (b *bench) floorDrain(ctx context.Context, f *minimal) (d drained, err error) {
	runtime.GC()
	before, err := b.on.Usage(ctx)
	if err != nil {
		return d, err
	}
	allocs := countMallocs()
	begun := time.Now()
	n, err := f.popAll(ctx)
	d.rate = b.perSecond(begun)
	d.allocs = float64(countMallocs()-allocs) / float64(b.cfg.Jobs)
	if err == nil && n != b.cfg.Jobs {
		err = fmt.Errorf("drained %d jobs, want %d", n, b.cfg.Jobs)
	}
	if err != nil {
		return d, err
	}
	after, err := b.on.Usage(ctx)
	if err != nil {
		return d, err
	}
	d.used = after.since(before)
	d.redis = b.usPerJob(d.used.CPU)
	return d, nil
}

// floorStart measures a push followed by a pop. These are two round trips, without a worker to wake.
func (b *bench) floorStart(ctx context.Context, f *minimal, note func(string, float64)) error {
	jobs := makeJobs(0, min(b.cfg.Jobs, b.cfg.samples))
	took := make([]float64, b.cfg.samples)
	for i := range took {
		job := jobs[i%len(jobs)]
		begun := time.Now()
		if err := f.pushAll(ctx, []lowkiq.Push{job}); err != nil {
			return err
		}
		n, err := f.popSome(ctx, lowkiq.ShardOf(job.ID, len(f.keys)))
		if err == nil && n != 1 {
			err = fmt.Errorf("popped %d jobs, want the one pushed", n)
		}
		if err != nil {
			return err
		}
		took[i] = toMilliseconds(time.Since(begun))
	}
	noteStart(note, ofFloor, took)
	return nil
}
