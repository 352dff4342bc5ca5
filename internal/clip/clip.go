// Package clip shortens texts of others, which may have any length.
package clip

import "unicode/utf8"

// Text shortens text to at most n bytes, between two characters.
func Text(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
