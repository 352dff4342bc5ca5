package web

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// note takes what an HTTP endpoint says of a job while it works on it. 409: the job is not its any
// more, so that it may stop.
func (a *api) note(q *queue.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	fence, err := headerNumber(r, "Lowkiq-Fence")
	if err != nil {
		return nil, err
	}
	flight, err := headerNumber(r, "Lowkiq-Flight")
	if err != nil {
		return nil, err
	}
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	var said Note
	if err := decodeBody(body, &said, `{"progress":0.5,"log":"page 12"}`); err != nil {
		return nil, err
	}
	note := queue.Note{Flight: flight, ID: id, Note: lowkiq.Note{Progress: said.Progress, Log: said.Log}}
	if err := note.Check(); err != nil {
		return nil, NewProblem(http.StatusBadRequest, "%v", err)
	}
	err = q.Of(id).Note(r.Context(), fence, note)
	switch {
	case errors.Is(err, lowkiq.ErrEnded), errors.Is(err, lowkiq.ErrFenced):
		return nil, NewProblem(http.StatusConflict, "%v", err)
	case err != nil:
		return nil, err
	}
	return Noted{JobIDOf(id), true}, nil
}

// headerNumber reads a number that each batch has.
func headerNumber(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(r.Header.Get(name), 10, 64)
	if err != nil || n < 1 {
		return 0, badField(name, "got %.40q, want the header of this name that came with the batch", r.Header.Get(name))
	}
	return n, nil
}
