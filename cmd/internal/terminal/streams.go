// Package terminal answers one question: how does a command talk to a person, or to a pipe?
//
// [Streams] are the input and output of a command. Ids, errors and names come from users and from other hosts. They must not
// control the terminal: escape sequences can hide text, rewrite it, or answer as if somebody had typed. So [Fprintf],
// [Streams.PrintTable] and [WriteJSON] escape them.
package terminal

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/lowkiq/lowkiq/internal/process/logbuf"
)

// Streams are the input and output of a command.
type Streams struct {
	In       *os.File
	Out, Err *os.File
	Lost     error // the error of the last table that could not be written, or nil
}

// StandardStreams returns the streams of this process.
func StandardStreams() *Streams { return &Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr} }

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// NewLogger returns a logger that writes text to a terminal, and otherwise JSON. A caller that logs does not wait for
// stderr.
func (s *Streams) NewLogger(level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: formatDuration}
	if IsTerminal(s.Err) {
		return logbuf.Logger(slog.New(slog.NewTextHandler(s.Err, opts)))
	}
	return logbuf.Logger(slog.New(slog.NewJSONHandler(EscapingWriter{s.Err}, opts)))
}

// formatDuration writes a duration as "6s". JSON would count nanoseconds.
func formatDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// PrintTable prints rows in columns below a header of words. The format of a row has a tab between its cells.
func (s *Streams) PrintTable(header string, rows func(row func(format string, args ...any))) {
	w := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(strings.Fields(header), "\t")) //nolint:errcheck // Flush returns it
	rows(func(format string, args ...any) {
		fmt.Fprintf(w, format+"\n", escapeArgs(args)...) //nolint:errcheck // Flush returns it
	})
	if err := w.Flush(); err != nil {
		s.Lost = err
	}
}

// CountNoun returns a number and its noun, with an s unless the number is 1.
func CountNoun[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Confirm asks a person. Without a terminal the answer is no. It returns an error if ctx ends first.
func Confirm(ctx context.Context, s *Streams, question string) (yes bool, err error) {
	if !IsTerminal(s.In) {
		return false, nil
	}
	fmt.Fprintf(s.Err, "%s [y/N] ", question)
	answers := make(chan bool, 1)
	go func() { // reading a terminal has no timeout; the process ends soon
		line, err := bufio.NewReader(s.In).ReadString('\n')
		answer := strings.ToLower(strings.TrimSpace(line))
		answers <- err == nil && (answer == "y" || answer == "yes")
	}()
	select {
	case yes = <-answers:
		return yes, nil
	case <-ctx.Done():
		fmt.Fprintln(s.Err)
		return false, ctx.Err()
	}
}
