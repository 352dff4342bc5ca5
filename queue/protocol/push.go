package protocol

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
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Result is the answer to a pushed job. A job without an error is stored.
type Result struct {
	// Merged reports that an equal payload of the id was waiting already, and the job was merged with it.
	Merged bool
	// Err says why the job is not stored: it was refused, or not sent (ErrUnsent). It may also say that
	// Redis did not answer and that the job may be stored. Pushing it again is safe.
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
	ErrDamaged         = packed.ErrDamaged // the waiting payloads of this id cannot be read
)

// ErrUnsent means that the job is not stored because an earlier part of the same push to its shard
// failed, or because an earlier payload of its id was refused. The error wraps that failure. Push the
// failed jobs again in the same order, so that each id's payloads are stored in push order.
var ErrUnsent = errors.New("not sent, as an earlier part of the push failed")

// unsentError is ErrUnsent with the failure that caused it.
type unsentError struct{ cause error }

func (e *unsentError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnsent, e.cause) }
func (e *unsentError) Unwrap() error        { return e.cause }
func (e *unsentError) Is(target error) bool { return target == ErrUnsent }

// Bounds of a push. Redis runs nothing else during a script, so a script must be short. A script also
// has few arguments, because Lua's unpack takes only some 7,000 values.
const (
	maxChunkJobs  = 1000    // jobs of a script
	maxUrgentJobs = 250     // jobs of a script with urgent jobs, each of which takes more commands
	maxChunkBytes = 1 << 20 // payload bytes of a script, unless a payload alone is larger
	maxWaveBytes  = 8 << 20 // argument bytes of a full pipeline
	maxSharedJobs = 64      // jobs of a push that may share its scripts with other pushes
)

// Push stores jobs; queue.Queue.Push says what holds then. It refuses jobs for built-in queues.
func (q *Queue) Push(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error) {
	if err := CheckNotReserved(q.Name); err != nil {
		return refuseAll(err)(ctx, jobs)
	}
	return q.PushAny(ctx, jobs...)
}

// PushAny is Push for every queue, also for built-in queues.
func (q *Queue) PushAny(ctx context.Context, jobs ...lowkiq.Push) ([]Result, error) {
	q = q.Latest()
	q.refreshEntry(ctx)                // codec and limits may have changed in the registry
	return (*q.push.Load())(ctx, jobs) // middlewares and codec, then storeJobs; see applyRules
}

// storeJobs is the last step of a push, after middlewares and codec. A small push joins the pushes of other
// callers. A large push has scripts of its own. If ctx can end, these scripts run in another goroutine, so
// that the caller need not wait for them.
func (q *Queue) storeJobs(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
	for i := range jobs {
		if jobs[i].ReplyTo != "" { // a caller waits for the end of this job
			q.updateCallIDs(ctx, jobs[i:])
			break
		}
	}
	jobs = envelope.All(jobs) // payloads as Redis stores them, with headers and callers
	if len(jobs) <= maxSharedJobs {
		return q.commit.push(ctx, jobs)
	}
	results := make([]Result, len(jobs))
	if ctx.Done() == nil {
		q.writeJobs(ctx, jobs, results, q.newFlipWait())
		return results, firstError(results)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		q.writeJobs(ctx, jobs, results, q.newFlipWait())
	}()
	select {
	case <-written:
		return results, firstError(results)
	case <-ctx.Done():
	}
	select { // wait a moment for results of jobs that are stored
	case <-written:
		return results, firstError(results)
	case <-time.After(lateAnswerWait):
		return unansweredResults(ctx, jobs)
	}
}

// Push stores jobs in a registered queue; see [Queue.Push].
func (c *Client) Push(ctx context.Context, queue string, jobs ...lowkiq.Push) ([]Result, error) {
	if err := CheckNotReserved(queue); err != nil {
		return refuseAll(err)(ctx, jobs)
	}
	q, err := c.Queue(ctx, queue)
	if err != nil {
		return nil, err
	}
	return q.Push(ctx, jobs...)
}

// firstError returns the first error of the jobs, nil if there is none.
func firstError(results []Result) error {
	for i := range results {
		if results[i].Err != nil {
			return results[i].Err
		}
	}
	return nil
}

// chunk is the part of a push that a script stores: jobs of one shard, in push order.
type chunk struct {
	redisdb.Call         // of lua/push.lua, lua/coalesce.lua or lua/push_urgent.lua, with its reply
	shard        int     // index of the shard
	jobs         []int32 // indexes in the push
	next         *chunk  // the shard's next chunk, sent once this chunk is stored
	mode         string  // first argument of the script; "" lets pushMode choose
	// refusals says, by id, why a payload was refused in this chunk or an earlier chunk of the shard.
	// It is nil in most pushes.
	refusals map[string]error
}

// headArgs is the number of arguments of lua/push.lua before the jobs.
const headArgs = 4

// writeJobs sends jobs to Redis and fills in the results. It cuts the jobs into chunks by shard and
// sends the chunks in waves. A wave is a pipeline with at most one chunk of each shard. While Redis works
// on a wave, the arguments of the next wave are built.
//
// An id's payloads must be stored in push order, also if the caller repeats a failed push (promise I3 of
// docs/design.md). Therefore a chunk is sent only after the shard's chunk before it is stored, and never if
// that chunk failed. Suppose the first chunk failed and the second were stored. A repeated push would then
// store the payloads of the first chunk behind later payloads of the same ids.
//
// wait bounds how long jobs wait for the flip of a reshard. Those that wait in vain get an ErrMoving.
func (q *Queue) writeJobs(ctx context.Context, jobs []lowkiq.Push, results []Result, wait *flipWait) {
	var forNext []int32 // indexes of jobs for the next layout
	chunks := q.pushSmallChunks(ctx, q.cutChunks(jobs, results), jobs, results)
	wave, rest := q.nextWave(chunks, jobs)
	for len(wave) > 0 {
		behind := rest // chunks that may go after this wave
		for _, ch := range wave {
			if ch.next != nil {
				behind = append(behind, ch.next)
			}
		}
		answered := q.sendWave(ctx, wave, len(behind) > 0)
		next, after := q.nextWave(behind, jobs) // while Redis works
		answered()
		for _, ch := range wave {
			q.finishChunk(ctx, ch, wait, jobs, results)
			switch {
			case ch.Err == errLeft: //nolint:errorlint // it is not wrapped
				forNext = ch.leaveAll(forNext, jobs, results)
			case ch.Err != nil:
				ch.next.markUnsent(ch.Err, results)
			case ch.refusals != nil && ch.next != nil:
				q.withholdFromChunk(ch.next, ch.refusals, jobs, results)
			}
			ch.Args = nil
		}
		// Chunks of the next wave may have been marked as unsent, or have lost all jobs.
		done := func(ch *chunk) bool { return ch.Err != nil || len(ch.jobs) == 0 }
		wave, rest = slices.DeleteFunc(next, done), slices.DeleteFunc(after, done)
		if len(wave) == 0 {
			wave, rest = q.nextWave(rest, jobs)
		}
	}
	q.countStored(results)
	if len(forNext) > 0 {
		q.writeToNext(ctx, forNext, jobs, results, wait)
	}
}

// leaveAll appends the jobs of a chunk and of the chunks behind it to the jobs for the next layout, and marks them as not
// stored. It leaves out later jobs of refused ids; see withholdFromChunk.
func (ch *chunk) leaveAll(forNext []int32, jobs []lowkiq.Push, results []Result) []int32 {
	refusals := ch.refusals
	for ; ch != nil; ch = ch.next {
		ch.Err = errLeft
		for _, i := range withholdJobs(ch.jobs, refusals, jobs, results) {
			results[i].Err = errLeft
			forNext = append(forNext, i)
		}
	}
	return forNext
}

// writeToNext stores jobs in the next layout of the queue, because the queue has left the shards that refused them. It
// keeps them in push order.
//
// The order of an id holds (I3). The shard of the id in the old layout took a first part of the jobs and refused the rest.
// It is frozen for good, so it cannot take a later job of the id after that refusal. Therefore all jobs of the id that are
// not stored are here. The jobs that it took come before them, because a copied job takes its place before the payloads
// that were pushed to the new shard.
func (q *Queue) writeToNext(ctx context.Context, forNext []int32, jobs []lowkiq.Push, results []Result, wait *flipWait) {
	slices.Sort(forNext)
	some, of := make([]lowkiq.Push, len(forNext)), make([]Result, len(forNext))
	for k, i := range forNext {
		some[k] = jobs[i]
	}
	next, err := q.successor(ctx)
	if err == nil {
		next.writeJobs(ctx, some, of, wait)
	}
	for k, i := range forNext {
		if results[i] = of[k]; err != nil {
			results[i].Err = &unsentError{err}
		}
	}
}

// nextWave builds the arguments of as many chunks as a pipeline takes. It returns these chunks and the rest.
func (q *Queue) nextWave(chunks []*chunk, jobs []lowkiq.Push) (wave, rest []*chunk) {
	n, size := 0, 0
	for n < len(chunks) && size < maxWaveBytes {
		size += q.fillArgs(chunks[n], jobs)
		n++
	}
	return chunks[:n:n], chunks[n:]
}

// sendWave sends a wave, in another goroutine if async is true. The replies are there once answered has
// returned.
func (q *Queue) sendWave(ctx context.Context, wave []*chunk, async bool) (answered func()) {
	calls := make([]*redisdb.Call, len(wave))
	for i, ch := range wave {
		calls[i] = &ch.Call
	}
	if !async {
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

// settleChunk handles a chunk that its shard refused because of a mark. If the deletion or the reshard of the mark was
// given up, settleChunk runs the script again. The error is errLeft if the jobs of the chunk belong to the next layout.
// Other errors of marks say that the queue is deleted, or that a reshard has not flipped in time. A refused script has
// stored nothing, so a repetition cannot store a job twice.
func (q *Queue) settleChunk(ctx context.Context, ch *chunk, wait *flipWait) {
	if ch.Err == nil {
		return
	}
	for ch.Err = readRefusal(ch.Err); markWord(ch.Err) != ""; {
		if q.next.Load() != nil {
			ch.Err = errLeft
			return
		}
		if ch.Err = q.shards[ch.shard].settleMark(ctx, ch.Err, wait.remaining()); ch.Err != nil {
			return
		}
		ch.Reply, ch.Err = runScript(ctx, q.registry.db, ch.Script, ch.Keys, ch.Args...)
		if ch.Err = readRefusal(ch.Err); wait.remaining() <= 0 {
			return
		}
	}
}

// flipWait bounds the time for which all chunks of a push together wait for the flip of a reshard. The time begins with the
// first refusal. A quarter of the timeout is left for shards that refuse later. Their entry is then read once, without a
// wait.
type flipWait struct {
	patience time.Duration
	end      time.Time
}

func (q *Queue) newFlipWait() *flipWait { return &flipWait{patience: q.registry.cfg.Timeout * 3 / 4} }

func (w *flipWait) remaining() time.Duration {
	if w.end.IsZero() {
		w.end = time.Now().Add(w.patience)
	}
	return time.Until(w.end)
}

// finishChunk reads the answer to a chunk into the results. A script bounds its work and may leave out the
// last jobs. finishChunk sends these itself, in scripts of as many jobs as the script before has answered,
// one after the other, so that they keep their order (I3).
func (q *Queue) finishChunk(ctx context.Context, ch *chunk, wait *flipWait, jobs []lowkiq.Push, results []Result) {
	for rest := ch.jobs; ; {
		q.settleChunk(ctx, ch, wait)
		if ch.Err == errLeft { //nolint:errorlint // it is not wrapped
			ch.jobs = rest
			return
		}
		n := q.readAnswer(ch, jobs, results)
		rest = rest[n:]
		if ch.Err != nil {
			(&chunk{jobs: rest}).markUnsent(ch.Err, results)
			return
		}
		if ch.refusals != nil { // the next script does not know the refusals; see withholdFromChunk
			rest = withholdJobs(rest, ch.refusals, jobs, results)
		}
		if len(rest) == 0 {
			return
		}
		ch.jobs, ch.Args = rest[:min(n, len(rest))], ch.Args[:headArgs]
		q.fillArgs(ch, jobs)
		q.registry.db.RunAll(ctx, []*redisdb.Call{&ch.Call})
	}
}

// withholdJobs returns the jobs without those of refused ids. Their results get an ErrUnsent.
func withholdJobs(indexes []int32, refusals map[string]error, jobs []lowkiq.Push, results []Result) []int32 {
	return slices.DeleteFunc(slices.Clone(indexes), func(i int32) bool {
		cause := refusals[jobs[i].ID]
		if cause != nil {
			results[i].Err = &unsentError{cause}
		}
		return cause != nil
	})
}

// markUnsent gives an ErrUnsent to all jobs of a chunk and of the chunks behind it. ch may be nil.
func (ch *chunk) markUnsent(cause error, results []Result) {
	for ; ch != nil; ch = ch.next {
		ch.Err = &unsentError{cause}
		for _, i := range ch.jobs {
			results[i].Err = ch.Err
		}
	}
}

// withholdFromChunk removes the jobs of refused ids from a chunk that is not sent yet. A worker may have
// made room for these ids since. Redis would then store the later payloads, and a refused payload that the
// caller pushes again would come behind them (I3). A chunk that has no jobs left takes the jobs of the
// next chunk.
func (q *Queue) withholdFromChunk(ch *chunk, refusals map[string]error, jobs []lowkiq.Push, results []Result) {
	before := ch.jobs
	ch.refusals = refusals
	for {
		ch.jobs = withholdJobs(ch.jobs, refusals, jobs, results)
		if len(ch.jobs) > 0 || ch.next == nil {
			break
		}
		next := ch.next
		ch.jobs, ch.next = next.jobs, next.next
		ch.mode, ch.Script, ch.Keys = next.mode, next.Script, next.Keys
	}
	// If the next wave holds the chunk, its arguments are built already, with the removed jobs. They must be
	// built again.
	if built := len(ch.Args) > headArgs; built && len(ch.jobs) > 0 && !slices.Equal(ch.jobs, before) {
		ch.Args = ch.Args[:headArgs]
		q.fillArgs(ch, jobs)
	}
}

// coalesceMode returns the first argument of lua/coalesce.lua. That script stores a push if the rules let the
// push replace or delay waiting payloads. Otherwise coalesceMode returns "", and lua/push.lua stores the push.
func (r *PushRules) coalesceMode() string {
	kind, d := cmp.Or(r.Coalesce, rules.CoalesceAll), r.Debounce
	if kind == rules.CoalesceAll && d.Quiet <= 0 {
		return ""
	}
	return fmt.Sprintf("m %s %d %d", kind, max(0, d.Quiet.Microseconds()), max(0, d.Most.Microseconds()))
}

// storeAllMode is the mode of urgent pushes to a queue without such rules.
const storeAllMode = "m " + rules.CoalesceAll + " 0 0"

// cutChunks sorts jobs into chunks by shard and refuses invalid jobs. It returns the first chunk of each
// shard. The others follow by their field next.
func (q *Queue) cutChunks(jobs []lowkiq.Push, results []Result) []*chunk {
	by := q.rules.Load()
	mode := by.coalesceMode()
	open := make(map[int]*chunk, min(len(jobs), q.Shards)) // the last chunk of each shard
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
		full := ch != nil && (len(ch.jobs) == maxChunkJobs || ch.Script == q.registry.db.Scripts.PushUrgent && len(ch.jobs) >= maxUrgentJobs)
		if ch == nil || full || sizes[ch]+len(job.Payload) > maxChunkBytes {
			before := ch
			ch = &chunk{shard: shard, Call: redisdb.Call{Script: q.registry.db.Scripts.Push, Keys: q.shards[shard].push}}
			ch.Args = []any{nil, nil, nil, q.shards[shard].keys.Wake}
			if mode != "" {
				ch.mode, ch.Script = mode, q.registry.db.Scripts.Coalesce
				ch.Keys = q.shards[shard].keys.For(ch.Script)
			}
			open[shard] = ch
			if before == nil {
				first = append(first, ch)
			} else {
				before.next = ch
			}
		}
		if job.Urgent && ch.Script != q.registry.db.Scripts.PushUrgent {
			ch.mode, ch.Script = cmp.Or(mode, storeAllMode), q.registry.db.Scripts.PushUrgent
			ch.Keys = q.shards[shard].keys.For(ch.Script)
		}
		ch.jobs = append(ch.jobs, int32(i))
		sizes[ch] += len(job.Payload)
	}
	return first
}

// fillArgs appends the script's arguments for the jobs of a chunk and returns their size in bytes.
// lua/push.lua describes them.
func (q *Queue) fillArgs(ch *chunk, jobs []lowkiq.Push) (size int) {
	mode, by := ch.mode, q.rules.Load()
	if mode == "" {
		mode = pushMode(ch.jobs, jobs)
	}
	ch.Args[0], ch.Args[1], ch.Args[2] = mode, by.Payloads, by.IDPayload
	if mode[0] == 'm' {
		return q.fillMixedArgs(ch, jobs)
	}
	for _, i := range ch.jobs {
		size += len(jobs[i].ID) + len(jobs[i].Payload) + 8
	}
	// The whole script shares a buffer and a slice of strings. go-redis takes pointers
	// to strings, so no string is boxed.
	buf := make([]byte, 0, size)
	words := make([]string, 2*len(ch.jobs))
	args := make([]any, len(ch.Args), len(ch.Args)+len(words))
	copy(args, ch.Args)
	for k, i := range ch.jobs {
		job := &jobs[i]
		start := len(buf)
		if mode == "a" {
			buf = append(buf, byte(k>>8), byte(k)) // the place in this script, for the score
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

// fillMixedArgs is fillArgs in mode m, and for lua/coalesce.lua. Each job has a score and a due time, which
// may be empty.
func (q *Queue) fillMixedArgs(ch *chunk, jobs []lowkiq.Push) (size int) {
	for _, i := range ch.jobs {
		job := &jobs[i]
		score, at := "", ""
		if job.Score != nil {
			score = strconv.FormatFloat(*job.Score, 'g', 17, 64)
		}
		if !job.PerformAt.IsZero() {
			at = strconv.FormatInt(job.PerformAt.UnixMicro(), 10)
		}
		if job.Urgent {
			at = "u" + at
		}
		ch.Args = append(ch.Args, job.ID, job.Payload, score, at)
		size += len(job.ID) + len(job.Payload) + len(score) + len(at)
	}
	return size
}

// largePayload is the maximum size in bytes of a payload in a record of form a or e.
const largePayload = 16 << 10

// pushMode chooses the mode of lua/push.lua. In mode a no job has a score, in mode e every job has a score,
// and no job has a due time. Mode m takes every mixture, at a higher cost.
//
// Mode m also serves repeated ids, because it reads each record once. It also takes large payloads, because
// it keeps them out of the records. A pop reads records before it knows their size.
func pushMode(indexes []int32, jobs []lowkiq.Push) string {
	scores := 0
	for _, i := range indexes {
		if !jobs[i].PerformAt.IsZero() || jobs[i].Urgent || len(jobs[i].Payload) > largePayload {
			return "m"
		}
		if jobs[i].Score != nil {
			scores++
		}
	}
	if len(indexes) > maxRepeats && repeatsID(indexes, jobs) {
		return "m"
	}
	switch scores {
	case 0:
		return "a"
	case len(indexes):
		return "e"
	}
	return "m"
}

// A chunk of more than maxRepeats jobs uses mode m if an id comes twice. In modes a and e lua/push.lua
// reads the record of the id for each of its payloads.
const maxRepeats = 8

// repeatsID reports whether an id comes more than once. It uses a hash table with open addressing,
// because bulk pushes are frequent and a map costs more.
func repeatsID(indexes []int32, jobs []lowkiq.Push) bool {
	seed := maphash.MakeSeed()
	var table [4096]uint16 // 1 + position in indexes, which has at most maxChunkJobs elements; 0 is an empty slot
	for k, i := range indexes {
		id := jobs[i].ID
		slot := maphash.String(seed, id) % uint64(len(table))
		for ; table[slot] != 0; slot = (slot + 1) % uint64(len(table)) {
			if jobs[indexes[table[slot]-1]].ID == id {
				return true
			}
		}
		table[slot] = uint16(k + 1)
	}
	return false
}

// readAnswer reads the script's answer into the results. It returns the number of the chunk's jobs that the
// answer covers. The script answers with a number if it stored all jobs as new ids, else with a character
// per job, for as many jobs as it came to: 0 stored, 1 merged, 2 to 4 refused, 5 not stored because
// an earlier payload of the id was refused.
func (q *Queue) readAnswer(ch *chunk, jobs []lowkiq.Push, results []Result) int {
	codes, each := ch.Reply.(string)
	_, all := ch.Reply.(int64)
	if ch.Err == nil && !all && (!each || codes == "" || len(codes) > len(ch.jobs)) {
		ch.Err = fmt.Errorf("push answered %.50v for %d jobs", ch.Reply, len(ch.jobs))
	}
	if errors.Is(ch.Err, context.Canceled) || errors.Is(ch.Err, context.DeadlineExceeded) { // the script may have run
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
		case all || codes[k] == '0':
		case codes[k] == '1':
			results[i].Merged = true
		case codes[k] == '5':
			results[i].Err = &unsentError{ch.refusals[jobs[i].ID]}
		default:
			results[i].Err = ch.recordRefusal(codes[k], jobs[i].ID)
		}
	}
	return len(answered)
}

// recordRefusal returns the error for a job's code. It records the error, so that no later payload of the
// id is sent.
func (ch *chunk) recordRefusal(code byte, id string) error {
	err := fmt.Errorf("job %q: push answered %q", id, code)
	switch code {
	case '2':
		err = fmt.Errorf("job %q: %w: %d is the limit", id, ErrTooManyPayloads, ch.Args[1])
	case '3':
		err = fmt.Errorf("job %q: %w: %d is the limit", id, ErrTooManyBytes, ch.Args[2])
	case '4':
		err = fmt.Errorf("job %q: %w, in its waiting record; check --repair moves the record aside", id, packed.ErrDamaged)
	}
	if ch.refusals == nil {
		ch.refusals = map[string]error{}
	}
	if ch.refusals[id] == nil {
		ch.refusals[id] = err
	}
	return err
}
