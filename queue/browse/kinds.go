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

	"github.com/lowkiq/lowkiq/internal/clip"
	"github.com/lowkiq/lowkiq/queue"
)

// ErrorGroup is the jobs whose last errors are of one kind.
type ErrorGroup struct {
	Kind     string // see Fingerprint; a Query and a bulk action take it, NoKind for ""
	Jobs     int
	Payloads int
	Newest   time.Time // of blocked and buried jobs: when the last one was; of failed ones: the latest due time
	Example  string    // id of the newest
	Error    string    // its error
}

// ErrorGroups are the errors of a state, most jobs first.
type ErrorGroups struct {
	Groups   []ErrorGroup
	Examined int  // jobs looked at, the newest ones
	All      bool // there are no others
}

// Errors groups failed (StateFailed; those of them that wait for their time are StateRetry), blocked (StateBlocked) or buried (StateMorgue)
// jobs by the kind of their last error. It looks at the newest 5,000 jobs at most; of those that
// are due, failed or not, at 5,000 more.
func (j *Jobs) Errors(ctx context.Context, state State) (ErrorGroups, error) {
	if !slices.Contains([]State{StateFailed, StateRetry, StateBlocked, StateMorgue}, state) {
		return ErrorGroups{}, refuse("errors of state %q: want failed, retry, blocked or morgue", state)
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

// errorsOf adds the jobs of one list; failed: those alone that have a retry count.
func (j *Jobs) errorsOf(ctx context.Context, list State, failed bool, groups map[string]*ErrorGroup, answer *ErrorGroups) error {
	w := j.walk(Query{State: list, Range: Range{Reverse: true}}, &position{})
	for examined := 0; examined < MaxExamined/2; {
		batch, err := w.next(ctx, maxPage)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			break
		}
		jobs, err := j.show(ctx, list, 0, batch)
		if err != nil {
			return err
		}
		examined += len(batch)
		for _, job := range jobs {
			if job.State == list && (!failed || job.RetryCount >= 0 && !job.Damaged) {
				answer.Examined++
				group(groups, job)
			} else if !failed {
				answer.Examined++
			}
		}
	}
	answer.All = answer.All && w.ended()
	return nil
}

// group counts a job.
func group(groups map[string]*ErrorGroup, job Listed) {
	kind := Fingerprint(job.Error)
	g := groups[kind]
	if g == nil {
		g = &ErrorGroup{Kind: kind}
		groups[kind] = g
	}
	g.Jobs++
	g.Payloads += job.Count
	if g.Example == "" || job.PerformAt.After(g.Newest) {
		g.Newest, g.Example, g.Error = job.PerformAt, job.ID, job.Error
	}
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
	kindReads = 1024 // bytes of an error's summary that make its kind
	kindBytes = 200  // longest kind, bytes
)

// NoKind asks for jobs whose last error has no kind: there is none, or it has no words. No kind
// is a space.
const NoKind = " "

// Fingerprint is what errors that differ in numbers, ids and quoted text have in common: their
// queue.Summary with a # for each of them. The status of an HTTP answer is kept. A ? stands for
// what is not printed, as people copy kinds.
func Fingerprint(message string) string {
	line := strings.Map(printed, strings.ToValidUTF8(clip.Text(queue.Summary(message), kindReads), "?"))
	var kind strings.Builder
	for i := 0; i < len(line); {
		switch n := quoted(line, i); {
		case n > 0:
			kind.WriteByte('#')
			i += n
		case statusAt(line, i):
			kind.WriteString(line[i : i+3])
			i += 3
		case alphanumeric(line[i]):
			i += writeWord(&kind, line[i:])
		default:
			kind.WriteByte(line[i])
			i++
		}
	}
	return clip.Text(strings.Join(strings.Fields(kind.String()), " "), kindBytes)
}

// printed is a character that is printed or white space as it is, a ? for any other.
func printed(r rune) rune {
	if unicode.IsPrint(r) || unicode.IsSpace(r) {
		return r
	}
	return '?'
}

// quoted is the length of the quoted text that begins at i, 0 if none does. A ' inside of
// a word is an apostrophe.
func quoted(line string, i int) int {
	mark := line[i]
	if mark != '"' && mark != '`' && mark != '\'' || mark == '\'' && i > 0 && alphanumeric(line[i-1]) {
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

// statusAt reports whether the word at i is the status of an HTTP answer: 404 and 502 are two
// kinds of trouble. It stands before the words for it, or behind HTTP, status or code.
func statusAt(line string, i int) bool {
	if i > 0 && alphanumeric(line[i-1]) || i+3 > len(line) || i+3 < len(line) && alphanumeric(line[i+3]) {
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

// writeWord writes the word that text begins with and returns its length. Words with digits are
// numbers, or ids more often than not.
func writeWord(kind *strings.Builder, text string) int {
	if uuid(text) {
		kind.WriteByte('#')
		return 36
	}
	n := 0
	for n < len(text) && alphanumeric(text[n]) {
		n++
	}
	word := text[:n]
	if isID(word) {
		kind.WriteByte('#')
		return n
	}
	for i := range n {
		if !digit(word[i]) {
			kind.WriteByte(word[i])
		} else if i == 0 || !digit(word[i-1]) {
			kind.WriteByte('#')
		}
	}
	return n
}

// uuid reports whether text begins with groups of 8, 4, 4, 4 and 12 hexadecimal digits.
func uuid(text string) bool {
	if len(text) < 36 || len(text) > 36 && alphanumeric(text[36]) {
		return false
	}
	for i := range 36 {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (text[i] == '-') || !dash && !hexadecimal(text[i]) {
			return false
		}
	}
	return true
}

// isID reports whether a word looks made by a machine: with a digit, and long or hexadecimal.
func isID(word string) bool {
	digits, hex := false, len(word) >= 4
	for i := range len(word) {
		digits = digits || digit(word[i])
		hex = hex && hexadecimal(word[i])
	}
	return digits && (hex || len(word) >= 16 || len(word) > 2 && (word[:2] == "0x" || word[:2] == "0X"))
}

func digit(c byte) bool       { return c >= '0' && c <= '9' }
func hexadecimal(c byte) bool { return digit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

func alphanumeric(c byte) bool {
	return digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
