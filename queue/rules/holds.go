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
	"github.com/lowkiq/lowkiq/internal/text/bounds"
	"github.com/lowkiq/lowkiq/queue/changes"
)

// Hold keeps an id, or all ids with a prefix, from handlers. Their payloads wait in order until the
// hold ends or is undone. Runs that have begun continue. Exactly one of ID and Prefix is set.
type Hold struct {
	ID     string      `json:"id,omitempty"`
	Prefix string      `json:"prefix,omitempty"`
	At     time.Time   `json:"at"`             // by Redis's clock
	Until  time.Time   `json:"until,omitzero"` // zero if it has no end
	Why    string      `json:"why,omitempty"`
	By     changes.Who `json:"by"`
}

// MaxHolds is the maximum number of holds of a queue.
const MaxHolds = 1000

// sameIDs reports whether both hold the same ids.
func (h *Hold) sameIDs(other *Hold) bool { return h.ID == other.ID && h.Prefix == other.Prefix }

func (h *Hold) hasEnded(now time.Time) bool { return !h.Until.IsZero() && !now.Before(h.Until) }

// Check returns an ErrValue if a hold is invalid.
func (h *Hold) Check() error {
	if err := h.checkIDs(); err != nil {
		return fmt.Errorf("%w holds: %w", ErrValue, err)
	}
	return nil
}

func (h *Hold) checkIDs() error {
	what, text := "id", h.ID
	if h.ID == "" {
		what, text = "prefix", h.Prefix
	}
	switch {
	case h.ID == "" && h.Prefix == "":
		return errors.New("there must be an id or a prefix of ids; to hold all of a queue, pause it")
	case h.ID != "" && h.Prefix != "":
		return errors.New("there must be an id or a prefix, not both")
	case len(text) > lowkiq.MaxIDBytes:
		return fmt.Errorf("%s %.60q has %d bytes, at most %d are allowed", what, text, len(text), lowkiq.MaxIDBytes)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s %.60q is not UTF-8; a rule cannot name such ids, but it may name a prefix of them", what, text)
	}
	return nil
}

// WithHold returns the holds of settings with h added. The hold of the same ids, if any, is
// replaced and returned as was.
func WithHold(in map[string]Setting, h Hold, now time.Time) (value json.RawMessage, was *Hold, err error) {
	if err := h.Check(); err != nil {
		return nil, nil, err
	}
	all, was, err := splitHolds(in, &h, now)
	if err != nil {
		return nil, nil, err
	}
	if len(all) == MaxHolds {
		return nil, nil, fmt.Errorf("%w holds: the queue has %d of them, which is the limit; undo some, or hold a prefix", ErrValue, MaxHolds)
	}
	value, err = json.Marshal(append(all, h))
	return value, was, err
}

// WithoutHold returns the holds of settings without the hold of the same ids as h, which it returns
// as was. A nil value means that no hold is left. Without such a hold it returns ErrSame.
func WithoutHold(in map[string]Setting, h Hold, now time.Time) (value json.RawMessage, was *Hold, err error) {
	all, was, err := splitHolds(in, &h, now)
	switch {
	case err == nil && was == nil:
		return nil, nil, ErrSame
	case err != nil || len(all) == 0:
		return nil, was, err
	}
	value, err = json.Marshal(all)
	return value, was, err
}

// ReplaceHold returns the holds of settings with the hold is replaced by was, or removed if was is
// nil. A nil value means that no hold is left. It returns ErrSame if the hold has changed
// meanwhile.
func ReplaceHold(in map[string]Setting, is, was *Hold, now time.Time) (value json.RawMessage, err error) {
	all, there, err := splitHolds(in, is, now)
	switch {
	case err != nil:
		return nil, err
	case there == nil || there.By != is.By || there.Why != is.Why || !there.At.Equal(is.At) || !there.Until.Equal(is.Until):
		return nil, ErrSame
	}
	if was != nil && !was.hasEnded(now) {
		all = append(all, *was)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}

// splitHolds returns the holds of settings that have not ended, apart from the hold of the same ids
// as h, and that hold.
func splitHolds(in map[string]Setting, h *Hold, now time.Time) (left []Hold, was *Hold, err error) {
	of, there := in["holds"]
	if !there {
		return nil, nil, nil
	}
	var r Rules
	if err := r.Set("holds", of.Value); err != nil {
		return nil, nil, err
	}
	for i := range r.Holds {
		switch one := &r.Holds[i]; {
		case one.hasEnded(now):
		case one.sameIDs(h):
			was = one
		default:
			left = append(left, *one)
		}
	}
	return left, was, nil
}

// Holds has the holds of a queue.
type Holds []Hold

func (all *Holds) readJSON(value json.RawMessage) error {
	var holds []Hold
	if err := json.Unmarshal(value, &holds); err != nil || holds == nil {
		return fmt.Errorf("want a list of holds, got %s", bounds.Got(value))
	}
	if len(holds) > MaxHolds {
		return fmt.Errorf("%d holds, at most %d of a queue are allowed", len(holds), MaxHolds)
	}
	for i := range holds {
		if err := holds[i].checkIDs(); err != nil {
			return err
		}
	}
	*all = holds
	return nil
}

func (all *Holds) shownValue() any { return append([]Hold{}, *all...) }

// Held finds the hold of an id. It is safe for concurrent use. A nil Held has no holds.
type Held struct {
	all      []Hold
	ids      map[string]int // index in all, by id
	prefixes map[string]int // index in all, by prefix
	lengths  []int          // lengths of prefixes, rising
}

// NewHeld returns a Held, nil if there are no holds.
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

// Of returns the hold of an id, nil if there is none. A hold of the id itself comes first, then the
// hold of the longest prefix.
func (h *Held) Of(id string) *Hold {
	if h == nil {
		return nil
	}
	if i, ok := h.ids[id]; ok {
		return &h.all[i]
	}
	return h.ofPrefix(id)
}

// Covering returns the hold of all ids that another hold names, even if that hold is not in force.
// It returns nil if there is none.
func (h *Held) Covering(ids *Hold) *Hold {
	switch {
	case h == nil:
		return nil
	case ids.ID != "":
		return h.Of(ids.ID)
	}
	return h.ofPrefix(ids.Prefix)
}

// ofPrefix returns the hold of the longest prefix of a text, or nil.
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

// Holds reports whether an id is held.
func (h *Held) Holds(id string) bool { return h.Of(id) != nil }

// String returns the ids of a hold: an id in quotes, or a prefix. An id and a prefix may be spelled
// the same.
func (h *Hold) String() string {
	if h.ID != "" {
		return strconv.Quote(h.ID)
	}
	return "prefix " + strconv.Quote(h.Prefix)
}

// SortHolds sorts holds for people, by their ids and prefixes.
func SortHolds(holds []Hold) {
	slices.SortFunc(holds, func(x, y Hold) int {
		return cmp.Or(strings.Compare(x.ID+x.Prefix, y.ID+y.Prefix), strings.Compare(x.ID, y.ID))
	})
}
