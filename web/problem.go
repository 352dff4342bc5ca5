package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/wire"
)

// Problem is an error as RFC 9457 has it. Its type is always about:blank: the status
// says what kind it is, the detail what was wrong and what would be right.
type Problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail"`
	Field   string `json:"field,omitempty"`   // the field or query parameter that is wrong
	Line    int    `json:"line,omitempty"`    // of the body, from 1
	Column  int    `json:"column,omitempty"`  // byte of the line, from 1
	Changed *int   `json:"changed,omitempty"` // what a bulk action had changed before it failed
	Next    string `json:"next,omitempty"`    // cursor where that action may go on
}

func (p *Problem) Error() string {
	text := cmp.Or(p.Detail, p.Title)
	if p.Changed != nil && *p.Changed > 0 {
		text += fmt.Sprintf(" (%d were changed before)", *p.Changed)
	}
	return text
}

// NewProblem is a problem of this status.
func NewProblem(status int, format string, args ...any) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// badField is a problem with one query parameter or field.
func badField(field, format string, args ...any) *Problem {
	p := NewProblem(http.StatusBadRequest, "%s: %s", field, fmt.Sprintf(format, args...))
	p.Field = field
	return p
}

// partly is an error after a bulk action had already changed something.
type partly struct {
	changed int
	next    string
	err     error
}

func (e *partly) Error() string { return e.err.Error() }
func (e *partly) Unwrap() error { return e.err }

// ProblemOf decides how an error is answered.
func ProblemOf(err error) *Problem {
	p := classify(err)
	var part *partly
	if errors.As(err, &part) {
		p.Changed, p.Next = &part.changed, part.next
	}
	return p
}

func classify(err error) *Problem {
	var own *Problem
	var malformed *wire.Error
	var wrong *recurring.FieldError
	switch {
	case errors.As(err, &own):
		copied := *own
		return &copied
	case errors.As(err, &malformed):
		p := NewProblem(http.StatusBadRequest, "%s", malformed.Error())
		p.Field, p.Line, p.Column = malformed.Field, malformed.Line, malformed.Column
		return p
	case errors.As(err, &wrong):
		p := NewProblem(http.StatusBadRequest, "%v", err)
		p.Field = wrong.Field
		return p
	case errors.Is(err, browse.ErrQuery), errors.Is(err, recurring.ErrSpec):
		return NewProblem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, lowkiq.ErrUnknownQueue), errors.Is(err, status.ErrUnknownNode), errors.Is(err, recurring.ErrUnknown):
		return NewProblem(http.StatusNotFound, "%v", err)
	case errors.Is(err, rules.ErrValue):
		return NewProblem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, rules.ErrChanged):
		return NewProblem(http.StatusPreconditionFailed, "%v: read them again, and set what is still right", err)
	case errors.Is(err, queue.ErrHandled), errors.Is(err, queue.ErrNotEmpty), errors.Is(err, queue.ErrChanged),
		errors.Is(err, recurring.ErrExists), errors.Is(err, recurring.ErrOfFile), errors.Is(err, recurring.ErrTooMany):
		return NewProblem(http.StatusConflict, "%v", err)
	case errors.Is(err, status.ErrNoCluster), errors.Is(err, status.ErrNodeExists), errors.Is(err, status.ErrNotHeard),
		errors.Is(err, status.ErrNotRunning), errors.Is(err, status.ErrNoAnswer):
		return NewProblem(http.StatusConflict, "%v", err)
	case queue.Transient(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), Busy(err):
		return NewProblem(http.StatusServiceUnavailable, "%v", err)
	}
	return NewProblem(http.StatusInternalServerError, "%v", err)
}

// fail answers with a problem. What only an operator can mend is logged too.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := ProblemOf(err)
	switch p.Status {
	case http.StatusServiceUnavailable:
		if w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", "1")
		}
	case http.StatusInternalServerError:
		a.cfg.Log.Error("request failed", "method", r.Method, "route", r.Pattern, "err", err)
	}
	p.write(w)
}

func (p *Problem) write(w http.ResponseWriter) {
	writeAs(w, "application/problem+json", p.Status, p)
}

// writeAs writes v. An error means that the client has gone: it is not reported.
func writeAs(w http.ResponseWriter, contentType string, status int, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
