// Package near answers which name was meant by one that is not known.
package near

import "strings"

// Name is the nearest of the names that fewer than so many letters tell from word, "" if there is
// none. A name that goes on after word and a _ is near, too: token_file for token.
func Name(word string, names []string, fewer int) (nearest string) {
	for _, name := range names {
		d := distance(word, name)
		if strings.HasPrefix(name, word+"_") {
			d = min(d, 2)
		}
		if d < fewer {
			fewer, nearest = d, name
		}
	}
	return nearest
}

// distance is how many letters must be put in, left out or replaced (Levenshtein).
func distance(x, y string) int {
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
