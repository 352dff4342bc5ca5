package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
)

// answer has the fields of a handler's answer.
type answer struct {
	ok     *bool
	reason *string
	failed lowkiq.Failed
	said   map[string]lowkiq.Answered
	flight *int64
	after  *int64   // retry_after, seconds
	limit  *string  // prefix of the group to postpone
	most   int      // maximum number of ids in failed and said: those of the batch, and an unknown id
	fields []string // names of the fields read so far
}

// ParseAnswer parses a handler's answer to batch, and returns what a Go handler would return: nil if all
// jobs are done, [lowkiq.Failed] if some jobs have failed or are to be buried, [lowkiq.Postpone] or
// [lowkiq.Throttle] if all jobs are to come later, else the error of the whole batch. It passes the results,
// states and follow-ups of jobs that are done to [lowkiq.Batch.Answer].
//
// An [*Error] means that text is not an answer. An answer that names an id which is not in the batch fails
// the whole batch, because the handler may have mixed up its ids. A result or state that is too long
// fails its job.
func ParseAnswer(text []byte, batch *lowkiq.Batch) error {
	if string(text) == `{"ok":true}` {
		return nil
	}
	d := decoder{lexer: lexer{src: text}}
	a, err := d.decodeAnswer(len(batch.Jobs) + 1)
	if err != nil {
		return d.locateFault(err)
	}
	if a.flight != nil && *a.flight != batch.Flight {
		return errorAt(text, 0, "flight", fmt.Sprintf("is %d, but the batch has %d: this answers another batch", *a.flight, batch.Flight))
	}
	switch {
	case a.after != nil || a.limit != nil:
		return a.postponeAnswer(text)
	case a.ok != nil && a.failed != nil:
		return errorAt(text, 0, "", `answer has both "ok" and "failed" or "bury", want one of them`)
	case a.failed != nil && a.reason != nil:
		return errorAt(text, 0, "error", `given beside "failed" or "bury"; each id has its own, and a batch that failed as a whole is {"ok":false,"error":"..."}`)
	case a.failed != nil:
		return a.perID(batch)
	case a.ok == nil:
		return errorAt(text, 0, "", `answer has neither "ok" nor "failed" nor "bury"`)
	case *a.ok && a.reason != nil:
		return errorAt(text, 0, "error", `given although "ok" is true`)
	case *a.ok && a.said == nil:
		return nil
	case *a.ok:
		return a.perID(batch)
	case a.reason == nil || *a.reason == "":
		return errors.New("handler answered ok: false, without an error")
	}
	return errors.New(*a.reason)
}

// The bounds of retry_after, and of a header of that name.
const (
	minRetryAfter = time.Second    // a handler that answers 0 is not called again without a pause
	maxRetryAfter = 24 * time.Hour // a handler cannot postpone a job for longer
)

// RetryAfter returns the delay of a batch whose handler has asked for a delay.
func RetryAfter(asked time.Duration) time.Duration {
	return min(max(asked, minRetryAfter), maxRetryAfter)
}

// postponeAnswer returns the answer that postpones the batch.
func (a *answer) postponeAnswer(text []byte) error {
	const want = `want {"ok":false,"retry_after":30}, with "limit":"acme:" if all of a group is to wait`
	switch {
	case a.after == nil:
		return errorAt(text, 0, "limit", "given without \"retry_after\"; "+want)
	case a.ok == nil || *a.ok || a.failed != nil:
		return errorAt(text, 0, "retry_after", "given without \"ok\":false, or beside \"failed\" or \"bury\"; "+want)
	}
	after := RetryAfter(time.Duration(min(*a.after, int64(maxRetryAfter/time.Second))) * time.Second)
	if a.limit != nil {
		return lowkiq.Throttle{Prefix: *a.limit, For: after}
	}
	reason := "its handler answered retry_after"
	if a.reason != nil && *a.reason != "" {
		reason = *a.reason
	}
	return lowkiq.Postpone{After: after, Reason: reason}
}

// perID returns the answer per id, after a check that all ids are in the batch. It passes results and states
// of jobs that are done to the batch.
func (a *answer) perID(batch *lowkiq.Batch) error {
	if id, ok := unknownID(batch, a.failed); ok {
		return fmt.Errorf("handler named %.600q as failed, which is not in the batch: all of it counts as failed", id)
	}
	if id, ok := unknownID(batch, a.said); ok {
		return fmt.Errorf("handler answered about %.600q, which is not in the batch: all of it counts as failed", id)
	}
	failed := a.failed
	for id, one := range a.said {
		if err := tooLong(one); err != nil && failed[id] == nil {
			if failed == nil {
				failed = lowkiq.Failed{}
			}
			failed[id] = err
		}
	}
	for id, one := range a.said {
		if failed[id] != nil {
			continue
		}
		answer := batch.Answer(id)
		if one.Result != nil {
			answer.Result(one.Result)
		}
		if one.Stated {
			answer.State(one.State)
		}
		for _, push := range one.Then {
			answer.Then(push.Queue, push.Push)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}

// unknownID returns an id that is named and not in the batch.
func unknownID[T any](batch *lowkiq.Batch, named map[string]T) (id string, ok bool) {
	known := 0
	for i := range batch.Jobs {
		if _, ok := named[batch.Jobs[i].ID]; ok {
			known++
		}
	}
	if known == len(named) {
		return "", false
	}
	ids := make(map[string]bool, len(batch.Jobs))
	for i := range batch.Jobs {
		ids[batch.Jobs[i].ID] = true
	}
	for id := range named {
		if !ids[id] {
			return id, true
		}
	}
	return "", false // the batch named an id twice
}

func (d *decoder) decodeAnswer(most int) (a answer, err *fault) {
	a.most = most
	if d.skipSpace(); d.peek() != '{' {
		return a, d.unexpected(`an answer such as {"ok":true}`)
	}
	err = d.walkObject(0, func(key []byte) *fault {
		at := d.pos
		d.field = string(key[1 : len(key)-1])
		if err := d.decodeAnswerField(key, &a); err != nil {
			err.pos = max(err.pos, at)
			return err
		}
		d.field = ""
		return nil
	})
	if err != nil {
		return a, err
	}
	if d.skipSpace(); d.pos < len(d.src) {
		return a, d.unexpected("the end after the answer")
	}
	return a, nil
}

func (d *decoder) decodeAnswerField(key []byte, a *answer) *fault {
	if slices.Contains(a.fields, d.field) {
		return &fault{reason: "given twice"}
	}
	a.fields = append(a.fields, d.field)
	switch string(key) {
	case `"ok"`:
		return d.decodeBool(&a.ok)
	case `"error"`:
		reason, err := d.decodeText()
		a.reason = &reason
		return err
	case `"flight"`:
		return d.decodeInteger(&a.flight, "the number that the batch has")
	case `"retry_after"`:
		if err := d.decodeInteger(&a.after, "whole seconds, as in 30"); err != nil {
			return err
		}
		if *a.after < 0 {
			return &fault{reason: "must be 0 or more seconds"}
		}
		return nil
	case `"limit"`:
		group, err := d.decodeText()
		a.limit = &group
		return err
	case `"failed"`:
		return d.decodeFailures(a, d.decodeKey, newFailure)
	case `"failed_base64"`:
		return d.decodeFailures(a, d.decodeKey64, newFailure)
	case `"bury"`:
		return d.decodeFailures(a, d.decodeKey, newBurial)
	case `"bury_base64"`:
		return d.decodeFailures(a, d.decodeKey64, newBurial)
	case `"answers"`:
		return d.decodeAnswers(a, d.decodeKey)
	case `"answers_base64"`:
		return d.decodeAnswers(a, d.decodeKey64)
	}
	d.field = ""
	return d.faultf("unknown field %s in an answer (known: ok, error, failed, failed_base64, bury, bury_base64, answers, answers_base64, retry_after, limit, flight)", key)
}

func (d *decoder) decodeBool(into **bool) *fault {
	start := d.pos
	if err := d.skipValue(1); err != nil {
		return err
	}
	switch string(d.src[start:d.pos]) {
	case "true":
		*into = new(true)
	case "false":
		*into = new(false)
	default:
		return &fault{reason: "must be true or false"}
	}
	return nil
}

func (d *decoder) decodeInteger(into **int64, what string) *fault {
	start := d.pos
	if err := d.skipValue(1); err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(d.src[start:d.pos]), 10, 64)
	if err != nil {
		return &fault{reason: "must be " + what}
	}
	*into = &n
	return nil
}

func newFailure(reason string) error { return errors.New(reason) }
func newBurial(reason string) error  { return lowkiq.Bury{Reason: reason} }

// decodeFailures parses an object of ids and errors.
func (d *decoder) decodeFailures(a *answer, decodeKey func([]byte) (string, *fault), kind func(string) error) *fault {
	if d.peek() != '{' {
		return d.wrongKind(`must be an object of ids and errors, such as {"a":"no such account"}`)
	}
	if a.failed == nil {
		a.failed = lowkiq.Failed{}
	}
	return d.walkObject(1, func(key []byte) *fault {
		id, err := decodeKey(key)
		if err != nil {
			return err
		}
		reason, err := d.decodeText()
		if err != nil {
			return err
		}
		if a.failed[id] != nil {
			return &fault{reason: fmt.Sprintf("id %q is named twice", id)}
		}
		if len(a.failed) < a.most {
			a.failed[id] = kind(reason)
		}
		return nil
	})
}

func (d *decoder) decodeKey(raw []byte) (string, *fault) {
	id, ok := decodeString(raw)
	if !ok {
		return "", &fault{reason: `half of a surrogate pair (\ud800 to \udfff) is no text`}
	}
	return id, nil
}

func (d *decoder) decodeKey64(raw []byte) (string, *fault) {
	l := decoder{lexer: lexer{src: raw}}
	return l.decodeBase64()
}

// decodeAnswers parses an object of ids with their results, states and follow-ups.
func (d *decoder) decodeAnswers(a *answer, decodeKey func([]byte) (string, *fault)) *fault {
	if d.peek() != '{' {
		return d.wrongKind(`must be an object of ids and what is said of them, such as {"a":{"result":1}}`)
	}
	if a.said == nil {
		a.said = map[string]lowkiq.Answered{}
	}
	return d.walkObject(1, func(key []byte) *fault {
		at := d.keyPos
		id, err := decodeKey(key)
		if err != nil {
			return err
		}
		if _, twice := a.said[id]; twice {
			return &fault{at, fmt.Sprintf("id %.600q is answered twice", id)}
		}
		one, err := d.decodeAnswered()
		if err != nil {
			return &fault{max(at, err.pos), fmt.Sprintf("id %.600q: %s", id, err.reason)}
		}
		if len(a.said) < a.most {
			a.said[id] = one
		}
		return nil
	})
}

// decodeThen parses an array of follow-ups: pushes, each with its queue. It never returns nil.
func (d *decoder) decodeThen() (all []lowkiq.FollowUp, err *fault) {
	const want = `must be an array of pushes with their queues, such as [{"queue":"mail","id":"u7","payload":1}]`
	if d.peek() != '[' {
		return nil, d.wrongKind(want)
	}
	outer := d.field
	all, d.arena = []lowkiq.FollowUp{}, nil
	err = d.walkArray(3, func(i int) *fault {
		var one lowkiq.FollowUp
		var err *fault
		if i == lowkiq.MaxFollowUps {
			return &fault{d.pos, fmt.Sprintf("a job has at most %d follow-ups", lowkiq.MaxFollowUps)}
		}
		at := d.pos
		if one.Push, err = d.decodePushTo(&one.Queue); err != nil {
			where := fmt.Sprintf("[%d]", i)
			if d.field != "" {
				where += "." + d.field
			}
			return &fault{max(at, err.pos), where + ": " + err.reason}
		}
		all = append(all, one)
		return nil
	})
	d.field = outer
	return all, err
}

// decodeAnswered parses the result, the state and the follow-ups of an id.
func (d *decoder) decodeAnswered() (one lowkiq.Answered, err *fault) {
	if d.peek() != '{' {
		return one, d.wrongKind(`must be an object with a result, a state, follow-ups or some of them, such as {"result":1,"state":{"n":1}}`)
	}
	err = d.walkObject(2, func(key []byte) *fault {
		at, name := d.keyPos, key[1:len(key)-1]
		if string(name) == "result" && one.Result != nil || string(name) == "state" && one.Stated || string(name) == "then" && one.Then != nil {
			return &fault{at, fmt.Sprintf("%s: given twice", name)}
		}
		var err *fault
		switch string(name) {
		case "result":
			one.Result, err = d.decodeResult()
		case "state":
			if one.Stated = true; d.peek() == 'n' {
				err = d.skipLiteral("null")
			} else {
				one.State, err = d.decodeResult()
			}
		case "then":
			one.Then, err = d.decodeThen()
		default:
			return &fault{at, fmt.Sprintf("unknown field %.600s (known: result, state, then)", key)}
		}
		if err != nil {
			return &fault{max(at, err.pos), fmt.Sprintf("%s: %s", name, err.reason)}
		}
		return nil
	})
	return one, err
}

// decodeResult parses a result or a state as a payload. It never returns nil. Each result has
// memory of its own, because some are kept longer than others.
func (d *decoder) decodeResult() ([]byte, *fault) {
	d.arena = nil
	data, err := d.decodePayload()
	return nonNil(data), err
}

// tooLong returns an error if the result or the state of a job is too long.
func tooLong(one lowkiq.Answered) error {
	switch {
	case len(one.Result) > lowkiq.MaxResultBytes:
		return fmt.Errorf("its result is %d bytes, at most %d are allowed", len(one.Result), lowkiq.MaxResultBytes)
	case len(one.State) > lowkiq.MaxStateBytes:
		return fmt.Errorf("its state is %d bytes, at most %d are allowed", len(one.State), lowkiq.MaxStateBytes)
	}
	return nil
}

// Error is an error in a text, with its place.
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

// errorAt returns the Error at the byte offset pos of src.
func errorAt(src []byte, pos int, field, reason string) *Error {
	before := src[:min(pos, len(src))]
	return &Error{
		Line:   1 + bytes.Count(before, []byte{'\n'}),
		Column: len(before) - bytes.LastIndexByte(before, '\n'),
		Field:  field,
		Reason: reason,
	}
}
