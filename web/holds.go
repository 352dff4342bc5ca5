package web

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Holds are what people hold of a queue.
type Holds struct {
	Queue string `json:"queue"`
	Held  int    `json:"held"` // ids that wait to be released
	Holds []Hold `json:"holds"`
}

// Hold keeps an id, or all ids with a prefix, from handlers. Times are unix seconds, by Redis's clock.
type Hold struct {
	ID     string  `json:"id,omitempty"`
	Prefix string  `json:"prefix,omitempty"`
	By     By      `json:"by"`
	At     float64 `json:"at"`
	Until  float64 `json:"until,omitempty"` // 0: until it is undone
	Why    string  `json:"why,omitempty"`
}

func holdOf(h *rules.Hold) Hold {
	one := Hold{ID: h.ID, Prefix: h.Prefix, By: By(h.By), At: unix(h.At), Why: h.Why}
	if !h.Until.IsZero() {
		one.Until = unix(h.Until)
	}
	return one
}

// HoldsOf are the holds of a queue that are in force.
func HoldsOf(ctx context.Context, c *queue.Client, name string) ([]rules.Hold, error) {
	set, now, err := rules.In(c.DB()).Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	values, _ := set.Values(now) // what this release cannot read of other rules is not asked
	rules.SortHolds(values.Holds)
	return values.Holds, nil
}

// holds answers those of a queue.
func (a *api) holds(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	holds, err := HoldsOf(r.Context(), a.client, q.Name)
	if err != nil {
		return nil, err
	}
	stats, err := q.Stats(r.Context())
	if err != nil {
		return nil, err
	}
	answer := Holds{Queue: q.Name, Held: stats.Jobs.Held, Holds: []Hold{}}
	for i := range holds {
		answer.Holds = append(answer.Holds, holdOf(&holds[i]))
	}
	return answer, nil
}

// HoldChange asks to hold an id or a prefix, or to undo that.
type HoldChange struct {
	ID     string `json:"id,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	For    string `json:"for,omitempty"` // a duration; default: until it is undone
	Undo   bool   `json:"undo,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HoldChanged answers it.
type HoldChanged struct {
	ID     string  `json:"id,omitempty"`
	Prefix string  `json:"prefix,omitempty"`
	Queue  string  `json:"queue"`
	Undone bool    `json:"undone"`                   // whether a hold of it was there, a handler's included, and is no more
	Held   bool    `json:"held"`                     // whether it is held now: what was undone may be, by a prefix
	Beside string  `json:"held_by_prefix,omitempty"` // what holds it now, if that is a hold of another prefix
	Until  float64 `json:"until,omitempty"`          // of what holds it now; unix seconds; 0: until that is undone
	Count  int     `json:"count"`                    // holds of the queue
}

const wantHold = `{"prefix":"acme:","for":"1h","why":"they move"}`

func (a *api) hold(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	var want HoldChange
	if err := decodeBody(body, &want, wantHold); err != nil {
		return nil, err
	}
	return ChangeHold(a.node, a.cfg.Log, r, q, want)
}

// ChangeHold holds ids of a queue, or undoes that, as the sender of a request wants it. To undo what is not held changes nothing. The
// answer says what holds these ids then: of what was undone that may be the hold of a prefix. To undo the hold of a group also ends for how long a
// handler holds it back.
func ChangeHold(n Node, log *slog.Logger, r *http.Request, q *queue.Queue, want HoldChange) (HoldChanged, error) {
	set, hold, was, err := changeHold(n, log, r, q.Name, want)
	if err != nil {
		return HoldChanged{}, err
	}
	stopped := false
	if want.Undo && want.Prefix != "" {
		if stopped, err = q.LetGo(r.Context(), want.Prefix); err != nil {
			return HoldChanged{}, err
		}
	}
	if stopped {
		log.Info("a group was let go by hand", "queue", q.Name, "group", want.Prefix, auth.Sender(r))
		line := changes.Line{Action: "unhold", Queue: q.Name, Why: want.Why}
		line.Old, _ = json.Marshal(map[string]string{"prefix": want.Prefix, "held_by": "handler"}) // plain strings always marshal
		WriteDown(n, log, r, line)
	}
	values, _ := set.Values(hold.At) // what this release cannot read of other rules is not asked
	answer := HoldChanged{ID: want.ID, Prefix: want.Prefix, Queue: q.Name, Undone: want.Undo && was != nil || stopped, Count: len(values.Holds)}
	if by := rules.NewHeld(values.Holds).Covering(hold); by != nil {
		answer.Held = true
		if !by.Until.IsZero() {
			answer.Until = unix(by.Until)
		}
		if by.Prefix != want.Prefix {
			answer.Beside = by.Prefix
		}
	}
	return answer, nil
}

// changeHold does it. It returns what is set of the queue then, the hold, of which At is now, and the one of the same ids that was there before, or nil.
func changeHold(n Node, log *slog.Logger, r *http.Request, queue string, want HoldChange) (set rules.Set, hold, was *rules.Hold, err error) {
	hold = &rules.Hold{ID: want.ID, Prefix: want.Prefix, Why: want.Why, By: who(n, r)}
	lasts, err := want.lasts()
	if err != nil {
		return set, nil, nil, err
	}
	if err := hold.Check(); err != nil {
		return set, nil, nil, err
	}
	change := rules.Change{Action: "hold", Why: want.Why, By: hold.By, If: -1}
	if want.ID != "" {
		change.IDs = []string{want.ID}
	}
	if want.Undo {
		change.Action = "unhold"
	}
	change.Edit = func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
		hold.At = now.UTC().Truncate(time.Millisecond)
		if want.Undo {
			value, old, err := rules.WithoutHold(in, *hold, now)
			if was = old; err != nil || value == nil {
				return nil, []string{"holds"}, err
			}
			return map[string]json.RawMessage{"holds": value}, nil, nil
		}
		if lasts > 0 {
			hold.Until = hold.At.Add(lasts)
		}
		value, old, err := rules.WithHold(in, *hold, now)
		was = old
		return map[string]json.RawMessage{"holds": value}, nil, err
	}
	change.Told = func() (before, after any) {
		if was != nil {
			before = told(was)
		}
		if !want.Undo {
			after = told(hold)
		}
		return before, after
	}
	set, err = rules.In(n.Client().DB()).Change(r.Context(), queue, change)
	switch {
	case errors.Is(err, rules.ErrSame): // it was not held
		err = nil
	case err == nil:
		log.Info("held by hand", "queue", queue, "what", hold.String(), "undo", want.Undo, "until", hold.Until, auth.Sender(r))
	}
	return set, hold, was, err
}

// told is a hold as the line of a change has it, which says itself who, when and why.
func told(h *rules.Hold) map[string]any {
	line := map[string]any{}
	if h.Prefix != "" {
		line["prefix"] = h.Prefix
	} else {
		line["id"] = h.ID
	}
	if !h.Until.IsZero() {
		line["until"] = h.Until.UTC().Truncate(time.Second)
	}
	return line
}

// longestHold is that of all that is set at run time.
const longestHold = 8760 * time.Hour

// lasts is how long it is to be held; 0: until that is undone.
func (c *HoldChange) lasts() (time.Duration, error) {
	switch {
	case c.For == "":
		return 0, nil
	case c.Undo:
		return 0, badField("for", "it is about what is held, not about what is undone")
	}
	d, err := time.ParseDuration(c.For)
	if err != nil || d <= 0 || d > longestHold {
		return 0, badField("for", "got %.40q, want a duration more than 0 and at most %s, as in 2h", c.For, rules.Duration(longestHold))
	}
	return d, nil
}
