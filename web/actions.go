package web

import (
	"bytes"
	"context"
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
)

// What a route does to the ids of a queue, or to all it can find.
type (
	actOnIDs = func(*queue.Queue, context.Context, ...string) (int, error)
	actOnAll = func(*queue.Queue, context.Context) (int, error)
)

// selection is the body of an action.
type selection struct {
	IDs       []string `json:"ids"`
	IDsBase64 [][]byte `json:"ids_base64"` // ids that are not UTF-8
	All       *bool    `json:"all"`
}

const (
	wantIDs      = `{"ids":["a","b"]}`
	wantIDsOrAll = `{"ids":["a","b"]} or {"all":true}`
	wantNothing  = `no body, or {}`
)

func (s selection) ids() []string {
	ids := append(make([]string, 0, len(s.IDs)+len(s.IDsBase64)), s.IDs...)
	for _, id := range s.IDsBase64 {
		ids = append(ids, string(id))
	}
	return ids
}

// parseSelection reads a body that names ids. all says that the whole is meant.
func parseSelection(body []byte, allowAll bool) (ids []string, all bool, err error) {
	want := wantIDs
	if allowAll {
		want = wantIDsOrAll
	}
	var s selection
	if err := decodeBody(body, &s, want); err != nil {
		return nil, false, err
	}
	ids = s.ids()
	switch {
	case s.All != nil && !allowAll:
		return nil, false, badField("all", "unknown field; want %s", want)
	case s.All != nil && *s.All && len(ids) > 0:
		return nil, false, badField("all", "ids are named as well; want %s", want)
	case s.All != nil && *s.All:
		return nil, true, nil
	case len(ids) == 0:
		return nil, false, badField("ids", "no id is named; want %s", want)
	}
	return ids, false, nil
}

// onIDs is a route that acts on the ids its body names.
func (a *api) onIDs(name string, act actOnIDs) serveFunc { return a.onIDsOrAll(name, act, nil) }

// onIDsOrAll is a route that acts on the ids its body names, or on all if actAll is
// not nil and the body says so.
func (a *api) onIDsOrAll(name string, act actOnIDs, actAll actOnAll) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, body, err := a.target(w, r)
		if err != nil {
			return err
		}
		ids, all, err := parseSelection(body, actAll != nil)
		if err != nil {
			return err
		}
		var n int
		if all {
			n, err = actAll(q, r.Context())
		} else {
			n, err = act(q, r.Context(), ids...)
		}
		return a.changed(w, name, q, n, err)
	}
}

// onAll is a route that acts on all it finds.
func (a *api) onAll(name string, act actOnAll) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.bareTarget(w, r)
		if err != nil {
			return err
		}
		n, err := act(q, r.Context())
		return a.changed(w, name, q, n, err)
	}
}

// setPaused is a route that pauses a queue, or lets it go on.
func (a *api) setPaused(paused bool) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.bareTarget(w, r)
		if err != nil {
			return err
		}
		set := a.cfg.Client.Resume
		if paused {
			set = a.cfg.Client.Pause
		}
		if err := set(r.Context(), q.Name); err != nil {
			return err
		}
		a.cfg.Log.Info("queue paused or resumed", "queue", q.Name, "paused", paused)
		return writeJSON(w, map[string]any{"queue": q.Name, "paused": paused})
	}
}

// target is the queue and the body of an action.
func (a *api) target(w http.ResponseWriter, r *http.Request) (*queue.Queue, []byte, error) {
	q, err := a.queue(r)
	if err != nil {
		return nil, nil, err
	}
	body, err := a.body(w, r)
	return q, body, err
}

// bareTarget is the queue of an action that needs no body.
func (a *api) bareTarget(w http.ResponseWriter, r *http.Request) (*queue.Queue, error) {
	q, body, err := a.target(w, r)
	if err == nil && len(bytes.TrimSpace(body)) > 0 {
		err = decodeBody(body, &struct{}{}, wantNothing)
	}
	return q, err
}

// changed answers how many ids an action has changed, also when it broke off.
func (a *api) changed(w http.ResponseWriter, action string, q *queue.Queue, n int, err error) error {
	if n > 0 {
		a.cfg.Log.Info("jobs changed by hand", "action", action, "queue", q.Name, "changed", n)
	}
	if err != nil {
		return &partly{changed: n, err: err}
	}
	return writeJSON(w, map[string]int{"changed": n})
}
