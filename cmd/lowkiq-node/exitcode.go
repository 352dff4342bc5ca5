package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/network/remote"
	"github.com/lowkiq/lowkiq/web"
)

const exitHelp = `Exit codes:

    0    ok
    1    partly refused, or failed while running
    2    the program has crashed
    3    Redis or the node is away, refuses or cannot serve; a port is in use
    4    check found faults
    5    a payload that was waited for was buried or deleted, or has expired
    6    a payload that was waited for has not ended yet
    64   usage or configuration, or no such queue, node, job or kind of error
    75   the node ended itself: a handler, its stop or its cluster part hung
    130  interrupted`

// exitCode returns the exit code of an error. [exit.CodeOf] does not know the answers of nodes.
func exitCode(err error) int {
	var own *exit.Error
	var answer *web.Problem
	code := exit.CodeOf(err)
	switch {
	case code != exit.Failed || errors.As(err, &own):
		return code
	case errors.As(err, &answer):
		return answerCode(answer.Status)
	case errors.Is(err, remote.ErrUnreachable):
		return exit.Unreachable
	}
	return code
}

// answerCode returns the exit code for the HTTP status of a node's answer. 4xx is the caller's mistake.
func answerCode(status int) int {
	switch {
	case status == http.StatusServiceUnavailable:
		return exit.Unreachable
	case status >= 400 && status < 500:
		return exit.Usage
	}
	return exit.Failed
}

// addAdvice adds to the error of a request to a node what the command line can do about it.
func addAdvice(err error) error {
	var answer *web.Problem
	switch explained := exit.Explain(err); {
	case explained != err:
		return explained
	case errors.Is(err, remote.ErrUnreachable):
		return fmt.Errorf("%w; --node or LOWKIQ_URL says where one is", err)
	case errors.As(err, &answer) && answer.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w; --token-file or LOWKIQ_TOKEN says which to send", err)
	}
	return err
}
