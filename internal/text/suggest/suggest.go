// Package suggest guesses which known name an unknown name was meant to be.
package suggest

import "strings"

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
