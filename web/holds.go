package web

import (
	"context"
	"net/http"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// Holds are the holds of a queue.
type Holds struct {
	Queue string `json:"queue"`
	Held  int    `json:"held"` // waiting ids that are held
	Holds []Hold `json:"holds"`
}

// Hold keeps an id, or all ids with a prefix, from handlers. Times are unix seconds, by Redis's clock.
type Hold struct {
	ID     string  `json:"id,omitempty" either:"id"`
	Prefix string  `json:"prefix,omitempty" either:"id"` // all ids with this prefix
	By     By      `json:"by"`
	At     float64 `json:"at"`
	Until  float64 `json:"until,omitempty"` // absent if the hold lasts until it is undone
	Why    string  `json:"why,omitempty"`
}

func holdOf(h *rules.Hold) Hold {
	one := Hold{ID: h.ID, Prefix: h.Prefix, By: By(h.By), At: unixSeconds(h.At), Why: h.Why}
	if !h.Until.IsZero() {
		one.Until = unixSeconds(h.Until)
	}
	return one
}

// HoldsOf returns the holds of a queue that are in force.
func HoldsOf(ctx context.Context, c *protocol.Client, name string) ([]rules.Hold, error) {
	set, now, err := rules.In(c.DB()).Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	values, _ := set.Apply(rules.Rules{}, now) // rules that only a later release can read are not needed here
	rules.SortHolds(values.Holds)
	return values.Holds, nil
}

// listHolds answers with the holds of a queue.
func (a *api) listHolds(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
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

const bodyHold = `like {"prefix":"acme:","for":"1h","why":"they move"}`

// changeHold holds an id or a prefix, or undoes that. It names no revision, unlike changeRules, because a hold
// replaces only an earlier hold of the same ids.
func (a *api) changeHold(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	var want actions.HoldChange
	if err := decodeBody(body, &want, bodyHold); err != nil {
		return nil, err
	}
	return a.operator.Hold(r.Context(), auth.Who(r), q, want)
}
