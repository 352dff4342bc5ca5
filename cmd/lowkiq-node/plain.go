package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Ids, errors and names come from users and from other hosts: none of them may speak to the
// terminal, whose escape sequences can hide text, rewrite it, or answer as if typed.

// plain writes what a terminal would not print, or would obey, as \x1b or \u202e.
func plain(text string) string { return escaped(text, "") }

// escaped is plain, but for some characters that are kept.
func escaped(text, keep string) string {
	printed := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !printed(r) }) < 0 {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case printed(r):
			out.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// plainArgs makes every text among the arguments of a format plain.
func plainArgs(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		if err, ok := arg.(error); ok {
			safe[i] = plain(err.Error())
		} else if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
			safe[i] = plain(v.String())
		}
	}
	return safe
}

// say prints a format whose texts are not ours.
func say(w io.Writer, format string, args ...any) (err error) {
	_, err = fmt.Fprintf(w, format, plainArgs(args)...)
	return err
}

// say prints to standard output; see the function of this name.
func (s *streams) say(format string, args ...any) error { return say(s.out, format, args...) }

// writeJSON writes what a node answered: to a file or a pipe as it is, to a terminal with the
// characters escaped that it might obey. These can stand in strings only.
func writeJSON(to *os.File, answer []byte) error {
	if terminal(to) {
		answer = plainJSON(answer)
	}
	_, err := to.Write(answer)
	return err
}

func plainJSON(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			out.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}
