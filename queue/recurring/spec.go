// Package recurring pushes jobs again and again by a calendar.
//
// A [Spec] says which job is pushed into which queue, and when. The [Book] of a cluster has the
// specs by name, from the files of nodes or from requests at run time, and the next due time of
// each, its tick. A [Firer] pushes due ticks. It is mostly the firer of the leader, but any node
// can do so. Each tick is delivered under its own number, which its shard stores once
// (protocol.Queue.Deliver). Only then does the next tick replace it. So each tick is pushed once,
// whichever process pushes it.
package recurring

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Spec is a recurring job: when it is pushed, by a cron expression or an interval, and what is
// pushed. Files, the API, flags and forms have its fields by name ([Fields]). Their help describes
// them.
type Spec struct {
	Cron   string   `json:"cron,omitempty" placeholder:"CRON" example:"0 6 * * 1-5" help:"minute, hour, day, month, weekday; or @daily and the like"`
	Zone   string   `json:"zone,omitempty" placeholder:"ZONE" example:"UTC" help:"the time zone of cron, as Europe/Berlin; default: UTC"`
	Every  Duration `json:"every,omitempty" min:"1s" max:"8784h" placeholder:"TIME" example:"30s" help:"instead of cron: an interval from 1s, counted from the Unix epoch"`
	Offset Duration `json:"offset,omitempty" placeholder:"TIME" example:"0s" help:"of every: how long after the epoch it counts from"`
	// The delay of a tick follows from name and tick.
	Jitter Duration `json:"jitter,omitempty" placeholder:"TIME" example:"0s" help:"a push comes at most this long after its tick"`

	Queue   string            `json:"queue" placeholder:"NAME" help:"queue to push into"`
	ID      string            `json:"id,omitempty" placeholder:"ID" example:"the name" help:"id of the job; default: the name"`
	Payload json.RawMessage   `json:"payload,omitempty" placeholder:"JSON" help:"payload of the job; {tick} in it becomes the tick's time"`
	Header  map[string]string `json:"header,omitempty" placeholder:"NAME=VALUE" help:"headers of the job, beside tick and missed; the flag may be repeated"`

	Missed  Missed `json:"missed,omitempty" oneof:"one,none,all" placeholder:"RULE" help:"ticks over a minute late: one push for all of them (one, the default), none, or all"`
	Backlog int    `json:"backlog,omitempty" min:"1" max:"1000" placeholder:"N" example:"100" help:"of missed all: the maximum number of pushes, the newest; default: 100"`
}

// Missed says what happens to ticks that are late by a minute or more.
type Missed string

// The rules for missed ticks.
const (
	One  Missed = "one"  // the newest is pushed with the number of the others
	None Missed = "none" // no late tick is pushed
	All  Missed = "all"  // every late tick is pushed, up to Backlog
)

// Headers of a recurring push.
const (
	TickHeader   = "tick"   // the time of its tick, for example 2026-01-05T06:00:00Z
	MissedHeader = "missed" // the number of ticks before it that were left out, if any
)

// MaxEntries is the maximum number of entries of a cluster.
const MaxEntries = 1000

const (
	maxBacklog  = 1000
	maxPayload  = 64 << 10 // bytes of an entry's payload
	maxSpec     = 128 << 10
	maxEntries  = 4 << 20     // bytes of all entries, which a script reads together
	maxLate     = time.Minute // a tick that is less late than this is not a missed tick
	defaultZone = "UTC"
)

// ErrSpec is the error of an invalid entry. It names the field and says what would be right.
var ErrSpec = errors.New("recurring")

// Duration is a time.Duration that is written as text, for example 30s.
type Duration time.Duration

// MarshalText writes the text of time.Duration without zero units at its end.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns the text.
func (d Duration) String() string {
	text := time.Duration(d).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// UnmarshalText parses a text.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// withDefaults fills in defaults.
func (s Spec) withDefaults(name string) Spec {
	s.ID = cmp.Or(s.ID, name)
	s.Missed = cmp.Or(s.Missed, One)
	if s.Cron != "" {
		s.Zone = cmp.Or(s.Zone, defaultZone)
	}
	if s.Missed == All {
		s.Backlog = cmp.Or(s.Backlog, 100)
	}
	return s
}

// FieldError is the error of a field of an entry, with the field's name in JSON and YAML.
type FieldError struct {
	Field string
	err   error
}

// Error returns the text, which begins with the field.
func (e *FieldError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *FieldError) Unwrap() error { return e.err }

// Reason returns the text without the field.
func (e *FieldError) Reason() string {
	return strings.TrimLeft(strings.TrimPrefix(e.Error(), e.Field), ": ")
}

// fieldError returns the FieldError of a text whose first word is the field.
func fieldError(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	field, _, _ := strings.Cut(err.Error(), " ")
	return &FieldError{strings.TrimSuffix(field, ":"), err}
}

// Check returns an ErrSpec if an entry is invalid. It does not check whether the queue exists.
func (s Spec) Check(name string) error {
	if err := s.checkFields(name); err != nil {
		return fmt.Errorf("%w %q: %w", ErrSpec, name, err)
	}
	return nil
}

func (s Spec) checkFields(name string) error {
	if err := protocol.CheckName("entry", name); err != nil {
		return err
	}
	if err := cmp.Or(protocol.CheckName("queue", s.Queue), protocol.CheckNotReserved(s.Queue)); err != nil {
		return fieldError("queue: %w", err)
	}
	schedule, err := s.parseSchedule()
	if err != nil {
		return err
	}
	s = s.withDefaults(name)
	for reserved := range maps.Keys(s.Header) {
		if reserved == TickHeader || reserved == MissedHeader {
			return fieldError("header: every push sets %q itself", reserved)
		}
	}
	if _, err := lowkiq.NewHeader(s.Header); err != nil {
		return fieldError("header: %w", err)
	}
	switch {
	case s.Jitter < 0 || time.Duration(s.Jitter) >= schedule.Gap():
		return fieldError("jitter %v: want 0 or more, and less than the time between two ticks, which may be %v", s.Jitter, Duration(schedule.Gap()))
	case s.Jitter%Duration(time.Millisecond) != 0:
		return fieldError("jitter %v: want whole milliseconds", s.Jitter)
	case len(s.ID) > lowkiq.MaxIDBytes:
		return fieldError("id: %d bytes, at most %d are allowed", len(s.ID), lowkiq.MaxIDBytes)
	case !utf8.ValidString(s.ID):
		return fieldError("id: %q, want UTF-8", s.ID)
	case len(s.Payload) > 0 && (!json.Valid(s.Payload) || !utf8.Valid(s.Payload)):
		return fieldError("payload %.60q: want JSON in UTF-8", s.Payload)
	case len(s.Payload) > maxPayload:
		return fieldError("payload: %d bytes, at most %d are allowed here", len(s.Payload), maxPayload)
	case s.Missed != One && s.Missed != None && s.Missed != All:
		return fieldError("missed %q: want one, none or all", s.Missed)
	case s.Missed != All && s.Backlog != 0:
		return fieldError("backlog: it is of missed: all, not of missed: %s", s.Missed)
	case s.Backlog < 0 || s.Backlog > maxBacklog:
		return fieldError("backlog %d: want 1 to %d", s.Backlog, maxBacklog)
	}
	return nil
}

// parseSchedule returns the schedule of the ticks.
func (s Spec) parseSchedule() (calendar.Schedule, error) {
	switch {
	case s.Cron == "" && s.Every == 0:
		return calendar.Schedule{}, errors.New(`it says not when: want cron, as in cron: "0 6 * * 1-5", or every, as in every: 30s`)
	case s.Cron != "" && s.Every != 0:
		return calendar.Schedule{}, fieldError("every: cron is given, too; want one of them")
	case s.Cron != "" && s.Offset != 0:
		return calendar.Schedule{}, fieldError("offset: it is of every, not of cron")
	case s.Cron != "":
		if _, err := calendar.Zone(s.Zone); err != nil {
			return calendar.Schedule{}, fieldError("%w", err)
		}
		schedule, err := calendar.Cron(s.Cron, s.Zone)
		if err != nil {
			return schedule, fieldError("%w", err)
		}
		return schedule, nil
	case s.Zone != "":
		return calendar.Schedule{}, fieldError("zone: it is of cron, not of every, which counts from the Unix epoch")
	}
	schedule, err := calendar.Every(time.Duration(s.Every), time.Duration(s.Offset))
	if err != nil {
		return schedule, fieldError("%w", err)
	}
	return schedule, nil
}

// buildPush returns the job of a tick. missed is the number of ticks before it that were left out.
func (s Spec) buildPush(name string, tick time.Time, missed int64) lowkiq.Push {
	text := tick.UTC().Format(time.RFC3339Nano)
	header := map[string]string{TickHeader: text}
	maps.Copy(header, s.Header)
	if missed > 0 {
		header[MissedHeader] = fmt.Sprint(missed)
	}
	return lowkiq.Push{ID: cmp.Or(s.ID, name), Payload: []byte(strings.ReplaceAll(string(s.Payload), "{tick}", text)), Header: header}
}

func (s Spec) isEqual(other Spec) bool { return reflect.DeepEqual(s, other) }

// UnknownQueues returns warnings about entries of a file with a queue that is not registered,
// because no node has handled it and no program has pushed to it.
func UnknownQueues(file map[string]Spec, registered []string) (warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(file)) {
		q := file[name].Queue
		if slices.Contains(registered, q) {
			continue
		}
		text := fmt.Sprintf("the recurring entry %s pushes to queue %q, which is not registered; its ticks are refused until a node handles it", name, q)
		if meant := suggest.NearestName(q, registered, min(3, len(q))); meant != "" {
			text += fmt.Sprintf("; did you mean %q?", meant)
		}
		warnings = append(warnings, text)
	}
	return warnings
}
