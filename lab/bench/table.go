package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

const row = "%-44s %12s %12s %10s   %-16s  %s\n"

// Table prints the report for people.
func (r *Report) Table(w io.Writer) error {
	var out strings.Builder
	what := fmt.Sprintf("%s jobs of %d bytes, %d shards", formatNumber(float64(r.Jobs)), r.PayloadBytes, r.Shards)
	if r.Only == OnlyStream && r.ByMasters == nil {
		what = fmt.Sprintf("jobs of %d bytes", r.PayloadBytes)
	}
	fmt.Fprintf(&out, "%s; medians of %d rounds; %d cores, shared with Redis %s if it runs here\n\n",
		what, r.Rounds, r.Cores, r.RedisVersion)
	switch {
	case r.ByMasters != nil:
		r.mastersTable(&out)
	case r.Only != OnlyStream:
		r.drainTable(&out)
	}
	if len(r.Stream) > 0 {
		r.streamTable(&out)
	}
	_, err := io.WriteString(w, trimLineEnds(out.String()))
	return err
}

func (r *Report) drainTable(out io.Writer) {
	fmt.Fprintf(out, row, "", "lowkiq", "floor", "of floor", "goal", "")
	floor, ratio := r.Floor.listFigures(), r.ToFloor.listFigures()
	for i, f := range r.Figures.listFigures() {
		want, verdict := r.goalVerdict(f.name)
		fmt.Fprintf(out, row, f.title, formatNumber(*f.value), floorOf(*floor[i].value), formatShare(*ratio[i].value), want, verdict)
	}
	r.idleRows(out)
	fmt.Fprintf(out, "\nAcks: %s.\nFloor: two minimal scripts (bulk insert; pop and ack 100 ids with list, hash and flight), same chunks, "+
		"same connections, no checks.\n", r.Acks)
}

// streamTable prints a line for each load.
func (r *Report) streamTable(out io.Writer) {
	if r.Only != OnlyStream {
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "%-44s", "a live stream, one node at batch 1")
	for _, f := range new(StreamFigures).listFigures() {
		fmt.Fprintf(out, " %11s", f.title)
	}
	fmt.Fprintf(out, "   %s\n", "goal")
	for i := range r.Stream {
		load := &r.Stream[i]
		fmt.Fprintf(out, "%-44s", load.title())
		var goals []string
		for _, f := range load.listFigures() {
			value := formatNumber(*f.value)
			if f.value == &load.Late && load.Late == 0 {
				value = "-" // a closed loop has no fixed times
			}
			fmt.Fprintf(out, " %11s", value)
			if want, verdict := r.goalVerdict(load.figureName(f.name)); want != "" {
				name, _, _ := strings.Cut(f.title, ",")
				goals = append(goals, fmt.Sprintf("%s %s: %s", name, want, verdict))
			}
		}
		fmt.Fprintf(out, "   %s\n", strings.Join(goals, "; "))
	}
	fmt.Fprint(out, streamNotes)
}

const streamNotes = `
Saturation: 50 goroutines push one job each, the next when that one is answered. Elsewhere jobs arrive at fixed times whatever the answers do.
Times are from when a push was due to the start of its handler; pushes began up to "late" (p99) after that. Scripts and CPU are those of Redis.
Beside slow: one handler in 1,000 takes 200 ms, the others are timed; x 4 is shard_concurrency.
`

func (r *Report) idleRows(out io.Writer) {
	commands, cpu := "-", "-"
	if r.Idle != nil {
		commands, cpu = formatNumber(r.Idle.Commands), formatNumber(r.Idle.CPUPercent)
	}
	line := func(name, title, value string) {
		want, verdict := r.goalVerdict(name)
		fmt.Fprintf(out, row, title, value, "-", "-", cmp.Or(want, "not measured"), verdict)
	}
	line(idleCommands, "1,000 idle shards, Redis commands/s per 100", commands)
	line(idleCPU, "1,000 idle shards, CPU of node, % of a core", cpu)
}

// goalVerdict returns the goal of a figure, and whether it was reached.
func (r *Report) goalVerdict(name string) (want, verdict string) {
	for _, g := range r.Goals {
		switch {
		case g.Figure != name:
		case g.Reached:
			return g.Want, "reached"
		default:
			return g.Want, "NOT REACHED"
		}
	}
	return "", ""
}

// floorOf returns a figure of the floor as text, "-" if the floor has no such figure.
func floorOf(v float64) string {
	if v == 0 {
		return "-"
	}
	return formatNumber(v)
}

// formatShare returns a ratio as a part of the floor, or as a multiple of it.
func formatShare(ratio float64) string {
	switch {
	case ratio == 0:
		return "-"
	case ratio < 2:
		return fmt.Sprintf("%.0f %%", 100*ratio)
	}
	return fmt.Sprintf("%.1f x", ratio)
}

// formatNumber returns a number with at least three digits, and a comma for thousands.
func formatNumber(v float64) string {
	switch {
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 1000 && v != math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// trimLineEnds removes spaces at the ends of lines.
func trimLineEnds(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
