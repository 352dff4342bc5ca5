// Package recurring answers one question: what is pushed again and again, and when?
//
// A [Spec] says what is pushed into which queue by which calendar. The [Book] of a cluster holds one by
// name, as files of nodes or people at run time have it, and when each is due next: its tick. Whoever is
// to push what is due is a [Firer]: the leader most of the time, any node in the end. A tick is
// delivered under its own number, which its shard takes in once (queue.Queue.Deliver), and only then does
// the next one take its place: so there is one push per tick in whatever hands it is.
package recurring

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/calendar"
	"github.com/lowkiq/lowkiq/queue"
)

// Spec says what recurs: when, by a cron expression or an interval, and what is pushed.
type Spec struct {
	Cron   string   `json:"cron,omitempty"`   // minute, hour, day of the month, month, day of the week; or @daily and the like
	Zone   string   `json:"zone,omitempty"`   // on whose clocks cron is read. Default UTC
	Every  Duration `json:"every,omitempty"`  // instead of cron: from 1 s
	Offset Duration `json:"offset,omitempty"` // of every: how long after the Unix epoch it counts from
	// Jitter is the most by which a push comes after its tick. How much follows from name and tick.
	Jitter Duration `json:"jitter,omitempty"`

	Queue string `json:"queue"`
	ID    string `json:"id,omitempty"` // of the job. Default: the name
	// Payload is JSON; {tick} in it becomes the tick's time, as in 2026-01-05T06:00:00Z. Default: none.
	Payload json.RawMessage   `json:"payload,omitempty"`
	Header  map[string]string `json:"header,omitempty"` // beside those of a tick: tick and missed

	// Missed says what becomes of ticks that are a minute late or more, as all nodes were down. Default: One.
	Missed  Missed `json:"missed,omitempty"`
	Backlog int    `json:"backlog,omitempty"` // how many of them All pushes at most, the newest. Default 100
}

// Missed is what becomes of ticks that are late by a minute or more.
type Missed string

// The rules for missed ticks.
const (
	One  Missed = "one"  // the newest of them is pushed, and says how many it stands for
	None Missed = "none" // none is pushed
	All  Missed = "all"  // each is pushed, but for those beyond Backlog
)

// Headers of a push that recurs.
const (
	TickHeader   = "tick"   // the time of its tick, as in 2026-01-05T06:00:00Z
	MissedHeader = "missed" // how many ticks before it were left out, if any were
)

// MaxEntries is how many entries a cluster may have.
const MaxEntries = 1000

const (
	maxBacklog  = 1000
	maxPayload  = 64 << 10 // of an entry
	maxSpec     = 128 << 10
	maxEntries  = 4 << 20     // bytes of all entries, which one script reads together
	soonEnough  = time.Minute // a tick that is less late than this is fired by itself
	defaultZone = "UTC"
)

// ErrSpec: an entry is not what it must be. The error says which field, and what would be right.
var ErrSpec = errors.New("recurring")

// Duration is a time.Duration that is written as text: 30s.
type Duration time.Duration

// MarshalText writes it as time.Duration does, without zero units at its end.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the text.
func (d Duration) String() string {
	text := time.Duration(d).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration, want one as 30s or 1h30m", text)
	}
	*d = Duration(v)
	return nil
}

// withDefaults fills in what a spec leaves out.
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

// FieldError says which field of an entry is wrong, by its name in JSON and YAML.
type FieldError struct {
	Field string
	err   error
}

// Error begins with the field.
func (e *FieldError) Error() string { return e.err.Error() }

// Unwrap is what it says.
func (e *FieldError) Unwrap() error { return e.err }

// Reason is the text without the field.
func (e *FieldError) Reason() string {
	return strings.TrimLeft(strings.TrimPrefix(e.Error(), e.Field), ": ")
}

// wrong is a FieldError of a text whose first word is the field.
func wrong(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	field, _, _ := strings.Cut(err.Error(), " ")
	return &FieldError{strings.TrimSuffix(field, ":"), err}
}

// Check says what is wrong with an entry, of which only what it names is looked at: an ErrSpec. Whether its queue
// exists is not its business.
func (s Spec) Check(name string) error {
	if err := s.check(name); err != nil {
		return fmt.Errorf("%w %q: %w", ErrSpec, name, err)
	}
	return nil
}

func (s Spec) check(name string) error {
	if err := queue.CheckName("entry", name); err != nil {
		return err
	}
	if err := queue.CheckName("queue", s.Queue); err != nil {
		return wrong("queue: %w", err)
	}
	schedule, err := s.schedule()
	if err != nil {
		return err
	}
	s = s.withDefaults(name)
	for reserved := range maps.Keys(s.Header) {
		if reserved == TickHeader || reserved == MissedHeader {
			return wrong("header: %q is set by each push itself", reserved)
		}
	}
	if _, err := lowkiq.NewHeader(s.Header); err != nil {
		return wrong("header: %w", err)
	}
	switch {
	case s.Jitter < 0 || time.Duration(s.Jitter) >= schedule.Gap():
		return wrong("jitter %v: want 0 or more, and less than the time between two ticks, which may be %v", s.Jitter, Duration(schedule.Gap()))
	case s.Jitter%Duration(time.Millisecond) != 0:
		return wrong("jitter %v: want whole milliseconds", s.Jitter)
	case len(s.ID) > lowkiq.MaxIDBytes:
		return wrong("id: %d bytes, at most %d are allowed", len(s.ID), lowkiq.MaxIDBytes)
	case !utf8.ValidString(s.ID):
		return wrong("id: %q, want UTF-8", s.ID)
	case len(s.Payload) > 0 && (!json.Valid(s.Payload) || !utf8.Valid(s.Payload)):
		return wrong("payload %.60q: want JSON in UTF-8", s.Payload)
	case len(s.Payload) > maxPayload:
		return wrong("payload: %d bytes, at most %d are allowed here", len(s.Payload), maxPayload)
	case s.Missed != One && s.Missed != None && s.Missed != All:
		return wrong("missed %q: want one, none or all", s.Missed)
	case s.Missed != All && s.Backlog != 0:
		return wrong("backlog: it is of missed: all, not of missed: %s", s.Missed)
	case s.Backlog < 0 || s.Backlog > maxBacklog:
		return wrong("backlog %d: want 1 to %d", s.Backlog, maxBacklog)
	}
	return nil
}

// schedule is when the ticks are.
func (s Spec) schedule() (calendar.Schedule, error) {
	switch {
	case s.Cron == "" && s.Every == 0:
		return calendar.Schedule{}, errors.New(`it says not when: want cron, as in cron: "0 6 * * 1-5", or every, as in every: 30s`)
	case s.Cron != "" && s.Every != 0:
		return calendar.Schedule{}, wrong("every: cron is given, too; want one of them")
	case s.Cron != "" && s.Offset != 0:
		return calendar.Schedule{}, wrong("offset: it is of every, not of cron")
	case s.Cron != "":
		if _, err := calendar.Zone(s.Zone); err != nil {
			return calendar.Schedule{}, wrong("%w", err)
		}
		schedule, err := calendar.Cron(s.Cron, s.Zone)
		if err != nil {
			return schedule, wrong("%w", err)
		}
		return schedule, nil
	case s.Zone != "":
		return calendar.Schedule{}, wrong("zone: it is of cron, not of every, which counts from the Unix epoch")
	}
	schedule, err := calendar.Every(time.Duration(s.Every), time.Duration(s.Offset))
	if err != nil {
		return schedule, wrong("%w", err)
	}
	return schedule, nil
}

// push is the job of a tick; missed is how many before it were left out.
func (s Spec) push(name string, tick time.Time, missed int64) lowkiq.Push {
	text := tick.UTC().Format(time.RFC3339Nano)
	header := map[string]string{TickHeader: text}
	maps.Copy(header, s.Header)
	if missed > 0 {
		header[MissedHeader] = fmt.Sprint(missed)
	}
	return lowkiq.Push{ID: cmp.Or(s.ID, name), Payload: []byte(strings.ReplaceAll(string(s.Payload), "{tick}", text)), Header: header}
}

func (s Spec) equal(other Spec) bool { return reflect.DeepEqual(s, other) }
