package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Picture is the state of the demo.
type Picture struct {
	Handled   int // payloads
	PerSecond float64
	Lag       float64 // seconds
	Nodes     []NodePicture
	Unowned   int // shards
	Now       string
}

// NodePicture is the state of a node.
type NodePicture struct {
	Name   string
	State  string // "" if it works
	Shards int
	Leads  bool
}

// Screen shows the lines and pictures of a demo: in place on a terminal, otherwise as lines.
type Screen struct {
	Out io.Writer
	// Columns returns the width of the terminal. nil means that there is no terminal.
	Columns func() int

	drawn int // lines of the picture on the terminal
	last  Picture
	at    time.Time
	told  int // handled payloads of the last printed line
}

// Say prints a line that stays.
func (s *Screen) Say(format string, args ...any) {
	s.Clear()
	fmt.Fprintf(s.Out, format+"\n", args...)
	if len(s.last.Nodes) > 0 {
		s.draw()
	}
}

// Show replaces the last picture by p. Without a terminal it prints a line for every tenth of the stream.
func (s *Screen) Show(p Picture) {
	s.last = p
	switch {
	case s.Columns != nil && time.Since(s.at) >= 90*time.Millisecond:
		s.draw()
	case s.Columns == nil && p.Handled >= s.told+Payloads/10:
		s.told = p.Handled
		fmt.Fprintln(s.Out, p.renderLine())
	}
}

// Clear removes the picture.
func (s *Screen) Clear() {
	if s.drawn > 0 {
		fmt.Fprintf(s.Out, "\x1b[%dA\r\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// draw replaces the drawn picture with the last picture. Without a terminal it draws nothing.
func (s *Screen) draw() {
	if s.Columns == nil {
		return
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", s.drawn)
	}
	lines := s.last.renderLines()
	for _, line := range lines {
		// A wrapped line could not be replaced.
		if most := s.Columns() - 1; most > 0 && len(line) > most {
			line = line[:most]
		}
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	io.WriteString(s.Out, b.String()) //nolint:errcheck // a picture
	s.drawn, s.at = len(lines), time.Now()
}

// renderLines returns the picture for a terminal, in ASCII.
func (p Picture) renderLines() []string {
	lines := []string{""}
	row := func(name, shards int, label, note string) {
		lines = append(lines, fmt.Sprintf("  %-*s  %-*s  %2d shards  %s", name, label, queueShards, strings.Repeat("#", max(0, shards)), shards, note))
	}
	for _, n := range p.Nodes {
		note := n.State
		if n.Leads {
			note = strings.TrimSpace(note + " leads")
		}
		row(6, n.Shards, n.Name, note)
	}
	row(6, p.Unowned, "nobody", "")
	done := 30 * p.Handled / Payloads
	return append(lines, "",
		fmt.Sprintf("  [%s%s] %5d of %d   %4.0f jobs/s   lag %.1f s", strings.Repeat("=", done), strings.Repeat(" ", 30-done), p.Handled,
			Payloads, p.PerSecond, p.Lag),
		"  now: "+p.Now)
}

// renderLine returns the picture as a line.
func (p Picture) renderLine() string {
	var shares []string
	for _, n := range p.Nodes {
		if n.State == "" || n.Shards > 0 {
			shares = append(shares, fmt.Sprintf("%s %d", n.Name, n.Shards))
		}
	}
	return fmt.Sprintf("handled %5d of %d (%d %%), %.0f jobs/s, lag %.1f s; shards: %s",
		p.Handled, Payloads, 100*p.Handled/Payloads, p.PerSecond, p.Lag, strings.Join(shares, ", "))
}

// rate measures how fast a counter grew in the last seconds.
type rate struct{ samples []sample }

type sample struct {
	at time.Time
	n  int
}

const rateOver = 2 * time.Second

func (r *rate) add(at time.Time, n int) {
	r.samples = append(r.samples, sample{at, n})
	for at.Sub(r.samples[0].at) > rateOver {
		r.samples = r.samples[1:]
	}
}

func (r *rate) perSecond() float64 {
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	if last.at.Equal(first.at) {
		return 0
	}
	return float64(last.n-first.n) / last.at.Sub(first.at).Seconds()
}
