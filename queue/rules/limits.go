package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limit bounds what a whole cluster does for a queue. What is 0 bounds nothing.
type Limit struct {
	Concurrency int // handler calls at once
	Rate        Rate
	Burst       int // ids at once after a rest; 0: those of a second, at least 1
}

// Rate is how many ids are handed to handlers, in a time. N 0: any number.
type Rate struct {
	N   int
	Per time.Duration
}

// rateUnits are the times that a rate may name.
var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// ParseRate reads a rate as in 100/s, 5/m or 1/h.
func ParseRate(text string) (Rate, error) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	if per := rateUnits[unit]; err == nil && n >= 1 && n <= 1_000_000 && per > 0 {
		return Rate{n, per}, nil
	}
	return Rate{}, fmt.Errorf("want a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h, got %.40q", text)
}

// String is the text that ParseRate reads.
func (r Rate) String() string {
	for unit, per := range rateUnits {
		if r.Per == per {
			return strconv.Itoa(r.N) + "/" + unit
		}
	}
	return fmt.Sprintf("%d in %s", r.N, r.Per)
}

// Assumed are the parts that MarshalJSON shows and nobody gave: they are those of WithDefaults.
func (l Limit) Assumed() []string {
	if l.Rate.N > 0 && l.Burst == 0 {
		return []string{"burst"}
	}
	return nil
}

// WithDefaults has the burst of a rate that names none.
func (l Limit) WithDefaults() Limit {
	if l.Rate.N > 0 && l.Burst == 0 {
		l.Burst = max(1, int(int64(l.Rate.N)*int64(time.Second)/int64(l.Rate.Per)))
	}
	return l
}

// Check says what is wrong with a limit.
func (l Limit) Check() error {
	switch {
	case l.Concurrency < 0 || l.Concurrency > 1_000_000:
		return fmt.Errorf("%w limit: concurrency is %d, want 0 to 1000000", ErrValue, l.Concurrency)
	case l.Rate.N < 0 || l.Rate.N > 1_000_000 || l.Rate.N > 0 && (l.Rate.Per < time.Second || l.Rate.Per > time.Hour):
		return fmt.Errorf("%w limit: rate is %d in %s, want up to 1000000 in a second to an hour", ErrValue, l.Rate.N, l.Rate.Per)
	case l.Burst < 0 || l.Burst > 1_000_000:
		return fmt.Errorf("%w limit: burst is %d, want 0 to 1000000", ErrValue, l.Burst)
	}
	if err := l.lacks(); err != nil {
		return fmt.Errorf("%w limit: %w", ErrValue, err)
	}
	return nil
}

// MarshalJSON is the form of the configuration file: without what bounds nothing, "none" if nothing does.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == (Limit{}) {
		return []byte(`"none"`), nil
	}
	return json.Marshal(l.shown())
}

// shown is what bounds something, by its key.
func (l Limit) shown() map[string]any {
	shown := map[string]any{}
	if l.Concurrency > 0 {
		shown["concurrency"] = l.Concurrency
	}
	if l.Rate.N > 0 {
		shown["rate"], shown["burst"] = l.Rate.String(), l.WithDefaults().Burst
	}
	return shown
}

// UnmarshalJSON reads what MarshalJSON writes: none, or a mapping of what is bounded.
func (l *Limit) UnmarshalJSON(value []byte) error {
	var read Limit
	if string(value) != `"none"` {
		err := object(value, read.fields())
		switch {
		case err != nil:
		case read == (Limit{}):
			err = errors.New("none of them is there")
		default:
			err = read.lacks()
		}
		if err != nil {
			return fmt.Errorf("want none or {concurrency, rate, burst}: %w", err)
		}
	}
	*l = read
	return nil
}

// fields read each part of a limit.
func (l *Limit) fields() map[string]func(json.RawMessage) error {
	return map[string]func(json.RawMessage) error{
		"concurrency": few(&l.Concurrency),
		"burst":       few(&l.Burst),
		"rate": func(part json.RawMessage) (err error) {
			var text string
			if json.Unmarshal(part, &text) != nil {
				text = string(part)
			}
			l.Rate, err = ParseRate(text)
			return err
		},
	}
}

// lacks says which part of a limit needs another one.
func (l Limit) lacks() error {
	if l.Burst > 0 && l.Rate.N == 0 {
		return errors.New("there is a burst, and no rate")
	}
	return nil
}

func setLimit(v *Values, value json.RawMessage) error {
	var l Limit
	if err := l.UnmarshalJSON(value); err != nil {
		return err
	}
	v.Limit = &l
	return nil
}

// few reads a number that bounds something.
func few(to *int) func(json.RawMessage) error {
	return func(part json.RawMessage) error {
		n, err := strconv.Atoi(string(part))
		if err != nil || n < 1 || n > 1_000_000 {
			return fmt.Errorf("want a whole number, 1 to 1000000, got %s", got(part))
		}
		*to = n
		return nil
	}
}
