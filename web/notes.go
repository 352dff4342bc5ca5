package web

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// storeNote stores a note of an HTTP endpoint that works on a job. Any node takes it, because fence and flight
// show Redis that the sender has the job. Redis refuses them once the flight has ended or the shard has
// another owner, so a late note cannot touch a later run. The answer 409 tells the endpoint that the job is no
// longer its own, so that it may stop.
func (a *api) storeNote(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("id")
	fence, err := headerNumber(r, "Lowkiq-Fence")
	if err != nil {
		return nil, err
	}
	flight, err := headerNumber(r, "Lowkiq-Flight")
	if err != nil {
		return nil, err
	}
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	var said Note
	if err := decodeBody(body, &said, `like {"progress":0.5,"log":"page 12"}`); err != nil {
		return nil, err
	}
	note := protocol.Note{Flight: flight, ID: id, Note: lowkiq.Note{Progress: said.Progress, Log: said.Log}}
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

// headerNumber reads a header that came with the batch.
func headerNumber(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(r.Header.Get(name), 10, 64)
	if err != nil || n < 1 {
		return 0, badField(name, "got %.40q, must be the header of this name that came with the batch", r.Header.Get(name))
	}
	return n, nil
}
