package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/wire"
)

// Problem is an error in the form of RFC 9457. Its type is always about:blank. The status is the kind of the
// error, and the detail says how to correct the request.
type Problem struct {
	Type    string `json:"type" enum:"about:blank"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail"`
	Field   string `json:"field,omitempty"`   // the wrong field or query parameter
	Line    int    `json:"line,omitempty"`    // of the body, from 1
	Column  int    `json:"column,omitempty"`  // byte of the line, from 1
	Changed *int   `json:"changed,omitempty"` // number of jobs that a bulk action changed before it failed
	Next    string `json:"next,omitempty"`    // cursor to continue that action
}

func (p *Problem) Error() string {
	text := cmp.Or(p.Detail, p.Title)
	if p.Changed != nil && *p.Changed > 0 {
		text += fmt.Sprintf(" (%d were changed before)", *p.Changed)
	}
	return text
}

// NewProblem returns a problem with this status.
func NewProblem(status int, format string, args ...any) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// badField returns a problem with a query parameter or a field.
func badField(field, format string, args ...any) *Problem {
	p := NewProblem(http.StatusBadRequest, "%s: %s", field, fmt.Sprintf(format, args...))
	p.Field = field
	return p
}

// partialError is an error of an action on jobs, with the number of jobs that were changed before.
type partialError struct {
	changed int
	next    string
	err     error
}

func (e *partialError) Error() string { return e.err.Error() }
func (e *partialError) Unwrap() error { return e.err }

// ProblemOf returns the problem that answers an error. Errors that it does not know become status 500, and say
// that the server is at fault. Errors that pass by themselves become 503.
func ProblemOf(err error) *Problem {
	p := problemOfError(err)
	var part *partialError
	if errors.As(err, &part) {
		p.Changed, p.Next = &part.changed, part.next
	}
	return p
}

func problemOfError(err error) *Problem {
	var own *Problem
	var malformed *wire.Error
	var wrong *recurring.FieldError
	var field *actions.FieldError
	switch {
	case errors.As(err, &own):
		copied := *own
		return &copied
	case errors.As(err, &malformed):
		p := NewProblem(http.StatusBadRequest, "%s", malformed.Error())
		p.Field, p.Line, p.Column = malformed.Field, malformed.Line, malformed.Column
		return p
	case errors.As(err, &field):
		p := NewProblem(http.StatusBadRequest, "%v", field)
		p.Field = field.Field
		return p
	case errors.As(err, &wrong):
		p := NewProblem(http.StatusBadRequest, "%v", err)
		p.Field = wrong.Field
		return p
	case errors.Is(err, browse.ErrQuery), errors.Is(err, recurring.ErrSpec):
		return NewProblem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, lowkiq.ErrUnknownQueue), errors.Is(err, status.ErrUnknownNode), errors.Is(err, recurring.ErrUnknown):
		return NewProblem(http.StatusNotFound, "%v", err)
	case errors.Is(err, workflow.ErrInvalid), errors.Is(err, workflow.ErrTooLarge), errors.Is(err, protocol.ErrFollowUp):
		return NewProblem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, workflow.ErrExists), errors.Is(err, workflow.ErrClosed):
		return NewProblem(http.StatusConflict, "%v", err)
	case errors.Is(err, workflow.ErrUnknown):
		return NewProblem(http.StatusNotFound, "%v", err)
	case errors.Is(err, rules.ErrValue), errors.Is(err, protocol.ErrReserved):
		return NewProblem(http.StatusBadRequest, "%v", err)
	case errors.Is(err, rules.ErrChanged):
		return NewProblem(http.StatusPreconditionFailed, "%v; read them again, and repeat the changes that are still right", err)
	case errors.Is(err, remove.ErrHandled), errors.Is(err, remove.ErrNotEmpty), errors.Is(err, remove.ErrChanged),
		errors.Is(err, recurring.ErrExists), errors.Is(err, recurring.ErrOfFile), errors.Is(err, recurring.ErrTooMany):
		return NewProblem(http.StatusConflict, "%v", err)
	case errors.Is(err, reshard.ErrSame), errors.Is(err, reshard.ErrUnderWay), errors.Is(err, reshard.ErrBusy), errors.Is(err, reshard.ErrFlipped),
		errors.Is(err, reshard.ErrNone), errors.Is(err, reshard.ErrCost):
		return NewProblem(http.StatusConflict, "%v", err)
	case errors.Is(err, status.ErrNoCluster), errors.Is(err, status.ErrNodeExists), errors.Is(err, status.ErrNotHeard),
		errors.Is(err, status.ErrNotRunning), errors.Is(err, status.ErrNoAnswer):
		return NewProblem(http.StatusConflict, "%v", err)
	case errors.Is(err, memory.ErrTooLarge):
		return NewProblem(http.StatusRequestEntityTooLarge, "%v; ask for less at once, or raise the limit", err)
	case protocol.Transient(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), IsBusy(err):
		return NewProblem(http.StatusServiceUnavailable, "%v", err)
	}
	return NewProblem(http.StatusInternalServerError, "%v", err)
}

// writeError answers with a problem. Errors that only an operator can mend are logged as well.
func (a *api) writeError(w http.ResponseWriter, r *http.Request, err error) {
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

// writeAs writes v as JSON. An error means that the client has gone, so it is not reported.
func writeAs(w http.ResponseWriter, contentType string, status int, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
