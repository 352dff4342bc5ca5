package rules

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Hold keeps an id, or all ids with a prefix, from handlers: what is pushed piles up in order until its time is over or it is
// undone. What runs when it begins runs on. Exactly one of ID and Prefix is set.
type Hold struct {
	ID     string      `json:"id,omitempty"`
	Prefix string      `json:"prefix,omitempty"`
	At     time.Time   `json:"at"`             // by Redis's clock
	Until  time.Time   `json:"until,omitzero"` // zero: until it is undone
	Why    string      `json:"why,omitempty"`
	By     changes.Who `json:"by"`
}

// MaxHolds is how many holds a queue has at most.
const MaxHolds = 1000

// maxHolds bounds all holds of a queue, bytes.
const maxHolds = 512 << 10

// covers reports whether both hold the same ids.
func (h *Hold) covers(other *Hold) bool { return h.ID == other.ID && h.Prefix == other.Prefix }

func (h *Hold) over(now time.Time) bool { return !h.Until.IsZero() && !now.Before(h.Until) }

// Check says what is wrong with a hold, an ErrValue.
func (h *Hold) Check() error {
	if err := h.check(); err != nil {
		return fmt.Errorf("%w holds: %w", ErrValue, err)
	}
	return nil
}

func (h *Hold) check() error {
	what, text := "id", h.ID
	if h.ID == "" {
		what, text = "prefix", h.Prefix
	}
	switch {
	case h.ID == "" && h.Prefix == "":
		return errors.New("want an id, or a prefix of ids; to hold all of a queue, pause it")
	case h.ID != "" && h.Prefix != "":
		return errors.New("want an id or a prefix, not both")
	case len(text) > lowkiq.MaxIDBytes:
		return fmt.Errorf("%s %.60q has %d bytes, at most %d are allowed", what, text, len(text), lowkiq.MaxIDBytes)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s %.60q is not UTF-8: such ids cannot be named in a rule, but a prefix of them may be", what, text)
	}
	return nil
}

// WithHold are the holds of settings with one more, which takes the place of one of the same ids: was, or nil.
func WithHold(in map[string]Setting, h Hold, now time.Time) (value json.RawMessage, was *Hold, err error) {
	if err := h.Check(); err != nil {
		return nil, nil, err
	}
	all, was, err := cutHold(in, &h, now)
	if err != nil {
		return nil, nil, err
	}
	if len(all) == MaxHolds {
		return nil, nil, fmt.Errorf("%w holds: the queue has %d of them, which is the limit: undo some, or hold a prefix", ErrValue, MaxHolds)
	}
	value, err = json.Marshal(append(all, h))
	return value, was, err
}

// WithoutHold are the holds of settings without one, which was there; nil: none is left. ErrSame: there is none of these ids.
func WithoutHold(in map[string]Setting, h Hold, now time.Time) (value json.RawMessage, was *Hold, err error) {
	all, was, err := cutHold(in, &h, now)
	switch {
	case err == nil && was == nil:
		return nil, nil, ErrSame
	case err != nil || len(all) == 0:
		return nil, was, err
	}
	value, err = json.Marshal(all)
	return value, was, err
}

// InPlaceOf are the holds of settings with one, was, in place of another of the same ids, or nil with none; nil: none is left. ErrSame: that other
// one is not there any more, as somebody has changed it.
func InPlaceOf(in map[string]Setting, is, was *Hold, now time.Time) (value json.RawMessage, err error) {
	all, there, err := cutHold(in, is, now)
	switch {
	case err != nil:
		return nil, err
	case there == nil || there.By != is.By || there.Why != is.Why || !there.At.Equal(is.At) || !there.Until.Equal(is.Until):
		return nil, ErrSame
	}
	if was != nil && !was.over(now) {
		all = append(all, *was)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}

// cutHold takes the hold of the same ids out of those of settings that are not over.
func cutHold(in map[string]Setting, h *Hold, now time.Time) (left []Hold, was *Hold, err error) {
	of, there := in["holds"]
	if !there {
		return nil, nil, nil
	}
	var v Values
	if err := v.set("holds", of.Value); err != nil {
		return nil, nil, err
	}
	for i := range v.Holds {
		switch one := &v.Holds[i]; {
		case one.over(now):
		case one.covers(h):
			was = one
		default:
			left = append(left, *one)
		}
	}
	return left, was, nil
}

func setHolds(v *Values, value json.RawMessage) error {
	var holds []Hold
	if err := json.Unmarshal(value, &holds); err != nil || holds == nil {
		return fmt.Errorf("want a list of holds, got %s", got(value))
	}
	if len(holds) > MaxHolds {
		return fmt.Errorf("%d holds, at most %d of a queue are allowed", len(holds), MaxHolds)
	}
	for i := range holds {
		if err := holds[i].check(); err != nil {
			return err
		}
	}
	v.Holds = holds
	return nil
}

// Held finds the hold of an id among those of a queue. It is safe for concurrent use; nil has none.
type Held struct {
	all      []Hold
	ids      map[string]int // by id: which of all
	prefixes map[string]int // by prefix
	lengths  []int          // of prefixes, rising
}

// NewHeld is made once for many ids; nil if there are no holds.
func NewHeld(holds []Hold) *Held {
	if len(holds) == 0 {
		return nil
	}
	h := &Held{all: holds, ids: map[string]int{}, prefixes: map[string]int{}}
	for i := range holds {
		if holds[i].ID != "" {
			h.ids[holds[i].ID] = i
			continue
		}
		h.prefixes[holds[i].Prefix] = i
		h.lengths = append(h.lengths, len(holds[i].Prefix))
	}
	slices.Sort(h.lengths)
	h.lengths = slices.Compact(h.lengths)
	return h
}

// Of is the hold of an id, nil if nobody holds it: that of the id itself before those of prefixes, of which the longest counts.
func (h *Held) Of(id string) *Hold {
	if h == nil {
		return nil
	}
	if i, ok := h.ids[id]; ok {
		return &h.all[i]
	}
	return h.ofPrefix(id)
}

// Covering is the hold of all ids that another one names, which need not be there itself; nil if nobody holds them.
func (h *Held) Covering(ids *Hold) *Hold {
	switch {
	case h == nil:
		return nil
	case ids.ID != "":
		return h.Of(ids.ID)
	}
	return h.ofPrefix(ids.Prefix)
}

// ofPrefix is the hold of the longest prefix that a text begins with, or nil.
func (h *Held) ofPrefix(text string) *Hold {
	for _, n := range slices.Backward(h.lengths) {
		if n <= len(text) {
			if i, ok := h.prefixes[text[:n]]; ok {
				return &h.all[i]
			}
		}
	}
	return nil
}

// Holds reports whether somebody holds an id.
func (h *Held) Holds(id string) bool { return h.Of(id) != nil }

// String names the ids of a hold: an id in quotes, or a prefix, as no id is told from a prefix by how it is spelled.
func (h *Hold) String() string {
	if h.ID != "" {
		return strconv.Quote(h.ID)
	}
	return "prefix " + strconv.Quote(h.Prefix)
}

// SortHolds orders holds for people: by what they hold.
func SortHolds(holds []Hold) {
	slices.SortFunc(holds, func(x, y Hold) int {
		return cmp.Or(strings.Compare(x.ID+x.Prefix, y.ID+y.Prefix), strings.Compare(x.ID, y.ID))
	})
}
