// Package suggest guesses which known name an unknown name was meant to be.
package suggest

import (
	"strconv"
	"strings"
)

// NearestName returns the name nearest to word, if fewer than the given number of letters differ, and ""
// otherwise. A name that begins with word and an underscore is near, too, as token_file is for token.
func NearestName(word string, names []string, fewer int) (nearest string) {
	for _, name := range names {
		d := editDistance(word, name)
		if strings.HasPrefix(name, word+"_") {
			d = min(d, 2)
		}
		if d < fewer {
			fewer, nearest = d, name
		}
	}
	return nearest
}

// maxListed is how many names an error lists at most.
const maxListed = 20

// List joins known names for an error. It leaves out names beyond the first 20, and says how many.
func List(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return strings.Join(names[:maxListed], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}

// Among returns the part of an error that follows an unknown name: the nearest known name, and the known names.
func Among(name string, known []string) string {
	if meant := NearestName(name, known, min(3, len(name))); meant != "" && len(known) > 1 {
		return ", did you mean " + strconv.Quote(meant) + "? (known: " + List(known) + ")"
	}
	return " (known: " + List(known) + ")"
}

// editDistance counts the letters that must be inserted, deleted or replaced (Levenshtein).
func editDistance(x, y string) int {
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(x) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(y) {
			cost := diagonal
			if x[i] != y[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}
