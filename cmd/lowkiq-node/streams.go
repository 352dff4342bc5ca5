package main

import (
	"log/slog"
	"os"

	"golang.org/x/term"
)

// streams are where a command reads and writes.
type streams struct {
	in       *os.File
	out, err *os.File
}

func standardStreams() *streams { return &streams{in: os.Stdin, out: os.Stdout, err: os.Stderr} }

func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// logger writes text for people at a terminal, else JSON.
func (s *streams) logger(level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if terminal(s.err) {
		return slog.New(slog.NewTextHandler(s.err, opts))
	}
	return slog.New(slog.NewJSONHandler(s.err, opts))
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
