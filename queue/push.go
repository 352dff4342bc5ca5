package queue

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Result is the answer to one pushed job.
type Result struct {
	// Merged: an equal payload of the id was waiting already; they are one.
	Merged bool
	// Err: the job was refused, or not sent (ErrUnsent), or it is unknown whether it was
	// stored. Pushing it again is safe.
	Err error
}

// Errors of a refused job.
var (
	ErrID              = envelope.ErrID
	ErrScore           = envelope.ErrScore
	ErrPerformAt       = envelope.ErrPerformAt
	ErrPayloadSize     = envelope.ErrPayloadSize
	ErrTooManyPayloads = errors.New("too many payloads wait for this id")
	ErrTooManyBytes    = envelope.ErrTooManyBytes
	ErrReplyTo         = envelope.ErrReplyTo
	ErrDamaged         = packed.ErrDamaged // what waits for this id cannot be read
)

// ErrUnsent: the job is not stored, as an earlier part of the same push to its shard failed, or an
// earlier payload of its id was refused for what waits there. The error wraps that failure. Push
// again with what failed, in the same order: then each id's payloads are stored in push order.
var ErrUnsent = errors.New("not sent, as an earlier part of the push failed")

// unsentError is ErrUnsent with its cause.
type unsentError struct{ cause error }

func (e *unsentError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnsent, e.cause) }
func (e *unsentError) Unwrap() error        { return e.cause }
func (e *unsentError) Is(target error) bool { return target == ErrUnsent }

// Sizes of one script: Redis runs it alone, so it must stay short; Lua's unpack takes
// some 7,000 values.
const (
	chunkJobs  = 1000
	chunkBytes = 1 << 20
	waveBytes  = 8 << 20 // one pipeline
	fewJobs    = 64      // pushes of up to this many share scripts with others
)

// Push stores jobs. It returns an answer per job, and as error the first of theirs. What one script
// stores is atomic: up to 1,000 jobs of a shard, or 1 MiB, fewer where much waits for their ids.
// After an error each answer says what happened. Any number of jobs may be pushed at once; they go
// to Redis in bulk, and small pushes of concurrent callers share scripts.
//
// An id's payloads keep push order also where a push fails in part and is repeated, as a whole or
// with the jobs that failed, until it succeeds: after a failure the later jobs of the same shard
// are not sent (ErrUnsent). After a payload was refused as too much waits for its id, no later one
// of that id is stored (ErrUnsent, too), but for those that are equal to one that waits.
//
// At least once: a push whose answer was lost may have been stored. Pushing again is
// safe, as an equal payload that still waits is merged. When ctx ends, Push returns: what
// was sent and not answered has an error that says so. The payloads' bytes may then still
// be read for as long as Config.Timeout: do not reuse their memory.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error) {
	q.look(ctx)
	return (*q.push.Load())(ctx, jobs)
}

// store is the end of a push's way.
func (q *Queue) store(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	for i := range jobs {
		if jobs[i].ReplyTo != "" {
			q.calledAs(ctx, jobs[i:])
			break
		}
	}
	jobs = envelope.All(jobs)
	if len(jobs) <= fewJobs {
		return q.commit.push(ctx, jobs)
	}
	results := make([]Result, len(jobs))
	if ctx.Done() == nil {
		q.write(ctx, jobs, results)
		return results, firstError(results)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		q.write(ctx, jobs, results)
	}()
	select {
	case <-written:
		return results, firstError(results)
	case <-ctx.Done():
	}
	select { // what is stored is worth a moment
	case <-written:
		return results, firstError(results)
	case <-time.After(lastAnswer):
		return unanswered(ctx, jobs)
	}
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

// chunk is one script's share of a push: jobs of one shard, in push order.
type chunk struct {
	redisdb.Call
	shard int
	jobs  []int32 // places in the push
	next  *chunk  // the shard's next one: sent once this one is stored
	// coalesces is the first argument of lua/coalesce.lua; "": it is push.lua that stores it.
	coalesces string
	full      map[string]error // why a payload of an id was refused, in this chunk or one before it; mostly nil
}

// headArgs is how many arguments of lua/push.lua come before the jobs.
const headArgs = 4

// write sends jobs to Redis in pipelines of scripts and fills in the results. A chunk is
// sent when the one before it of its shard is stored, and not at all if that one failed:
// otherwise a push that is repeated until it succeeds would put payloads before earlier
// ones of the same id (I3).
func (q *Queue) write(ctx context.Context, jobs []lowkiq.Push, results []Result) {
	wave, rest := q.nextWave(q.pushEach(ctx, q.cut(jobs, results), jobs, results), jobs)
	for len(wave) > 0 {
		behind := rest
		for _, ch := range wave {
			if ch.next != nil {
				behind = append(behind, ch.next)
			}
		}
		answered := q.send(ctx, wave, len(behind) > 0)
		next, after := q.nextWave(behind, jobs) // while Redis works
		answered()
		for _, ch := range wave {
			q.finish(ctx, ch, jobs, results)
			switch {
			case ch.Err != nil:
				ch.next.unsent(ch.Err, results)
			case ch.full != nil && ch.next != nil:
				q.withhold(ch.next, ch.full, jobs, results)
			}
			ch.Args = nil
		}
		done := func(ch *chunk) bool { return ch.Err != nil || len(ch.jobs) == 0 }
		wave, rest = slices.DeleteFunc(next, done), slices.DeleteFunc(after, done)
		if len(wave) == 0 {
			wave, rest = q.nextWave(rest, jobs)
		}
	}
	q.count(results)
}

// nextWave fills as many chunks as one pipeline takes, and returns them and the rest.
func (q *Queue) nextWave(chunks []*chunk, jobs []lowkiq.Push) (wave, rest []*chunk) {
	n, size := 0, 0
	for n < len(chunks) && size < waveBytes {
		size += q.fill(chunks[n], jobs)
		n++
	}
	return chunks[:n:n], chunks[n:]
}

// send sends a wave, beside the caller if that has something to do meanwhile. The answers
// are there when answered returns.
func (q *Queue) send(ctx context.Context, wave []*chunk, beside bool) (answered func()) {
	calls := make([]*redisdb.Call, len(wave))
	for i, ch := range wave {
		calls[i] = &ch.Call
	}
	if !beside {
		q.registry.db.RunAll(ctx, calls)
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.registry.db.RunAll(ctx, calls)
	}()
	return func() { <-done }
}

// again repeats a chunk that was refused for the mark of a deletion which was given up.
func (q *Queue) again(ctx context.Context, ch *chunk) {
	ch.Err = refusal(ch.Err)
	if mark := (*markError)(nil); !errors.As(ch.Err, &mark) {
		return
	}
	if ch.Err = q.shards[ch.shard].removed(ctx, ch.Err); ch.Err == nil {
		ch.Reply, ch.Err = run(ctx, q.registry.db, ch.Script, ch.Keys, ch.Args...)
	}
}

// finish reads the answer to a chunk. A script does only so much: where it left jobs out, they are
// sent in scripts of as many as it did, one after the other (I3).
func (q *Queue) finish(ctx context.Context, ch *chunk, jobs []lowkiq.Push, results []Result) {
	for rest := ch.jobs; ; {
		q.again(ctx, ch)
		n := q.answer(ch, jobs, results)
		rest = rest[n:]
		if ch.Err != nil {
			(&chunk{jobs: rest}).unsent(ch.Err, results)
			return
		}
		if ch.full != nil {
			rest = withheld(rest, ch.full, jobs, results)
		}
		if len(rest) == 0 {
			return
		}
		ch.jobs, ch.Args = rest[:min(n, len(rest))], ch.Args[:headArgs]
		q.fill(ch, jobs)
		q.registry.db.RunAll(ctx, []*redisdb.Call{&ch.Call})
	}
}

// withheld answers the jobs of full ids, which are not sent, and returns the others.
func withheld(places []int32, full map[string]error, jobs []lowkiq.Push, results []Result) []int32 {
	return slices.DeleteFunc(slices.Clone(places), func(i int32) bool {
		cause := full[jobs[i].ID]
		if cause != nil {
			results[i].Err = &unsentError{cause}
		}
		return cause != nil
	})
}

// unsent answers the jobs of a chunk and of those behind it, which are not sent.
func (ch *chunk) unsent(cause error, results []Result) {
	for ; ch != nil; ch = ch.next {
		ch.Err = &unsentError{cause}
		for _, i := range ch.jobs {
			results[i].Err = ch.Err
		}
	}
}

// withhold takes the jobs of full ids out of a chunk that is not sent yet. A worker may have made
// room since, and what is pushed again would come behind them. A chunk that has none left takes
// those of the next.
func (q *Queue) withhold(ch *chunk, full map[string]error, jobs []lowkiq.Push, results []Result) {
	before := ch.jobs
	ch.full = full
	for {
		ch.jobs = withheld(ch.jobs, full, jobs, results)
		if len(ch.jobs) > 0 || ch.next == nil {
			break
		}
		ch.jobs, ch.next = ch.next.jobs, ch.next.next
	}
	if written := len(ch.Args) > headArgs; written && len(ch.jobs) > 0 && !slices.Equal(ch.jobs, before) {
		ch.Args = ch.Args[:headArgs]
		q.fill(ch, jobs)
	}
}

// coalesces is the first argument of lua/coalesce.lua for pushes by rules; "" if they go by lua/push.lua.
func (r *PushRules) coalesces() string {
	kind, d := cmp.Or(r.Coalesce, rules.CoalesceAll), r.Debounce
	if kind == rules.CoalesceAll && d.Quiet <= 0 {
		return ""
	}
	return fmt.Sprintf("m %s %d %d", kind, max(0, d.Quiet.Microseconds()), max(0, d.Most.Microseconds()))
}

// cut sorts jobs into chunks by shard, refusing the bad ones, and returns the first chunk
// of each shard.
func (q *Queue) cut(jobs []lowkiq.Push, results []Result) []*chunk {
	by := q.rules.Load()
	coalesces := by.coalesces()
	open := make(map[int]*chunk, min(len(jobs), q.Shards))
	sizes := make(map[*chunk]int, len(open))
	var first []*chunk
	for i := range jobs {
		job := &jobs[i]
		if err := envelope.Check(job, by.PayloadBytes, by.IDPayload); err != nil {
			results[i].Err = err
			continue
		}
		shard := lowkiq.ShardOf(job.ID, q.Shards)
		ch := open[shard]
		if ch == nil || len(ch.jobs) == chunkJobs || sizes[ch]+len(job.Payload) > chunkBytes {
			before := ch
			ch = &chunk{shard: shard, Call: redisdb.Call{Script: q.registry.db.Scripts.Push, Keys: q.shards[shard].push}}
			ch.Args = []any{nil, nil, nil, q.shards[shard].keys.Wake}
			if coalesces != "" {
				ch.coalesces, ch.Script = coalesces, q.registry.db.Scripts.Coalesce
				ch.Keys = q.shards[shard].keys.For(ch.Script)
			}
			open[shard] = ch
			if before == nil {
				first = append(first, ch)
			} else {
				before.next = ch
			}
		}
		ch.jobs = append(ch.jobs, int32(i))
		sizes[ch] += len(job.Payload)
	}
	return first
}

// fill writes the script's arguments and returns their size in bytes.
func (q *Queue) fill(ch *chunk, jobs []lowkiq.Push) (size int) {
	form, by := ch.coalesces, q.rules.Load()
	if form == "" {
		form = formOf(ch.jobs, jobs)
	}
	ch.Args[0], ch.Args[1], ch.Args[2] = form, by.Payloads, by.IDPayload
	if form[0] == 'm' {
		return q.fillAny(ch, jobs)
	}
	for _, i := range ch.jobs {
		size += len(jobs[i].ID) + len(jobs[i].Payload) + 8
	}
	// One buffer and one slice of strings for the whole script; go-redis takes
	// pointers to strings, so nothing is boxed.
	buf := make([]byte, 0, size)
	words := make([]string, 2*len(ch.jobs))
	args := make([]any, len(ch.Args), len(ch.Args)+len(words))
	copy(args, ch.Args)
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
	ch.Args = args
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
		ch.Args = append(ch.Args, job.ID, job.Payload, score, at)
		size += len(job.ID) + len(job.Payload) + len(score) + len(at)
	}
	return size
}

// largePayload is the longest payload of a record of form a or e, bytes.
const largePayload = 16 << 10

// formOf chooses the mode of lua/push.lua: a if no job says more than id and payload, e if every
// job has a score, m otherwise. Ids that come again go by m, which reads each record once. Large
// payloads go by m, which keeps them out of the records that a pop reads before it knows how large
// they are.
func formOf(places []int32, jobs []lowkiq.Push) string {
	scores := 0
	for _, i := range places {
		if !jobs[i].PerformAt.IsZero() || len(jobs[i].Payload) > largePayload {
			return "m"
		}
		if jobs[i].Score != nil {
			scores++
		}
	}
	if len(places) > fewRepeats && repeatsID(places, jobs) {
		return "m"
	}
	switch scores {
	case 0:
		return "a"
	case len(places):
		return "e"
	}
	return "m"
}

// fewRepeats jobs may repeat an id without harm: so many records are read at once.
const fewRepeats = 8

// repeatsID says whether an id comes more than once, in a table of hashes with open addressing:
// bulk pushes are many, and a map would cost more.
func repeatsID(places []int32, jobs []lowkiq.Push) bool {
	seed := maphash.MakeSeed()
	var table [4096]uint16 // 1 + index in places, of which there are at most chunkJobs
	for k, i := range places {
		id := jobs[i].ID
		slot := maphash.String(seed, id) % uint64(len(table))
		for ; table[slot] != 0; slot = (slot + 1) % uint64(len(table)) {
			if jobs[places[table[slot]-1]].ID == id {
				return true
			}
		}
		table[slot] = uint16(k + 1)
	}
	return false
}

// answer reads the script's answer into the results, and says of how many of the chunk's jobs it
// was.
func (q *Queue) answer(ch *chunk, jobs []lowkiq.Push, results []Result) int {
	codes, each := ch.Reply.(string)
	_, all := ch.Reply.(int64)
	if ch.Err == nil && !all && (!each || codes == "" || len(codes) > len(ch.jobs)) {
		ch.Err = fmt.Errorf("push answered %.50v for %d jobs", ch.Reply, len(ch.jobs))
	}
	if errors.Is(ch.Err, context.Canceled) || errors.Is(ch.Err, context.DeadlineExceeded) {
		ch.Err = unknownOutcome(ch.Err)
	}
	answered := ch.jobs
	if ch.Err == nil && each {
		answered = answered[:len(codes)]
	}
	for k, i := range answered {
		switch {
		case ch.Err != nil:
			results[i].Err = ch.Err
		case codes == "" || codes[k] == '0':
		case codes[k] == '1':
			results[i].Merged = true
		case codes[k] == '5':
			results[i].Err = &unsentError{ch.full[jobs[i].ID]}
		default:
			results[i].Err = ch.refused(codes[k], jobs[i].ID)
		}
	}
	return len(answered)
}

// refused is the error of a job's code, and the reason why later chunks hold the id's jobs back.
func (ch *chunk) refused(code byte, id string) error {
	err := fmt.Errorf("job %q: push answered %q", id, code)
	switch code {
	case '2':
		err = fmt.Errorf("job %q: %w: %d is the limit", id, ErrTooManyPayloads, ch.Args[1])
	case '3':
		err = fmt.Errorf("job %q: %w: %d is the limit", id, ErrTooManyBytes, ch.Args[2])
	case '4':
		err = fmt.Errorf("job %q: %w, of what waits for it: check --repair moves it aside", id, packed.ErrDamaged)
	}
	if ch.full == nil {
		ch.full = map[string]error{}
	}
	if ch.full[id] == nil {
		ch.full[id] = err
	}
	return err
}
