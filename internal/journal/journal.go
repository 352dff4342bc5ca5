// Package journal is the form in which a shard remembers how runs ended: a Redis stream, with one entry per
// script that has something to tell. A run is one handler call for one id.
//
// An entry has three fields: i, the instance whose runs these were; n, how many there are; l, their lines in the
// order in which they ended. A line is
//
//	<verdict> <retry count> <due> <popped> <began> <took> <lengths of id, error, log, result>\n
//
// and then these four, one after the other. Verdict is one letter. Times are us: due since 1970, popped since
// due, began since popped; began and took are -1 where nobody knows them. The length of a result is one more than
// that, and 0 if there is none. A line with the verdict l has a log alone, of the run that follows it: what was noted while it ran,
// which Redis knew and the node did not. lua/lib/journal.lua writes the entries.
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

// Verdict is how a run ended.
type Verdict string

// The verdicts.
const (
	Done      Verdict = "done"
	Failed    Verdict = "failed"    // a retry was spent
	Exhausted Verdict = "exhausted" // it failed, and no retry was left, or it asked to be buried
	Crashed   Verdict = "crashed"   // its worker died while the id ran alone
	Postponed Verdict = "postponed" // its handler asked for a delay; no retry was spent
	Cancelled Verdict = "cancelled" // a person ended it
	Expired   Verdict = "expired"   // its time was over before a handler had it
)

// Verdicts are all of them.
func Verdicts() []Verdict {
	return []Verdict{Done, Failed, Exhausted, Crashed, Postponed, Cancelled, Expired}
}

// Letter is what stands for a verdict in a line, "" if it is none.
func (v Verdict) Letter() string {
	if !slices.Contains(Verdicts(), v) {
		return ""
	}
	return string(v.letter())
}

func (v Verdict) letter() byte {
	switch v {
	case Cancelled:
		return 'x' // c is that of crashed
	case Expired:
		return 'o' // out of time: e is that of exhausted
	}
	return v[0]
}

const logOnly = 'l'

func verdict(letter byte) Verdict {
	for _, v := range Verdicts() {
		if v.letter() == letter {
			return v
		}
	}
	return ""
}

// Limits of what a line keeps, in bytes. What is longer is cut, but for results: part of one may be of no use.
const (
	MaxError  = 200
	MaxLog    = 1 << 10
	MaxResult = 1 << 10
)

// Ran is when a run was, and what was noted.
type Ran struct {
	Due    time.Time     // when the job was due
	Popped time.Time     // when its shard's owner took it, by Redis's clock
	Began  time.Time     // when its handler was called; zero where nobody knows, as of crashes
	Took   time.Duration // how long the call was; 0 where nobody knows
	Log    string        // what its handler noted, the last kilobyte
}

// Run is one handler call for one id.
type Run struct {
	ID         string
	Verdict    Verdict
	RetryCount int // of the job after the run: one less than its failures in a row, so -1 before the first one
	Ran
	Error  string // the line of the error that says most
	Result []byte // its handler's answer, as it is stored; nil: none, or more than MaxResult

	// What the reader adds.
	Shard    int
	Instance string
	Ended    time.Time // of a crash: when the shard was seized
}

// Attempt is the number of the run since the job was last done, from 1.
func (r *Run) Attempt() int {
	if r.Verdict == Failed || r.Verdict == Exhausted {
		return r.RetryCount + 1
	}
	return r.RetryCount + 2
}

// Append adds the run's line.
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
	b = append(b, r.Verdict.letter())
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

// cutText is the beginning of a text, in whole characters.
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

// CutLog is the end of a log, from the beginning of a line if there is one.
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

// JoinLog adds a line to a log, unless that is its last one: a note may come twice. The last MaxLog bytes stay.
func JoinLog(log, line string) string {
	switch {
	case line == "" || log == line || strings.HasSuffix(log, "\n"+line):
		return log
	case log == "":
		return CutLog(line)
	}
	return CutLog(log + "\n" + line)
}

// ErrEntry is an entry of the journal that cannot be read.
var ErrEntry = errors.New("unreadable entry of the journal")

// Parse reads the lines of an entry. ended is the time of the entry, which is that of runs that do not say.
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
		r := Run{ID: parts[0], Verdict: verdict(words[0][0]), RetryCount: int(n[1]), Error: strings.ToValidUTF8(parts[1], ""), Instance: instance, Ended: ended}
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

// Block are lines of runs, by the places of their ids in a list of ids.
type Block struct {
	text []byte
	ends []int // by place: where its line ends; a place without a line ends where the one before it does
}

// Add adds the line of the id at the next place, nil if it has none.
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

// Len is the number of places.
func (b *Block) Len() int { return len(b.ends) }

// Empty reports whether no place has a line.
func (b *Block) Empty() bool { return len(b.text) == 0 }

// Text are the lines, Lines how many there are.
func (b *Block) Text() string { return string(b.text) }

// Lines is how many places have a line.
func (b *Block) Lines() (n int) {
	for i, end := range b.ends {
		if end > b.before(i) {
			n++
		}
	}
	return n
}

// Weight is how many bytes the line at a place has; 0 also where there is no place.
func (b *Block) Weight(i int) int {
	if i >= len(b.ends) {
		return 0
	}
	return b.ends[i] - b.before(i)
}

func (b *Block) before(i int) int {
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
	at := b.before(i)
	first = Block{text: b.text[:at:at], ends: b.ends[:i:i]}
	rest = Block{text: b.text[at:], ends: make([]int, len(b.ends)-i)}
	for k := range rest.ends {
		rest.ends[k] = b.ends[i+k] - at
	}
	return first, rest
}
