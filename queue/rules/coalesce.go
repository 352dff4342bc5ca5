package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What becomes of a payload that is pushed while others wait for its id.
const (
	CoalesceAll    = "all"    // they wait together
	CoalesceLatest = "latest" // only the one with the highest score waits, of equal scores the last one
	CoalesceOnce   = "once"   // it is merged into what waits
)

// Debounce puts an id off with each push: it is due Quiet after the last one, and Most after the first one at the latest. Its zero value:
// it does not.
type Debounce struct {
	Quiet time.Duration `json:"quiet,omitempty"`
	Most  time.Duration `json:"most,omitempty"`
}

// NoDebounce is said where another one would hold otherwise.
var NoDebounce = Debounce{Quiet: -1}

// LongestDebounce bounds both times.
const LongestDebounce = 24 * time.Hour

// WithDefaults has the longest time if none is given: ten times the quiet one.
func (d Debounce) WithDefaults() Debounce {
	if d.Quiet > 0 && d.Most == 0 {
		d.Most = min(10*d.Quiet, LongestDebounce)
	}
	return d
}

// Assumed are the parts that Shown has and nobody gave: they are those of WithDefaults.
func (d Debounce) Assumed() []string {
	if d.Quiet > 0 && d.Most == 0 {
		return []string{"most"}
	}
	return nil
}

// Check says what is wrong with it.
func (d Debounce) Check() error {
	switch {
	case d == NoDebounce:
	case d.Quiet < 0 || d.Quiet > LongestDebounce || d.Most < 0 || d.Most > LongestDebounce:
		return fmt.Errorf("%w debounce: quiet is %s and most %s, want up to %s", ErrValue, d.Quiet, d.Most, Duration(LongestDebounce))
	case d.Most > 0 && d.Most < d.Quiet || d.Most > 0 && d.Quiet == 0:
		return fmt.Errorf("%w debounce: quiet is %s and most %s, want most to be no less", ErrValue, d.Quiet, d.Most)
	}
	return nil
}

// Shown is the form of the configuration file.
func (d Debounce) Shown() any {
	if d.Quiet <= 0 {
		return "none"
	}
	return map[string]any{"quiet": Duration(d.Quiet), "most": Duration(d.WithDefaults().Most)}
}

func setDebounce(v *Values, value json.RawMessage) error {
	d := NoDebounce
	if string(value) != `"none"` {
		d = Debounce{}
		err := object(value, map[string]func(json.RawMessage) error{
			"quiet": durationIn(time.Millisecond, LongestDebounce, func(t time.Duration) { d.Quiet = t }),
			"most":  durationIn(time.Millisecond, LongestDebounce, func(t time.Duration) { d.Most = t }),
		})
		switch {
		case err != nil:
		case d.Quiet == 0:
			err = errors.New("quiet is not there")
		case d.Most > 0 && d.Most < d.Quiet:
			err = fmt.Errorf("most is %s, less than quiet, %s", Duration(d.Most), Duration(d.Quiet))
		}
		if err != nil {
			return fmt.Errorf("want none or {quiet, most}: %w", err)
		}
	}
	v.Debounce = &d
	return nil
}
