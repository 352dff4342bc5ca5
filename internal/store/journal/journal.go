// Package journal encodes and decodes the journal of a shard, which keeps how runs ended. A run is a
// handler call for an id. The journal is a Redis stream with an entry per script call that ends runs.
//
// An entry has three fields: i, the instance of the runs; n, their number; l, their lines, in the order of
// their ends. A line is
//
//	<verdict> <retry count> <due> <popped> <began> <took> <lengths of id, error, log, result>\n
//
// followed by these four texts. Verdict is a letter. Times are in us: due since 1970, popped since due, began
// since popped. began and took are -1 if they are unknown. The length of a result is stored plus one, and is 0
// without a result. A line with the verdict l has only a log. It belongs to the run of the next line, whose
// node did not know these notes. lua/lib/journal.lua writes the entries.
package journal

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Verdict says how a run ended.
type Verdict string

// The verdicts.
const (
	Done      Verdict = "done"
	Failed    Verdict = "failed"    // the job will be retried
	Exhausted Verdict = "exhausted" // the job failed without a retry left, or its handler buried it
	Crashed   Verdict = "crashed"   // the worker died while the id ran alone
	Postponed Verdict = "postponed" // the handler asked for a delay
	Cancelled Verdict = "cancelled" // a person cancelled the run
	Expired   Verdict = "expired"   // the payload expired before a handler got it
)

// Verdicts returns all verdicts.
func Verdicts() []Verdict {
	return []Verdict{Done, Failed, Exhausted, Crashed, Postponed, Cancelled, Expired}
}

// Letter returns the letter of a verdict in a line, or "" for an unknown verdict.
func (v Verdict) Letter() string {
	if !slices.Contains(Verdicts(), v) {
		return ""
	}
	return string(v.letterByte())
}

func (v Verdict) letterByte() byte {
	switch v {
	case Cancelled:
		return 'x' // c stands for crashed
	case Expired:
		return 'o' // e stands for exhausted
	}
	return v[0]
}

const logOnly = 'l'

func verdictOf(letter byte) Verdict {
	for _, v := range Verdicts() {
		if v.letterByte() == letter {
			return v
		}
	}
	return ""
}

// Limits of the texts of a line, in bytes. Longer texts are cut. Longer results are left out, because a part
// of a result may be useless.
const (
	MaxError  = 200
	MaxLog    = 1 << 10
	MaxResult = 1 << 10
)

// Ran has the times and the notes of a run.
type Ran struct {
	Due    time.Time     // the due time of the job
	Popped time.Time     // the time of the pop, by Redis's clock
	Began  time.Time     // the begin of the handler's call; zero if it is unknown, as for crashes
	Took   time.Duration // the duration of the call; 0 if it is unknown
	Log    string        // the notes of the handler, the last kilobyte
}

// Run is a handler call for an id.
type Run struct {
	ID         string
	Verdict    Verdict
	RetryCount int // of the job after the run: its failures in a row, less one
	Ran
	Error  string // the most telling line of the error
	Result []byte // the stored result; nil without a result, or if it is longer than MaxResult

	// The reader adds these fields.
	Shard    int
	Instance string
	Ended    time.Time // for a crash, the time of the seizure
}

// Attempt returns the number of the run since the job was last done, from 1.
func (r *Run) Attempt() int {
	if r.Verdict == Failed || r.Verdict == Exhausted {
		return r.RetryCount + 1
	}
	return r.RetryCount + 2
}

// Append appends the line of the run.
func (r *Run) Append(b []byte) []byte {
	began, took := int64(-1), int64(-1)
	if !r.Began.IsZero() {
		began, took = max(0, r.Began.Sub(r.Popped).Microseconds()), max(0, r.Took.Microseconds())
	}
	failure, log := cutText(r.Error, MaxError), CutLog(r.Log)
	result := len(r.Result) + 1
	if r.Result == nil || len(r.Result) > MaxResult {
		result = 0
	}
	b = append(b, r.Verdict.letterByte())
	for _, n := range [...]int64{int64(r.RetryCount), r.Due.UnixMicro(), r.Popped.Sub(r.Due).Microseconds(), began, took,
		int64(len(r.ID)), int64(len(failure)), int64(len(log)), int64(result)} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	b = append(b, '\n')
	b = append(append(append(b, r.ID...), failure...), log...)
	if result > 0 {
		b = append(b, r.Result...)
	}
	return b
}

// cutText returns the beginning of a text, in whole characters.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most]
	for i := 1; i < utf8.UTFMax && i < len(text); i++ {
		if last := text[len(text)-i]; utf8.RuneStart(last) {
			if !utf8.FullRuneInString(text[len(text)-i:]) {
				text = text[:len(text)-i]
			}
			break
		}
	}
	return text
}

// CutLog returns the last MaxLog bytes of a log, from the beginning of a line if possible.
func CutLog(log string) string {
	if len(log) <= MaxLog {
		return log
	}
	whole := log[len(log)-MaxLog-1] == '\n'
	log = log[len(log)-MaxLog:]
	if _, rest, ok := strings.Cut(log, "\n"); ok && !whole {
		return rest
	}
	return log
}

// JoinLog appends a line to a log, unless it is the last line already, because a note may come twice. The last
// MaxLog bytes stay.
func JoinLog(log, line string) string {
	switch {
	case line == "" || log == line || strings.HasSuffix(log, "\n"+line):
		return log
	case log == "":
		return CutLog(line)
	}
	return CutLog(log + "\n" + line)
}

// ErrEntry means that an entry of the journal cannot be read.
var ErrEntry = errors.New("unreadable entry of the journal")

// Parse parses the lines of an entry. ended is the time of the entry. Runs without a time of their own get it.
func Parse(lines, instance string, ended time.Time) (runs []Run, err error) {
	log := ""
	for lines != "" {
		head, rest, ok := strings.Cut(lines, "\n")
		words := strings.Split(head, " ")
		if !ok || len(words) != 10 || len(words[0]) != 1 {
			return runs, fmt.Errorf("%w: %.60q", ErrEntry, lines)
		}
		var n [10]int64
		for i := 1; i < 10; i++ {
			if n[i], err = strconv.ParseInt(words[i], 10, 64); err != nil {
				return runs, fmt.Errorf("%w: %.60q", ErrEntry, lines)
			}
		}
		var parts [4]string
		for i := range parts {
			size := n[6+i]
			if i == 3 && size > 0 {
				size--
			}
			if size < 0 || size > int64(len(rest)) {
				return runs, fmt.Errorf("%w: %.60q", ErrEntry, lines)
			}
			parts[i], rest = rest[:size], rest[size:]
		}
		lines = rest
		if words[0][0] == logOnly {
			log = JoinLog(log, parts[2])
			continue
		}
		r := Run{ID: parts[0], Verdict: verdictOf(words[0][0]), RetryCount: int(n[1]), Error: strings.ToValidUTF8(parts[1], ""), Instance: instance, Ended: ended}
		r.Due, r.Log = time.UnixMicro(n[2]), strings.ToValidUTF8(JoinLog(log, parts[2]), "")
		log = ""
		if r.Verdict == "" {
			return runs, fmt.Errorf("%w: verdict %q", ErrEntry, words[0])
		}
		r.Popped = r.Due.Add(time.Duration(n[3]) * time.Microsecond)
		if n[4] >= 0 {
			r.Began = r.Popped.Add(time.Duration(n[4]) * time.Microsecond)
			r.Took = time.Duration(n[5]) * time.Microsecond
			r.Ended = r.Began.Add(r.Took)
		}
		if n[9] > 0 {
			r.Result = []byte(parts[3])
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// Block has the lines of runs, at the places of their ids in a list of ids.
type Block struct {
	text []byte
	ends []int // the end of each place's line; a place without a line ends where the place before it ends
}

// Add adds the line of the id at the next place. nil adds a place without a line.
func (b *Block) Add(r *Run) {
	if r != nil {
		b.text = r.Append(b.text)
	}
	b.ends = append(b.ends, len(b.text))
}

// Skip adds places without a line.
func (b *Block) Skip(n int) {
	for range n {
		b.ends = append(b.ends, len(b.text))
	}
}

// Join adds the places of another block.
func (b *Block) Join(more Block) {
	for _, end := range more.ends {
		b.ends = append(b.ends, len(b.text)+end)
	}
	b.text = append(b.text, more.text...)
}

// Len returns the number of places.
func (b *Block) Len() int { return len(b.ends) }

// Empty reports whether no place has a line.
func (b *Block) Empty() bool { return len(b.text) == 0 }

// Text returns the lines.
func (b *Block) Text() string { return string(b.text) }

// Lines returns the number of places with a line.
func (b *Block) Lines() (n int) {
	for i, end := range b.ends {
		if end > b.offsetOf(i) {
			n++
		}
	}
	return n
}

// Weight returns the length of the line at a place, or 0 if there is no such place.
func (b *Block) Weight(i int) int {
	if i >= len(b.ends) {
		return 0
	}
	return b.ends[i] - b.offsetOf(i)
}

func (b *Block) offsetOf(i int) int {
	if i == 0 {
		return 0
	}
	return b.ends[i-1]
}

// Cut splits the block before a place.
func (b *Block) Cut(i int) (first, rest Block) {
	if i >= len(b.ends) {
		return *b, Block{}
	}
	at := b.offsetOf(i)
	first = Block{text: b.text[:at:at], ends: b.ends[:i:i]}
	rest = Block{text: b.text[at:], ends: make([]int, len(b.ends)-i)}
	for k := range rest.ends {
		rest.ends[k] = b.ends[i+k] - at
	}
	return first, rest
}
