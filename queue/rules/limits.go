package rules

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limit bounds what a whole cluster does for a queue. A field that is 0 bounds nothing.
type Limit struct {
	Concurrency int  `rule:"concurrency" min:"1" max:"1000000"` // handler calls at once
	Rate        Rate `json:",omitzero" rule:"rate" text:"a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h"`
	Burst       int  `rule:"burst" min:"1" max:"1000000"` // ids at once after a rest. The default is the ids of a second, at least 1
}

// Rate is how many ids are handed to handlers in a time. If N is 0 there is no bound.
type Rate struct {
	N   int
	Per time.Duration
}

// rateUnits are the units of a rate.
var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// UnmarshalText parses a rate such as 100/s, 5/m or 1/h.
func (r *Rate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(number)
	per := rateUnits[unit]
	if err != nil || n < 1 || n > 1_000_000 || per == 0 {
		return fmt.Errorf("%.40q is not a rate", text)
	}
	*r = Rate{n, per}
	return nil
}

// MarshalText returns the text that UnmarshalText parses.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String returns the same text.
func (r Rate) String() string {
	for unit, per := range rateUnits {
		if r.Per == per {
			return strconv.Itoa(r.N) + "/" + unit
		}
	}
	return fmt.Sprintf("%d in %s", r.N, r.Per)
}

// WithDefaults returns the limit with the default burst of its rate.
func (l Limit) WithDefaults() Limit {
	l.setDefaults()
	return l
}

func (l *Limit) setDefaults() {
	if l.Rate.N > 0 && l.Rate.Per > 0 && l.Burst == 0 {
		l.Burst = max(1, int(int64(l.Rate.N)*int64(time.Second)/int64(l.Rate.Per)))
	}
}

// checkParts returns an error if a part of a limit needs another part.
func (l *Limit) checkParts() error {
	if l.Burst > 0 && l.Rate.N == 0 {
		return valueError(".burst", "there is a burst without a rate")
	}
	return nil
}
