package browse

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/text/truncate"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// ErrorGroup describes the jobs with last errors of the same kind.
type ErrorGroup struct {
	Kind     string // see Fingerprint; use it in a Query or a bulk action, with NoKind for ""
	Jobs     int
	Payloads int
	Newest   time.Time // when the last job was blocked or buried; the latest due time of failed jobs
	Example  string    // id of the newest job
	Error    string    // error of the newest job
}

// ErrorGroups lists the errors of jobs in a state, the largest group first.
type ErrorGroups struct {
	Groups   []ErrorGroup
	Examined int  // jobs read, newest first
	All      bool // all jobs of the state were read
}

// Errors groups the jobs of a state by the kind of their last error. The state is StateFailed,
// StateRetry (failed jobs that wait for their time), StateBlocked or StateMorgue. It reads the
// newest 5,000 jobs at most, and for StateFailed 5,000 due jobs more.
func (j *Jobs) Errors(ctx context.Context, state State) (ErrorGroups, error) {
	if !slices.Contains([]State{StateFailed, StateRetry, StateBlocked, StateMorgue}, state) {
		return ErrorGroups{}, refuseQuery("errors of state %q: the state must be failed, retry, blocked or morgue", state)
	}
	lists := []State{state}
	if state == StateFailed {
		lists = []State{StateRetry, StateReady}
	}
	groups := map[string]*ErrorGroup{}
	answer := ErrorGroups{All: true}
	for _, list := range lists {
		if err := j.errorsOf(ctx, list, state == StateFailed, groups, &answer); err != nil {
			return ErrorGroups{}, err
		}
	}
	answer.Groups = sortedGroups(groups)
	return answer, nil
}

// errorsPage is how many jobs are read together. It is small because memory for all of them is
// reserved meanwhile.
const errorsPage = 250

// errorsOf adds the jobs of a list to groups. If failed is true it adds only jobs with a retry
// count.
func (j *Jobs) errorsOf(ctx context.Context, list State, failed bool, groups map[string]*ErrorGroup, answer *ErrorGroups) error {
	w := j.newWalker(Query{State: list, Range: Range{Reverse: true}}, &position{})
	for examined := 0; examined < MaxExamined/2; {
		batch, err := w.next(ctx, errorsPage)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		n, err := j.groupErrors(ctx, list, failed, batch, groups)
		if err != nil {
			return err
		}
		examined += len(batch)
		answer.Examined += n
	}
	answer.All = answer.All && w.ended()
	return nil
}

// groupErrors adds a batch to groups and returns how many jobs of it belong to the list.
func (j *Jobs) groupErrors(ctx context.Context, list State, failed bool, batch []candidate, groups map[string]*ErrorGroup) (examined int, err error) {
	scoped, end := memory.Scope(ctx)
	defer end()
	jobs, err := j.readListed(scoped, list, figuresExtent, batch)
	if err != nil {
		return 0, err
	}
	for _, job := range jobs {
		if job.State == list && (!failed || job.RetryCount >= 0 && !job.Damaged) {
			examined++
			if err := addToGroup(ctx, groups, job); err != nil {
				return 0, err
			}
		} else if !failed {
			examined++
		}
	}
	return examined, nil
}

// bytesOfKind is the memory of a group without its error, while it is collected and answered.
const bytesOfKind = 2 << 10

// addToGroup counts a job in its group.
func addToGroup(ctx context.Context, groups map[string]*ErrorGroup, job Listed) error {
	kind := Fingerprint(job.Error)
	g := groups[kind]
	if g == nil {
		if err := memory.Take(ctx, bytesOfKind+2*int64(len(job.Error))); err != nil {
			return err
		}
		g = &ErrorGroup{Kind: kind}
		groups[kind] = g
	}
	g.Jobs++
	g.Payloads += job.Count
	if g.Example == "" || job.PerformAt.After(g.Newest) {
		g.Newest, g.Example, g.Error = job.PerformAt, job.ID, job.Error
	}
	return nil
}

func sortedGroups(groups map[string]*ErrorGroup) []ErrorGroup {
	all := make([]ErrorGroup, 0, len(groups))
	for _, g := range groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(x, y ErrorGroup) int {
		return cmp.Or(y.Jobs-x.Jobs, strings.Compare(x.Kind, y.Kind))
	})
	return all
}

const (
	maxSummary = 1024 // bytes of an error's summary that determine its kind
	maxKind    = 200  // bytes of a kind
)

// NoKind selects jobs whose last error has no kind, because there is no error or it has no words. A
// space is no kind.
const NoKind = " "

// Fingerprint returns the kind of an error, which is the same for errors that differ only in
// numbers, ids and quoted text. It is their protocol.Summary with a # in place of each of these. It
// keeps three things: the status of an HTTP answer, a single digit after a letter (psycopg2), and
// the quoted name of a key or the like (KeyError: 'total'). Unprintable characters become ?,
// because people copy kinds.
func Fingerprint(message string) string {
	line := strings.Map(replaceUnprintable, strings.ToValidUTF8(truncate.Text(protocol.Summary(message), maxSummary), "?"))
	var kind strings.Builder
	for i := 0; i < len(line); {
		switch n := quotedLength(line, i); {
		case n > 0 && namesKey(line[:i], line[i+1:i+n-1]):
			kind.WriteString(line[i : i+n])
			i += n
		case n > 0:
			kind.WriteByte('#')
			i += n
		case statusAt(line, i):
			kind.WriteString(line[i : i+3])
			i += 3
		case isAlphanumeric(line[i]):
			i += writeWord(&kind, line[i:])
		default:
			kind.WriteByte(line[i])
			i++
		}
	}
	return truncate.Text(strings.Join(strings.Fields(kind.String()), " "), maxKind)
}

// replaceUnprintable returns ? for a character that is neither printable nor white space.
func replaceUnprintable(r rune) rune {
	if unicode.IsPrint(r) || unicode.IsSpace(r) {
		return r
	}
	return '?'
}

// quotedLength returns the length of the quoted text that begins at i, 0 if there is none. A '
// inside a word is an apostrophe.
func quotedLength(line string, i int) int {
	mark := line[i]
	if mark != '"' && mark != '`' && mark != '\'' || mark == '\'' && i > 0 && isAlphanumeric(line[i-1]) {
		return 0
	}
	for k := i + 1; k < len(line); k++ {
		switch {
		case line[k] == '\\' && mark == '"':
			k++
		case line[k] == mark:
			return k + 1 - i
		}
	}
	return 0
}

// keyWords are words before the quoted names of keys, columns and the like. Such names are parts of
// a program and not data.
var keyWords = []string{"key", "keyerror:", "attribute", "column", "field", "property", "relation", "table", "module", "named", "name", "method", "parameter", "argument", "constraint"}

// namesKey reports whether a quoted text names a key or the like. It must be a word without digits
// after one of keyWords.
func namesKey(before, name string) bool {
	for i := range len(name) {
		if c := name[i]; isDigit(c) || !isAlphanumeric(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	words := strings.Fields(before[max(0, len(before)-24):])
	return name != "" && len(words) > 0 && slices.Contains(keyWords, strings.ToLower(words[len(words)-1]))
}

// statusAt reports whether the word at i is the status of an HTTP answer, because 404 and 502 are
// different kinds of errors. It stands before the words for the status, or after HTTP, status or
// code.
func statusAt(line string, i int) bool {
	if i > 0 && isAlphanumeric(line[i-1]) || i+3 > len(line) || i+3 < len(line) && isAlphanumeric(line[i+3]) {
		return false
	}
	status, err := strconv.Atoi(line[i : i+3])
	text := http.StatusText(status)
	if err != nil || text == "" {
		return false
	}
	for _, words := range []string{text, "Client Error", "Server Error"} {
		if rest := line[i+3:]; len(rest) > len(words) && strings.EqualFold(rest[1:1+len(words)], words) {
			return true
		}
	}
	before := strings.ToLower(strings.TrimRight(line[max(0, i-16):i], " :=(#"))
	for _, word := range []string{"http", "http/1.0", "http/1.1", "http/2", "http/2.0", "status", "code", "status_code"} {
		if strings.HasSuffix(before, word) {
			return true
		}
	}
	return false
}

// writeWord writes the word at the beginning of text and returns its length. Words with digits are
// mostly numbers or ids.
func writeWord(kind *strings.Builder, text string) int {
	if startsWithUUID(text) {
		kind.WriteByte('#')
		return 36
	}
	n := 0
	for n < len(text) && isAlphanumeric(text[n]) {
		n++
	}
	word := text[:n]
	if isMachineID(word) {
		kind.WriteByte('#')
		return n
	}
	for i := range n {
		switch alone := i > 0 && !isDigit(word[i-1]) && (i+1 == n || !isDigit(word[i+1])); {
		case !isDigit(word[i]) || alone:
			kind.WriteByte(word[i])
		case i == 0 || !isDigit(word[i-1]):
			kind.WriteByte('#')
		}
	}
	return n
}

// startsWithUUID reports whether text begins with groups of 8, 4, 4, 4 and 12 hexadecimal digits.
func startsWithUUID(text string) bool {
	if len(text) < 36 || len(text) > 36 && isAlphanumeric(text[36]) {
		return false
	}
	for i := range 36 {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (text[i] == '-') || !dash && !isHex(text[i]) {
			return false
		}
	}
	return true
}

// isMachineID reports whether a word looks machine-made: it has a digit, and is long or
// hexadecimal.
func isMachineID(word string) bool {
	digits, hex := false, len(word) >= 4
	for i := range len(word) {
		digits = digits || isDigit(word[i])
		hex = hex && isHex(word[i])
	}
	return digits && (hex || len(word) >= 16 || len(word) > 2 && (word[:2] == "0x" || word[:2] == "0X"))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

func isAlphanumeric(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
