package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

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
		fmt.Fprintln(s.out, line)
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
