package transfer

import (
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
	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// Sizes of what one script gets: Redis runs it alone.
const (
	partPayloads = 500
	partBytes    = 512 << 10 // but for one payload
	callParts    = 1000
	callBytes    = 1 << 20
	waveBytes    = 8 << 20 // one pipeline
	plainBytes   = 16 << 10
)

// part is what of an entry goes to Redis in one step.
type part struct {
	entry    int // place in the entries
	kind     string
	first    int
	payloads []Payload
	total    int
	bytes    int // of the entry
	size     int // of the part
}

// line is what is to be sent to one shard, in order.
type line struct {
	shard   *queue.Shard
	entries []int  // places of entries that are not cut yet
	parts   []part // of the first entries, to be sent next
	failed  bool   // nothing more is sent
}

// work is one import.
type work struct {
	q       *queue.Queue
	rules   queue.PushRules
	field   string
	entries []Entry
	results []Result
	most    int   // payloads of a part
	now     int64 // us: what is due by then is due now
}

// run sends what each shard gets, a call per shard in a pipeline; the next one is sent when that is answered. Each shard, and so each
// entry, belongs to one goroutine.
func (w *work) run(ctx context.Context) {
	byShard := map[*queue.Shard]*line{}
	var lines []*line
	var halves sync.WaitGroup
	for i := range w.entries {
		if err := envelope.Check(&lowkiq.Push{ID: w.entries[i].ID}, 0, 0); err != nil { // nothing of such an id is ever stored
			w.refuse(i, err)
			continue
		}
		shard := w.q.Of(w.entries[i].ID)
		l := byShard[shard]
		if l == nil {
			l = &line{shard: shard}
			byShard[shard], lines = l, append(lines, l)
		}
		l.entries = append(l.entries, i)
	}
	half := len(lines) / 2
	halves.Go(func() { w.send(ctx, slices.Clone(lines[half:])) }) // while Redis runs scripts of one half, those of the other are written
	w.send(ctx, slices.Clone(lines[:half]))
	halves.Wait()
	w.settle(ctx, lines)
}

// settle waits until replicas have what the shards have taken in; one call per master, as a replica follows it in order. A best effort.
func (w *work) settle(ctx context.Context, lines []*line) {
	seen := map[string]bool{}
	for _, l := range lines {
		script := l.shard.DB().Scripts.Import
		keys := l.shard.Keys().For(script)
		master, err := l.shard.DB().MasterOf(ctx, keys[0])
		if err != nil || seen[master.Address()] || l.failed {
			continue
		}
		seen[master.Address()] = true
		l.shard.DB().RunReplicated(ctx, script, keys, w.limits(l)...) //nolint:errcheck // no entries: it is there to be waited for
	}
}

// limits are the arguments before those of parts.
func (w *work) limits(l *line) []any {
	return []any{w.rules.Payloads, w.rules.IDPayload, l.shard.Keys().Wake, w.field}
}

// send sends lines until nothing is left of them. It changes the slice.
func (w *work) send(ctx context.Context, lines []*line) {
	for len(lines) > 0 {
		var calls []*redisdb.Call
		var sent []*line
		size := 0
		for len(sent) < len(lines) && size < waveBytes {
			l := lines[len(sent)]
			call, n := w.call(l)
			calls, sent, size = append(calls, call), append(sent, l), size+n
		}
		sent[0].shard.DB().RunAll(ctx, calls)
		lines = lines[len(sent):]
		for i, l := range sent {
			if w.answer(ctx, l, calls[i]); len(l.parts)+len(l.entries) > 0 {
				lines = append(lines, l)
			}
		}
	}
}

// call takes the next parts of a line, as many as one script gets.
func (w *work) call(l *line) (call *redisdb.Call, size int) {
	script := l.shard.DB().Scripts.Import
	call = &redisdb.Call{Script: script, Keys: l.shard.Keys().For(script)}
	call.Args = w.limits(l)
	for n := 0; n < callParts; n++ {
		if n == len(l.parts) {
			if len(l.entries) == 0 {
				break
			}
			l.parts = append(l.parts, w.cut(l.entries[0])...)
			l.entries = l.entries[1:]
		}
		p := &l.parts[n]
		if n > 0 && size+p.size > callBytes {
			break
		}
		call.Args = w.write(call.Args, p)
		size += p.size + len(w.entries[p.entry].ID) + len(w.entries[p.entry].Error)
	}
	return call, size
}

// cut makes an entry the parts that are sent. One that is refused is a part, too: Redis is to know of it.
func (w *work) cut(i int) (parts []part) {
	entry := &w.entries[i]
	stored, size, err := prepare(entry, &w.rules)
	if err != nil {
		w.refuse(i, err)
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

// write adds the arguments of a part; see lua/import.lua.
func (w *work) write(args []any, p *part) []any {
	entry := &w.entries[p.entry]
	if p.kind == "w" && p.total == 1 && entry.RetryCount < 0 && entry.Error == "" && entry.Due <= w.now && p.size <= plainBytes {
		return append(args, entry.ID, entry.Number, scored(nil, &p.payloads[0]))
	}
	what := make([]byte, 0, 64)
	what = append(what, p.kind...)
	for _, n := range [...]int64{entry.Number, int64(p.first), int64(len(p.payloads)), int64(p.total), int64(p.bytes), int64(max(-1, entry.RetryCount)), max(0, entry.time())} {
		what = strconv.AppendInt(append(what, ' '), n, 10)
	}
	args = append(args, entry.ID, what, queue.KeptError(entry.Error))
	buf := make([]byte, 0, p.size+8*len(p.payloads))
	for i := range p.payloads {
		start := len(buf)
		buf = scored(buf, &p.payloads[i])
		args = append(args, unsafe.String(unsafe.SliceData(buf[start:]), len(buf)-start))
	}
	return args
}

// scored is a payload as the script gets it, behind its score.
func scored(to []byte, p *Payload) []byte {
	to = slices.Grow(to, 8+len(p.Data))
	return append(binary.BigEndian.AppendUint64(to, math.Float64bits(p.Score)), p.Data...)
}

// answer reads what a shard has answered to a line's call, and takes the parts that were looked at out of the line.
func (w *work) answer(ctx context.Context, l *line, call *redisdb.Call) {
	if call.Err != nil {
		if call.Err = l.shard.Refused(ctx, call.Err); call.Err == nil {
			return // it is sent again
		}
	}
	codes, ok := call.Reply.(string)
	if call.Err == nil && (!ok || codes == "" || len(codes) > len(l.parts)) {
		call.Err = fmt.Errorf("import answered %.50v to %d parts", call.Reply, len(l.parts))
	}
	if call.Err != nil {
		w.fail(l, call.Err)
		return
	}
	for k := range codes {
		w.read(&l.parts[k], codes[k])
	}
	l.parts = l.parts[len(codes):]
	for len(l.parts) > 0 && l.parts[0].first > 0 && Refused(w.results[l.parts[0].entry].Err) {
		l.parts = l.parts[1:] // the entry was refused
	}
}

// errUnanswered is what an entry has until its last part is answered.
var errUnanswered = fmt.Errorf("%w: no answer", queue.ErrUnsent)

// read takes in the code of a part.
func (w *work) read(p *part, code byte) {
	entry, result := &w.entries[p.entry], &w.results[p.entry]
	switch code {
	case '0', 'd':
		if p.first == 0 { // also of one that is refused now: a limit may have changed since
			*result = Result{Before: true, Err: errUnanswered}
		}
		result.Before = result.Before && code == 'd'
		if p.first+len(p.payloads) == p.total && result.Err == errUnanswered { //nolint:errorlint // it is not wrapped
			result.Err = nil
		}
		return
	case 'r':
		return // w.cut has said why
	}
	if Refused(result.Err) {
		return
	}
	var err error
	switch code {
	case '2':
		err = fmt.Errorf("%w: %d is the limit, the entry has %d", queue.ErrTooManyPayloads, w.rules.Payloads, p.total)
	case '3':
		err = fmt.Errorf("%w: %d is the limit, the entry has %d", queue.ErrTooManyBytes, w.rules.IDPayload, p.bytes)
	case '4':
		err = fmt.Errorf("%w, of what the queue has of it: check --repair moves it aside", queue.ErrDamaged)
	case '5':
		err = ErrBehind
	default:
		result.Err = fmt.Errorf("entry %d, job %q: part %d: %w: import answered %q", entry.Number, entry.ID, p.first, queue.ErrUnsent, code)
		return
	}
	w.refuse(p.entry, fmt.Errorf("job %q: %w", entry.ID, err))
}

func (w *work) refuse(i int, cause error) {
	w.results[i] = Result{Err: &refusal{fmt.Errorf("entry %d, %w", w.entries[i].Number, cause)}}
}

// fail answers what is left of a line: of what was sent nobody knows whether it was taken in, the rest is not sent.
func (w *work) fail(l *line, cause error) {
	if l.failed = true; redisdb.Says(cause, "FORGOTTEN") {
		cause = fmt.Errorf("source %s: %w", strings.TrimPrefix(w.field, fieldOf("")), ErrForgotten)
	}
	unknown := fmt.Errorf("%w: it is unknown whether the entry was taken in; sending it again is safe", cause)
	if !errors.Is(cause, context.Canceled) && !queue.Unreachable(cause) {
		unknown = cause
	}
	unsent := fmt.Errorf("%w: %w", queue.ErrUnsent, cause)
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
