package wire

import (
	"bytes"
	"fmt"
)

// Error says what was wrong in the text that was read, and where.
type Error struct {
	Line   int    // first line is 1; a [Scanner] counts the lines of the stream
	Column int    // first byte of the line is 1
	Field  string // "score", or "[2].score" for the third element of an array; may be empty
	Reason string // what is wrong and what would be right
}

// Error returns "line 3, column 7: score: must be a number".
func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Detail())
}

// Detail returns the error without its place: "score: must be a number".
func (e *Error) Detail() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// errorAt is an Error at the byte offset pos of src.
func errorAt(src []byte, pos int, field, reason string) *Error {
	before := src[:min(pos, len(src))]
	return &Error{
		Line:   1 + bytes.Count(before, []byte{'\n'}),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Field:  field,
		Reason: reason,
	}
}
