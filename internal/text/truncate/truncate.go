// Package truncate shortens texts of any length that come from others.
package truncate

import "unicode/utf8"

// Text shortens text to at most n bytes. It does not cut a character in two.
func Text(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
