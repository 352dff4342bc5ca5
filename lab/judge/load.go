package judge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// call is a job in a handler call. It has a start, and its end if the history has it.
type call struct {
	start, end   int64
	fence        int64
	flight       int64
	key          int32 // the number of its queue and id
	shard        int32
	process      int32
	first, count uint32 // payloads: table.payloads[first : first+count]
	want         uint32 // the announced number of payloads
	file, line   int32
	outcome      outcome
}

type outcome uint8

const (
	running     outcome = iota // no end was read
	succeeded                  // the handler returned no error
	failed                     // the handler returned an error
	interrupted                // the process died first
)

func (o outcome) String() string {
	return [...]string{"never ended", "succeeded", "failed", "interrupted"}[o]
}

// death is the death of a process, as the driver noted it.
type death struct {
	killed    int64 // just before SIGKILL was sent, or 0
	reaped    int64 // after wait returned
	inherited bool  // the death was the parent's
}

// names numbers strings.
type names struct {
	index map[string]int32
	list  []string
}

// indexOf returns the number of a name. New names get the next number, from 0.
func (n *names) indexOf(name []byte) int32 {
	if i, ok := n.index[string(name)]; ok {
		return i
	}
	if n.index == nil {
		n.index = map[string]int32{}
	}
	i := int32(len(n.list))
	n.list = append(n.list, string(name))
	n.index[n.list[i]] = i
	return i
}

// handle identifies a call while it runs.
type handle struct {
	start        int64
	process, key int32
}

// table is a history in memory. It needs about 100 bytes per call.
type table struct {
	calls     []call
	payloads  []payload
	keys      names // queue, a zero byte, id
	shards    names // queue, a zero byte, index
	processes names
	deaths    map[int32][]death
	files     []string

	open    map[handle]int32
	scratch []byte
	torn    []unreadable
	broken  []unreadable
}

// unreadable is a line without meaning.
type unreadable struct {
	file, line int32
	why        string
}

func newTable() *table {
	return &table{deaths: map[int32][]death{}, open: map[handle]int32{}}
}

// readFile adds the events of a file.
func (t *table) readFile(name string, r io.Reader) error {
	file := int32(len(t.files))
	t.files = append(t.files, name)
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	var e event
	for n := int32(1); lines.Scan(); n++ {
		line := lines.Bytes()
		if len(line) == 0 {
			continue
		}
		err := e.parse(line)
		if err == nil {
			err = t.addEvent(&e, file, n)
		}
		if errors.Is(err, errTorn) {
			t.torn = append(t.torn, unreadable{file, n, err.Error()})
		} else if err != nil {
			t.broken = append(t.broken, unreadable{file, n, err.Error()})
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read history %s: %w", name, err)
	}
	return nil
}

// addEvent adds the event of a line to the table. Its error says why no correct history has this line.
func (t *table) addEvent(e *event, file, line int32) error {
	process := t.processes.indexOf(e.process)
	if e.kind == kindDeath {
		t.deaths[process] = append(t.deaths[process], death{killed: e.killed, reaped: e.t})
		return nil
	}
	key := t.keyOf(e.queue, e.id)
	switch e.kind {
	case kindStart:
		return t.beginCall(e, call{
			start: e.t, end: math.MaxInt64, fence: e.fence, flight: e.flight, key: key,
			shard: t.shardOf(e.queue, e.shard), process: process, want: uint32(e.count), file: file, line: line,
		})
	case kindMore:
		return t.addPayloads(e, handle{e.t, process, key})
	default:
		return t.endCall(e, handle{e.began, process, key})
	}
}

func (t *table) keyOf(queue, id []byte) int32 {
	t.scratch = append(append(append(t.scratch[:0], queue...), 0), id...)
	return t.keys.indexOf(t.scratch)
}

func (t *table) shardOf(queue []byte, index int64) int32 {
	t.scratch = append(append(t.scratch[:0], queue...), '/')
	t.scratch = fmt.Append(t.scratch, index)
	return t.shards.indexOf(t.scratch)
}

// beginCall opens a call. The process, the time of the start and the id name it until its end, so they
// must not be open yet.
func (t *table) beginCall(e *event, c call) error {
	h := handle{c.start, c.process, c.key}
	if _, twice := t.open[h]; twice {
		return errors.New("an id twice in one batch")
	}
	c.first, c.count = uint32(len(t.payloads)), uint32(len(e.payloads))
	t.payloads = append(t.payloads, e.payloads...)
	t.open[h] = int32(len(t.calls))
	t.calls = append(t.calls, c)
	return nil
}

// addPayloads appends payloads to a call. It moves the call's earlier payloads if others came between.
func (t *table) addPayloads(e *event, h handle) error {
	i, ok := t.open[h]
	if !ok {
		return errors.New("more payloads without a start")
	}
	c := &t.calls[i]
	if int(c.first+c.count) != len(t.payloads) {
		earlier := t.payloads[c.first : c.first+c.count]
		c.first = uint32(len(t.payloads))
		t.payloads = append(t.payloads, earlier...)
	}
	t.payloads = append(t.payloads, e.payloads...)
	c.count += uint32(len(e.payloads))
	return nil
}

// endCall closes an open call. All payloads of the call must have been read before.
func (t *table) endCall(e *event, h handle) error {
	i, ok := t.open[h]
	if !ok {
		return errors.New("an end without a start")
	}
	c := &t.calls[i]
	delete(t.open, h)
	c.end, c.outcome = e.t, failed
	if e.kind == kindEnd {
		c.outcome = succeeded
	}
	if e.t < c.start {
		return errors.New("an end before its start")
	}
	if c.count != c.want {
		return fmt.Errorf("the end of a call with %d payloads noted of %d", c.count, c.want)
	}
	return nil
}

func (t *table) payloadsOf(c *call) []payload { return t.payloads[c.first : c.first+c.count] }

func (t *table) placeOf(file, line int32) string { return fmt.Sprintf("%s:%d", t.files[file], line) }

// describe returns a call as a line, with the place of its start in the file.
func (t *table) describe(i int32) string {
	c := &t.calls[i]
	_, id := splitKey(t.keys.list[c.key])
	return fmt.Sprintf("%s: id %q, process %q, shard %s, fence %d, flight %d, from %d to %d, %s, scores %s",
		t.placeOf(c.file, c.line), id, t.processes.list[c.process], t.shards.list[c.shard], c.fence, c.flight,
		c.start, c.end, c.outcome, formatScores(t.payloadsOf(c)))
}

// formatScores lists scores, of many only the first and the last.
func formatScores(payloads []payload) string {
	var b strings.Builder
	for i, p := range payloads {
		if i == 5 && len(payloads) > 7 {
			fmt.Fprintf(&b, " … (%d in all, last %v)", len(payloads), payloads[len(payloads)-1].score)
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, p.score)
	}
	return b.String()
}

func splitKey(key string) (queue, id string) {
	queue, id, _ = strings.Cut(key, "\x00")
	return queue, id
}
