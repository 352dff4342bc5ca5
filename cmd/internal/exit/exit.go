// Package exit answers one question: what exit code does a command return, and what does it say of an error?
//
// The codes are a promise to scripts. [CodeOf] returns the code of an error. An error from [Fail] or [WithCode] has its own
// code.
package exit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// The exit codes that scripts rely on. Go itself uses 2 for a program that panics or gets a SIGABRT.
const (
	OK          = 0
	Failed      = 1
	Unreachable = 3
	Faults      = 4
	Buried      = 5
	Pending     = 6
	Usage       = 64 // EX_USAGE
	Stuck       = 75 // EX_TEMPFAIL; package node uses it for an overrun
	Interrupted = 130
)

// Error is an error with its exit code. A nil Err prints nothing.
type Error struct {
	Code int
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns the error without its code.
func (e *Error) Unwrap() error { return e.Err }

// Fail formats an error with an exit code.
func Fail(code int, format string, args ...any) error {
	return WithCode(code, fmt.Errorf(format, args...))
}

// WithCode gives an error an exit code.
func WithCode(code int, err error) error { return &Error{code, err} }

// Quietly returns an error that prints nothing and has an exit code. The command has printed what is wrong.
func Quietly(code int) error { return &Error{Code: code} }

// CodeOf returns the exit code of an error.
func CodeOf(err error) int {
	var own *Error
	var bad *config.Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &own):
		return own.Code
	case errors.As(err, &bad):
		return Usage
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return Unreachable
	case errors.Is(err, syscall.EACCES):
		return Usage
	case errors.Is(err, context.Canceled):
		return Interrupted
	case protocol.Transient(err), protocol.Denied(err):
		return Unreachable
	}
	return Failed
}

// Explain returns what a person should read of an error: that the command was interrupted, or the error itself.
func Explain(err error) error {
	if CodeOf(err) == Interrupted && errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// PrintError prints an error of a program. Joined errors have a line each.
func PrintError(w io.Writer, program string, err error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && strings.Contains(err.Error(), "\n") {
		for _, part := range joined.Unwrap() {
			PrintError(w, program, part)
		}
		return
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(w, "%s: %s\n", program, terminal.EscapeExcept(text, "\n\t"))
	}
}
