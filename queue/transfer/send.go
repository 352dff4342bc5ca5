package transfer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Sizes of script calls. Redis does nothing else while a script runs.
const (
	partPayloads = 500
	partBytes    = 512 << 10 // unless a single payload is larger
	callParts    = 1000
	callBytes    = 1 << 20
	waveBytes    = 8 << 20 // bytes of a pipeline
	plainBytes   = 16 << 10
)

// part is the piece of an entry that is sent to Redis in one step.
type part struct {
	entry    int // index in the entries
	kind     string
	first    int
	payloads []Payload
	total    int
	bytes    int // bytes of the entry
	size     int // bytes of the part
}

// shardImport is the entries for a shard that are still to be sent, in order.
type shardImport struct {
	shard   *protocol.Shard
	entries []int  // indexes of entries that are not split yet
	parts   []part // parts of the first entries, to be sent next
	failed  bool   // no more parts are sent
	left    bool   // the queue has left the shard's layout, and the rest goes to the next layout
}

// importRun is a call of Import.
type importRun struct {
	q       *protocol.Queue
	rules   protocol.PushRules
	field   string
	entries []Entry
	results []Result
	most    int   // maximum number of payloads in a part
	now     int64 // us; earlier due times mean due now
}

// rest returns the indexes of the entries that a shard has not answered.
func (l *shardImport) rest() (entries []int) {
	for _, p := range l.parts {
		if n := len(entries); n == 0 || entries[n-1] != p.entry {
			entries = append(entries, p.entry)
		}
	}
	return append(entries, l.entries...)
}

// run sends each shard its entries, a script call per shard in a pipeline. It sends the next call
// when the call before is answered. Each shard, and so each entry, belongs to one of two
// goroutines.
func (w *importRun) run(ctx context.Context) {
	byShard := map[*protocol.Shard]*shardImport{}
	var lines []*shardImport
	var halves sync.WaitGroup
	var all []int
	for i := range w.entries {
		if err := envelope.Check(&lowkiq.Push{ID: w.entries[i].ID}, 0, 0); err != nil { // such an id is never stored
			w.refuseEntry(i, err)
			continue
		}
		all = append(all, i)
	}
	for _, i := range w.askFormer(ctx, all) {
		shard := w.q.Of(w.entries[i].ID)
		l := byShard[shard]
		if l == nil {
			l = &shardImport{shard: shard}
			byShard[shard], lines = l, append(lines, l)
		}
		l.entries = append(l.entries, i)
	}
	half := len(lines) / 2
	halves.Go(func() { w.sendAll(ctx, slices.Clone(lines[half:])) }) // this goroutine prepares scripts while Redis runs those of the other
	w.sendAll(ctx, slices.Clone(lines[:half]))
	halves.Wait()
	w.awaitReplicas(ctx, lines)
	var left []int
	for _, l := range lines {
		if l.left {
			left = append(left, l.rest()...)
		}
	}
	if len(left) > 0 {
		w.runInNext(ctx, left)
	}
}

// runInNext sends entries to the next layout of the queue. The shards that were left have no part of them. No shard freezes
// while an import into it has not ended (lua/freeze.lua), and a frozen shard refuses an import that begins later.
func (w *importRun) runInNext(ctx context.Context, left []int) {
	slices.Sort(left) // by their numbers
	next := *w
	next.q, next.entries, next.results = w.q.Latest(), make([]Entry, len(left)), make([]Result, len(left))
	for k, i := range left {
		next.entries[k], next.results[k] = w.entries[i], w.results[i]
	}
	if next.q == w.q { // the entry of the queue was not readable
		return
	}
	next.run(ctx)
	for k, i := range left {
		w.results[i] = next.results[k]
	}
}

// askFormer refuses the entries of sources that were forgotten in a former layout. The marks of forgotten sources stay
// there. It returns the other entries. A source that goes on has no number there; see runInNext.
func (w *importRun) askFormer(ctx context.Context, entries []int) (rest []int) {
	if len(w.q.FormerShards("", protocol.SourceAge)) == 0 {
		return entries
	}
	answers := map[string]error{} // by key of a shard's numbers
	for _, i := range entries {
		var refused error
		for _, s := range w.q.FormerShards(w.entries[i].ID, protocol.SourceAge) {
			err, asked := answers[s.Keys().From]
			if !asked {
				err = w.askShard(ctx, s)
				answers[s.Keys().From] = err
			}
			refused = cmp.Or(refused, err)
		}
		if w.results[i].Err = refused; refused == nil {
			w.results[i].Err = errUnanswered
			rest = append(rest, i)
		}
	}
	return rest
}

// askShard returns ErrForgotten if the shard of a former layout says that the source was forgotten.
func (w *importRun) askShard(ctx context.Context, s *protocol.Shard) error {
	reply, err := s.DB().Do(ctx, "read the number of a source", "HGET", s.Keys().From, w.field)
	if err == nil && strings.HasPrefix(redisdb.Text(reply), "x") {
		err = fmt.Errorf("source %s: %w", strings.TrimPrefix(w.field, fieldOf("")), ErrForgotten)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", protocol.ErrUnsent, err)
	}
	return err
}

// awaitReplicas waits until replicas have the imported entries. It repeats a call without entries.
func (w *importRun) awaitReplicas(ctx context.Context, lines []*shardImport) {
	var calls []*redisdb.Call
	for _, l := range lines {
		if script := l.shard.DB().Scripts.Import; !l.failed && !l.left {
			calls = append(calls, &redisdb.Call{Script: script, Keys: l.shard.Keys().For(script), Args: w.limitArgs(l)})
		}
	}
	w.q.Shard(0).DB().AwaitReplicas(ctx, calls) //nolint:errcheck // only the wait for replicas matters
}

// limitArgs returns the arguments before the parts.
func (w *importRun) limitArgs(l *shardImport) []any {
	return []any{w.rules.Payloads, w.rules.IDPayload, l.shard.Keys().Wake, w.field}
}

// sendAll sends the entries of shards until none is left. It changes the slice.
func (w *importRun) sendAll(ctx context.Context, lines []*shardImport) {
	for len(lines) > 0 {
		var calls []*redisdb.Call
		var sent []*shardImport
		size := 0
		for len(sent) < len(lines) && size < waveBytes {
			l := lines[len(sent)]
			call, n := w.nextCall(l)
			calls, sent, size = append(calls, call), append(sent, l), size+n
		}
		sent[0].shard.DB().RunAll(ctx, calls)
		lines = lines[len(sent):]
		for i, l := range sent {
			if w.handleReply(ctx, l, calls[i]); !l.left && len(l.parts)+len(l.entries) > 0 {
				lines = append(lines, l)
			}
		}
	}
}

// nextCall returns a script call with the next parts for a shard, as many as a script may get.
func (w *importRun) nextCall(l *shardImport) (call *redisdb.Call, size int) {
	script := l.shard.DB().Scripts.Import
	call = &redisdb.Call{Script: script, Keys: l.shard.Keys().For(script)}
	call.Args = w.limitArgs(l)
	for n := 0; n < callParts; n++ {
		if n == len(l.parts) {
			if len(l.entries) == 0 {
				break
			}
			l.parts = append(l.parts, w.splitEntry(l.entries[0])...)
			l.entries = l.entries[1:]
		}
		p := &l.parts[n]
		if n > 0 && size+p.size > callBytes {
			break
		}
		call.Args = w.appendPart(call.Args, p)
		size += p.size + len(w.entries[p.entry].ID) + len(w.entries[p.entry].Error)
	}
	return call, size
}

// splitEntry splits an entry into parts. A refused entry becomes a part too, because Redis must
// know about it.
func (w *importRun) splitEntry(i int) (parts []part) {
	entry := &w.entries[i]
	stored, size, err := prepareEntry(entry, &w.rules)
	if err != nil {
		w.refuseEntry(i, err)
		return []part{{entry: i, kind: "r"}}
	}
	kind := "w"
	if entry.Morgue {
		kind = "m"
	}
	for first := 0; first < len(stored); {
		p := part{entry: i, kind: kind, first: first, total: len(stored), bytes: size}
		end := first
		for end < len(stored) && end-first < w.most && (end == first || p.size+len(stored[end].Data) <= partBytes) {
			p.size += len(stored[end].Data)
			end++
		}
		p.payloads = stored[first:end]
		parts, first = append(parts, p), end
	}
	return parts
}

// appendPart appends the arguments of a part; see lua/import.lua.
func (w *importRun) appendPart(args []any, p *part) []any {
	entry := &w.entries[p.entry]
	if p.kind == "w" && p.total == 1 && entry.RetryCount < 0 && entry.Error == "" && entry.Due <= w.now && p.size <= plainBytes {
		return append(args, entry.ID, entry.Number, appendScored(nil, &p.payloads[0]))
	}
	what := make([]byte, 0, 64)
	what = append(what, p.kind...)
	for _, n := range [...]int64{entry.Number, int64(p.first), int64(len(p.payloads)), int64(p.total), int64(p.bytes), int64(max(-1, entry.RetryCount)), max(0, entry.timeOf())} {
		what = strconv.AppendInt(append(what, ' '), n, 10)
	}
	args = append(args, entry.ID, what, protocol.KeptError(entry.Error))
	buf := make([]byte, 0, p.size+8*len(p.payloads))
	for i := range p.payloads {
		start := len(buf)
		buf = appendScored(buf, &p.payloads[i])
		args = append(args, unsafe.String(unsafe.SliceData(buf[start:]), len(buf)-start))
	}
	return args
}

// appendScored appends a payload as the script expects it, after its score.
func appendScored(to []byte, p *Payload) []byte {
	to = slices.Grow(to, 8+len(p.Data))
	return append(binary.BigEndian.AppendUint64(to, math.Float64bits(p.Score)), p.Data...)
}

// handleReply handles the answer to a script call, and removes the parts that it answers.
func (w *importRun) handleReply(ctx context.Context, l *shardImport, call *redisdb.Call) {
	if call.Err != nil {
		if call.Err = l.shard.Refused(ctx, call.Err); call.Err == nil {
			return // the parts are sent again
		}
		l.left = protocol.HasLeft(call.Err)
	}
	if l.left {
		return
	}
	codes, ok := call.Reply.(string)
	if call.Err == nil && (!ok || codes == "" || len(codes) > len(l.parts)) {
		call.Err = fmt.Errorf("import answered %.50v for %d parts", call.Reply, len(l.parts))
	}
	if call.Err != nil {
		w.failRest(l, call.Err)
		return
	}
	for k := range codes {
		w.handleCode(&l.parts[k], codes[k])
	}
	l.parts = l.parts[len(codes):]
	for len(l.parts) > 0 && l.parts[0].first > 0 && Refused(w.results[l.parts[0].entry].Err) {
		l.parts = l.parts[1:] // the entry was refused
	}
}

// errUnanswered is the error of an entry until its last part is answered.
var errUnanswered = fmt.Errorf("%w: no answer", protocol.ErrUnsent)

// handleCode handles the answer to a part.
func (w *importRun) handleCode(p *part, code byte) {
	entry, result := &w.entries[p.entry], &w.results[p.entry]
	switch code {
	case '0', 'd':
		if p.first == 0 { // also if a later part is refused because a limit has changed
			*result = Result{Before: true, Err: errUnanswered}
		}
		result.Before = result.Before && code == 'd'
		if p.first+len(p.payloads) == p.total && result.Err == errUnanswered { //nolint:errorlint // it is not wrapped
			result.Err = nil
		}
		return
	case 'r':
		return // splitEntry has set the error
	}
	if Refused(result.Err) {
		return
	}
	var err error
	switch code {
	case '2':
		err = fmt.Errorf("%w: %d is the limit, the entry has %d", protocol.ErrTooManyPayloads, w.rules.Payloads, p.total)
	case '3':
		err = fmt.Errorf("%w: %d is the limit, the entry has %d", protocol.ErrTooManyBytes, w.rules.IDPayload, p.bytes)
	case '4':
		err = fmt.Errorf("the job in the queue: %w; check --repair moves it aside", protocol.ErrDamaged)
	case '5':
		err = ErrBehind
	default:
		result.Err = fmt.Errorf("entry %d, job %q: part %d: %w: import answered %q", entry.Number, entry.ID, p.first, protocol.ErrUnsent, code)
		return
	}
	w.refuseEntry(p.entry, fmt.Errorf("job %q: %w", entry.ID, err))
}

func (w *importRun) refuseEntry(i int, cause error) {
	w.results[i] = Result{Err: &refusal{fmt.Errorf("entry %d, %w", w.entries[i].Number, cause)}}
}

// failRest sets the results of the remaining entries of a shard. For entries that were sent it is
// unknown whether they were taken in. The others are not sent.
func (w *importRun) failRest(l *shardImport, cause error) {
	if l.failed = true; redisdb.Says(cause, "FORGOTTEN") {
		cause = fmt.Errorf("source %s: %w", strings.TrimPrefix(w.field, fieldOf("")), ErrForgotten)
	}
	unknown := fmt.Errorf("%w: it is unknown whether the entry was taken in; sending it again is safe", cause)
	if !errors.Is(cause, context.Canceled) && !protocol.Unreachable(cause) {
		unknown = cause
	}
	unsent := fmt.Errorf("%w: %w", protocol.ErrUnsent, cause)
	for k := range l.parts {
		if p := &l.parts[k]; p.kind != "r" {
			w.results[p.entry] = Result{Err: unknown}
		}
	}
	for _, i := range l.entries {
		w.results[i].Err = unsent
	}
	l.parts, l.entries = nil, nil
}
