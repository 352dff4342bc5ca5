package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/internal/remote"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// The exit codes that scripts rely on. 2 is none of them: with it Go ends a program that panics, or
// gets a SIGABRT.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUnreachable = 3
	exitFaults      = 4
	exitBuried      = 5
	exitPending     = 6
	exitUsage       = 64 // EX_USAGE
	exitStuck       = 75 // EX_TEMPFAIL; that of an overrun, in package node, too
	exitInterrupted = 130
)

const exitHelp = `Exit codes:

    0    ok
    1    partly refused, or failed while running
    2    the program has crashed
    3    Redis or the node is unreachable, or cannot serve yet
    4    check found faults
    5    a payload that was waited for was buried or deleted, or has expired
    6    a payload that was waited for has not ended yet
    64   usage or configuration, or no such queue, node, job or kind of error
    75   the node ended itself: a handler, its stop or its cluster part hung
    130  interrupted`

// exitError is an error that knows its exit code. Without a text nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// codeOf decides the exit code.
func codeOf(err error) int {
	var exit *exitError
	var bad *config.Error
	var answer *web.Problem
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &bad):
		return exitUsage
	case errors.As(err, &answer):
		return answerCode(answer.Status)
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EACCES):
		return exitUsage
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.Is(err, remote.ErrUnreachable), queue.Transient(err):
		return exitUnreachable
	}
	return exitFailed
}

// answerCode decides by the status of a node's answer: 4xx is the caller's mistake.
func answerCode(status int) int {
	switch {
	case status == 503:
		return exitUnreachable
	case status >= 400 && status < 500:
		return exitUsage
	}
	return exitFailed
}

// advised adds to an answer of no or another node what the command line can do about it.
func advised(err error) error {
	var answer *web.Problem
	switch {
	case codeOf(err) == exitInterrupted && errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.Is(err, remote.ErrUnreachable):
		return fmt.Errorf("%w; --node or LOWKIQ_URL says where one is", err)
	case errors.As(err, &answer) && answer.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w; --token-file or LOWKIQ_TOKEN says which to send", err)
	}
	return err
}

// report prints an error, one line for each that was joined.
func report(w io.Writer, err error) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && strings.Contains(err.Error(), "\n") {
		for _, one := range joined.Unwrap() {
			report(w, one)
		}
		return
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(w, "lowkiq-node: %s\n", escaped(text, "\n\t"))
	}
}
