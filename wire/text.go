package wire

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// decode returns the text of a checked string, given with its quotes. It reports
// false for half a surrogate pair, which no UTF-8 can carry.
func decode(raw []byte) (string, bool) {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		if raw[i] != 'u' {
			out = append(out, unescaped(raw[i]))
			continue
		}
		r := hex4(raw[i+1:])
		i += 4
		if utf16.IsSurrogate(r) {
			if !bytes.HasPrefix(raw[i+1:], []byte(`\u`)) {
				return "", false
			}
			if r = utf16.DecodeRune(r, hex4(raw[i+3:])); r == utf8.RuneError {
				return "", false
			}
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), true
}

func hex4(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // the lexer has checked them
	return rune(n)
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// compact appends a checked JSON text without the white space between its tokens.
func compact(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		start := i
		if src[i] == '"' {
			for i++; src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
			i++
			dst = append(dst, src[start:i]...)
			continue
		}
		if !isSpace(src[i]) {
			dst = append(dst, src[i])
		}
		i++
	}
	return dst
}
