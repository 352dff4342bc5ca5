package terminal

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

// EscapeText escapes, as \x1b or \u202e, the characters that a terminal would not print or would obey.
func EscapeText(text string) string { return EscapeExcept(text, "") }

// EscapeExcept escapes as EscapeText does, except the characters of keep.
func EscapeExcept(text, keep string) string {
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

// escapeArgs escapes every text among the arguments of a format.
func escapeArgs(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		if err, ok := arg.(error); ok {
			safe[i] = EscapeText(err.Error())
		} else if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
			safe[i] = EscapeText(v.String())
		}
	}
	return safe
}

// Fprintf prints a format whose texts come from outside, and escapes them.
func Fprintf(w io.Writer, format string, args ...any) (err error) {
	_, err = fmt.Fprintf(w, format, escapeArgs(args)...)
	return err
}

// Printf prints to standard output as [Fprintf] does.
func (s *Streams) Printf(format string, args ...any) error { return Fprintf(s.Out, format, args...) }

// EscapingWriter writes JSON with the escapes of [EscapeJSON].
type EscapingWriter struct{ io.Writer }

// Write implements io.Writer.
func (w EscapingWriter) Write(text []byte) (int, error) {
	if _, err := w.Writer.Write(EscapeJSON(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// WriteJSON writes the answer of a node, and escapes characters that a terminal might obey, because a terminal may be behind
// a pipe. Such characters occur only in strings.
func WriteJSON(to *os.File, answer []byte) error {
	_, err := to.Write(EscapeJSON(answer))
	return err
}

// EscapeJSON escapes the characters of JSON that cannot be printed.
func EscapeJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
		return text
	}
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
