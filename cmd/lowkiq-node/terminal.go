package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/lowkiq/lowkiq/internal/logbuf"
)

// streams are where a command reads and writes.
type streams struct {
	in       *os.File
	out, err *os.File
	lost     error // why a table could not be written; nil: all were
}

func standardStreams() *streams { return &streams{in: os.Stdin, out: os.Stdout, err: os.Stderr} }

func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// logger writes text for people at a terminal, else JSON. Who logs does not wait for stderr.
func (s *streams) logger(level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if terminal(s.err) {
		return logbuf.Logger(slog.New(slog.NewTextHandler(s.err, opts)))
	}
	return logbuf.Logger(slog.New(slog.NewJSONHandler(s.err, opts)))
}

// readable writes durations as text does, "6s", where JSON would count nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// bold prints a line so that it stands out, on a terminal and if colours are wanted.
func (s *streams) bold(line string) string {
	if terminal(s.out) && os.Getenv("NO_COLOR") == "" {
		return "\x1b[1m" + line + "\x1b[0m"
	}
	return line
}

// Ids, errors and names come from users and from other hosts: none of them may speak to the
// terminal, whose escape sequences can hide text, rewrite it, or answer as if typed.

// plain writes what a terminal would not print, or would obey, as \x1b or \u202e.
func plain(text string) string { return escaped(text, "") }

// escaped is plain, but for some characters that are kept.
func escaped(text, keep string) string {
	printed := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !printed(r) }) < 0 {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case printed(r):
			out.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// plainArgs makes every text among the arguments of a format plain.
func plainArgs(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		if err, ok := arg.(error); ok {
			safe[i] = plain(err.Error())
		} else if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
			safe[i] = plain(v.String())
		}
	}
	return safe
}

// say prints a format whose texts are not ours.
func say(w io.Writer, format string, args ...any) (err error) {
	_, err = fmt.Fprintf(w, format, plainArgs(args)...)
	return err
}

// say prints to standard output; see the function of this name.
func (s *streams) say(format string, args ...any) error { return say(s.out, format, args...) }

// writeJSON writes what a node answered: to a file or a pipe as it is, to a terminal with the
// characters escaped that it might obey. These can stand in strings only.
func writeJSON(to *os.File, answer []byte) error {
	if terminal(to) {
		answer = plainJSON(answer)
	}
	_, err := to.Write(answer)
	return err
}

func plainJSON(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			out.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}

// Tables for people: columns of numbers stand to the right, and on a terminal no line is
// longer than it is wide.

// numeric is what stands to the right.
var numeric = regexp.MustCompile(`^(-|[0-9]+([.,][0-9]+)?|([0-9.]+(h|m|s|ms|µs))+)$`)

// table prints rows in columns below a header of words. A row is a format with a tab
// between its cells.
func (s *streams) table(header string, rows func(row func(format string, args ...any))) {
	lines := [][]string{strings.Fields(header)}
	rows(func(format string, args ...any) {
		lines = append(lines, strings.Split(fmt.Sprintf(format, plainArgs(args)...), "\t"))
	})
	for i, line := range columns(lines, width(s.out)) {
		if i == 0 {
			line = s.bold(line)
		}
		if _, err := fmt.Fprintln(s.out, line); err != nil {
			s.lost = err
			return
		}
	}
}

// width is how many characters fit into a line of f; 0 is any number.
func width(f *os.File) int {
	if !terminal(f) {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// columns lays rows out, the first of which is the header, in lines of at most so many
// characters (0 = any number). A last column of text is cut; one of numbers that does not fit is
// left out with all that follow: a number without its end would be another one.
func columns(rows [][]string, most int) []string {
	sizes, right := shapes(rows)
	fit, end := len(sizes), 0
	for i, size := range sizes {
		begin := end + 2*min(i, 1)
		if end = begin + size; most > 0 && end > most {
			if fit = i; !right[i] && begin+minText <= most {
				fit = i + 1
			}
			break
		}
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		cells := make([]string, fit)
		for i, cell := range row[:fit] {
			room := strings.Repeat(" ", sizes[i]-utf8.RuneCountInString(cell))
			if cells[i] = cell + room; right[i] {
				cells[i] = room + cell
			}
		}
		lines[n] = cut(strings.TrimRight(strings.Join(cells, "  "), " "), most)
	}
	if fit < len(sizes) {
		lines[0] = cut(lines[0]+"  …", most)
	}
	return lines
}

// count is a number and its noun, which gets an s unless it is one.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// minText is how much of a text column is worth showing.
const minText = 10

// shapes says how wide columns are, and which stand to the right.
func shapes(rows [][]string) (sizes []int, right []bool) {
	sizes, right = make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for i := range sizes {
		right[i] = slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "-" && numeric.MatchString(row[i]) })
		for n, row := range rows {
			sizes[i] = max(sizes[i], utf8.RuneCountInString(row[i]))
			right[i] = right[i] && (n == 0 || numeric.MatchString(row[i]))
		}
	}
	return sizes, right
}

// cut shortens a line to most characters, 0 for any number.
func cut(line string, most int) string {
	if most <= 0 || utf8.RuneCountInString(line) <= most {
		return line
	}
	return string([]rune(line)[:most-1]) + "…"
}

// bar shows progress on a terminal, and nothing elsewhere.
type bar struct{ shown *progressbar.ProgressBar }

// newBar counts jobs up to total; -1 if that is unknown.
func newBar(f *os.File, total int64, what string) *bar {
	if !terminal(f) {
		return &bar{}
	}
	opts := []progressbar.Option{progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionSetPredictTime(total > 0), progressbar.OptionClearOnFinish(),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("jobs")}
	return &bar{progressbar.NewOptions64(total, opts...)}
}

func (b *bar) at(n int) {
	if b.shown != nil {
		b.shown.Set(n) //nolint:errcheck // a picture
	}
}

// clear makes room for a line.
func (b *bar) clear() {
	if b.shown != nil {
		b.shown.Clear() //nolint:errcheck // a picture
	}
}
