package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

const bodyReshard = `like {"shards":64,"patience":"30s"}`

// beginReshard begins a reshard, or estimates its cost.
func (a *api) beginReshard(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := a.readBody(w, r)
	if err != nil {
		return nil, err
	}
	var want actions.ReshardChange
	if err := decodeBody(body, &want, bodyReshard); err != nil {
		return nil, err
	}
	return a.operator.Reshard(r.Context(), auth.Who(r), r.PathValue("q"), want)
}

// showReshard answers with the progress of a reshard.
func (a *api) showReshard(_ http.ResponseWriter, r *http.Request) (any, error) {
	return actions.ReadReshard(r.Context(), a.client, r.PathValue("q"))
}

// cancelReshard cancels a reshard before its flip.
func (a *api) cancelReshard(_ http.ResponseWriter, r *http.Request) (any, error) {
	return a.operator.CancelReshard(r.Context(), auth.Who(r), r.PathValue("q"))
}
