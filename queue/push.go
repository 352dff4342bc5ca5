package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Result is the answer to one pushed job.
type Result struct {
	// Merged: an equal payload of the id was waiting already; they are one.
	Merged bool
	// Err: the job was refused, or it is unknown whether it was stored. Pushing it
	// again is safe.
	Err error
}

// Errors of a refused job.
var (
	ErrID              = errors.New("job id is empty or too long")
	ErrScore           = errors.New("score is not a finite number")
	ErrPerformAt       = errors.New("perform_in is out of range")
	ErrPayloadSize     = errors.New("payload is too large")
	ErrTooManyPayloads = errors.New("too many payloads wait for this id")
	ErrTooManyBytes    = errors.New("too many bytes of payloads wait for this id")
	ErrDamaged         = errRecord // what waits for this id cannot be read
)

// Sizes of one script: Redis runs it alone, so it must stay short; Lua's unpack takes
// some 7,000 values.
const (
	chunkJobs  = 1000
	chunkBytes = 1 << 20
	waveBytes  = 8 << 20 // one pipeline
	fewJobs    = 64      // pushes of up to this many share scripts with others
)

// Push stores jobs. It returns an answer per job, and as error the first of theirs.
// It is atomic per shard, not across shards: after an error each answer says what
// happened. Any number of jobs may be pushed at once; they go to Redis in bulk, and
// small pushes of concurrent callers share scripts.
//
// At least once: a push whose answer was lost may have been stored. Pushing again is
// safe, as an equal payload that still waits is merged. After ctx ended early, the
// payloads' bytes may still be read for a moment: do not reuse their memory.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error) {
	return q.push(ctx, jobs)
}

// store is the end of a push's way.
func (q *Queue) store(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	if len(jobs) <= fewJobs {
		return q.commit.push(ctx, jobs)
	}
	results := make([]Result, len(jobs))
	q.write(ctx, jobs, results)
	return results, firstError(results)
}

// Push stores jobs in a registered queue; see [Queue.Push].
func (c *Client) Push(ctx context.Context, queue string, jobs ...lowkiq.Push) ([]Result, error) {
	q, err := c.Queue(ctx, queue)
	if err != nil {
		return nil, err
	}
	return q.Push(ctx, jobs...)
}

func firstError(results []Result) error {
	for i := range results {
		if results[i].Err != nil {
			return results[i].Err
		}
	}
	return nil
}

// check says why a job is refused before anything is sent.
func (c *Client) check(job *lowkiq.Push) error {
	switch {
	case job.ID == "":
		return fmt.Errorf("%w: it is empty", ErrID)
	case len(job.ID) > lowkiq.MaxIDBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrID, len(job.ID), lowkiq.MaxIDBytes)
	case len(job.Payload) > c.cfg.PayloadBytes:
		return fmt.Errorf("job %q: %w: %d bytes, at most %d are allowed", job.ID, ErrPayloadSize, len(job.Payload), c.cfg.PayloadBytes)
	case len(job.Payload) > c.cfg.IDPayload:
		return fmt.Errorf("job %q: %w: %d is the limit", job.ID, ErrTooManyBytes, c.cfg.IDPayload)
	case job.Score != nil && (math.IsNaN(*job.Score) || math.IsInf(*job.Score, 0)):
		return fmt.Errorf("job %q: %w: %v", job.ID, ErrScore, *job.Score)
	case !job.PerformAt.IsZero() && (job.PerformAt.Unix() < 0 || job.PerformAt.Unix() > maxUnix):
		return fmt.Errorf("job %q: %w: %s", job.ID, ErrPerformAt, job.PerformAt.Format(time.RFC3339))
	}
	return nil
}

// maxUnix: microseconds of it are exact in a double, which is what Redis sorts by.
const maxUnix = 1 << 33

// chunk is one script's share of a push: jobs of one shard, in push order.
type chunk struct {
	call
	shard int
	jobs  []int32 // places in the push
}

// write sends jobs to Redis in pipelines of scripts and fills in the results.
func (q *Queue) write(ctx context.Context, jobs []lowkiq.Push, results []Result) {
	chunks := q.pushEach(ctx, q.cut(jobs, results), jobs, results)
	for len(chunks) > 0 {
		n, size := 0, 0
		for n < len(chunks) && (n == 0 || size < waveBytes && q.mayFollow(chunks[:n], chunks[n])) {
			size += q.fill(chunks[n], jobs)
			n++
		}
		wave := make([]*call, n)
		for i, ch := range chunks[:n] {
			wave[i] = &ch.call
		}
		q.c.runAll(ctx, wave)
		for _, ch := range chunks[:n] {
			q.c.answer(ch, jobs, results)
			ch.args = nil
		}
		chunks = chunks[n:]
	}
}

// mayFollow reports whether a chunk may be in one pipeline with others. In a cluster two
// chunks of one shard may not: while a slot moves, the first may be refused and the
// second taken, and then the payloads are not in push order.
func (q *Queue) mayFollow(wave []*chunk, next *chunk) bool {
	if _, cluster := q.c.rdb.(*redis.ClusterClient); !cluster {
		return true
	}
	return !slices.ContainsFunc(wave, func(ch *chunk) bool { return ch.shard == next.shard })
}

// cut sorts jobs into chunks by shard, refusing the bad ones.
func (q *Queue) cut(jobs []lowkiq.Push, results []Result) []*chunk {
	open := make(map[int]*chunk, min(len(jobs), q.Shards))
	sizes := make(map[*chunk]int, len(open))
	var chunks []*chunk
	for i := range jobs {
		job := &jobs[i]
		if err := q.c.check(job); err != nil {
			results[i].Err = err
			continue
		}
		shard := lowkiq.ShardOf(job.ID, q.Shards)
		ch := open[shard]
		if ch == nil || len(ch.jobs) == chunkJobs || sizes[ch]+len(job.Payload) > chunkBytes {
			// Of several scripts of a shard none may be unknown to a Redis that knows the
			// next one, or the payloads are not in push order.
			several := ch != nil
			if several {
				ch.text = true
			}
			ch = &chunk{shard: shard, call: call{script: q.c.scripts.push, keys: q.shards[shard].push, text: several}}
			ch.args = []any{nil, nil, nil, q.shards[shard].keys.wake}
			open[shard] = ch
			chunks = append(chunks, ch)
		}
		ch.jobs = append(ch.jobs, int32(i))
		sizes[ch] += len(job.Payload)
	}
	return chunks
}

// fill writes the script's arguments and returns their size in bytes.
func (q *Queue) fill(ch *chunk, jobs []lowkiq.Push) (size int) {
	form := formOf(ch.jobs, jobs)
	ch.args[0], ch.args[1], ch.args[2] = form, q.c.cfg.Payloads, q.c.cfg.IDPayload
	if form == "m" {
		return q.fillAny(ch, jobs)
	}
	for _, i := range ch.jobs {
		size += len(jobs[i].ID) + len(jobs[i].Payload) + 8
	}
	// One buffer and one slice of strings for the whole script; go-redis takes
	// pointers to strings, so nothing is boxed.
	buf := make([]byte, 0, size)
	words := make([]string, 2*len(ch.jobs))
	args := make([]any, len(ch.args), len(ch.args)+len(words))
	copy(args, ch.args)
	for k, i := range ch.jobs {
		job := &jobs[i]
		start := len(buf)
		if form == "a" {
			buf = append(buf, byte(k>>8), byte(k))
		} else {
			buf = binary.BigEndian.AppendUint64(buf, math.Float64bits(*job.Score))
		}
		buf = append(buf, job.Payload...)
		words[2*k], words[2*k+1] = job.ID, unsafe.String(unsafe.SliceData(buf[start:]), len(buf)-start)
		args = append(args, &words[2*k], &words[2*k+1])
	}
	ch.args = args
	return size
}

// fillAny is fill for jobs with a due time, or some with and some without a score.
func (q *Queue) fillAny(ch *chunk, jobs []lowkiq.Push) (size int) {
	for _, i := range ch.jobs {
		job := &jobs[i]
		score, at := "", ""
		if job.Score != nil {
			score = strconv.FormatFloat(*job.Score, 'g', 17, 64)
		}
		if !job.PerformAt.IsZero() {
			at = strconv.FormatInt(job.PerformAt.UnixMicro(), 10)
		}
		ch.args = append(ch.args, job.ID, job.Payload, score, at)
		size += len(job.ID) + len(job.Payload) + len(score) + len(at)
	}
	return size
}

// formOf chooses the mode of lua/push.lua: a if no job says more than id and payload,
// e if every job has a score, m otherwise.
func formOf(places []int32, jobs []lowkiq.Push) string {
	scores := 0
	for _, i := range places {
		if !jobs[i].PerformAt.IsZero() {
			return "m"
		}
		if jobs[i].Score != nil {
			scores++
		}
	}
	switch scores {
	case 0:
		return "a"
	case len(places):
		return "e"
	}
	return "m"
}

// answer reads the script's answer into the results.
func (c *Client) answer(ch *chunk, jobs []lowkiq.Push, results []Result) {
	codes, each := ch.reply.(string)
	_, all := ch.reply.(int64)
	if ch.err == nil && !all && (!each || len(codes) != len(ch.jobs)) {
		ch.err = fmt.Errorf("push answered %.50v for %d jobs", ch.reply, len(ch.jobs))
	}
	for k, i := range ch.jobs {
		switch {
		case ch.err != nil:
			results[i].Err = ch.err
		case codes == "" || codes[k] == '0':
		case codes[k] == '1':
			results[i].Merged = true
		case codes[k] == '2':
			results[i].Err = fmt.Errorf("job %q: %w: %d is the limit", jobs[i].ID, ErrTooManyPayloads, c.cfg.Payloads)
		case codes[k] == '3':
			results[i].Err = fmt.Errorf("job %q: %w: %d is the limit", jobs[i].ID, ErrTooManyBytes, c.cfg.IDPayload)
		case codes[k] == '4':
			results[i].Err = fmt.Errorf("job %q: %w, of what waits for it: check --repair moves it aside", jobs[i].ID, errRecord)
		}
	}
}
