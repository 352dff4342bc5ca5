package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/reshard"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// reshardBody is the page that shows the cost of a reshard and asks for confirmation.
type reshardBody struct {
	actions.Resharding
	Shards               string // the requested number
	Memory, Bytes, Room  string
	Pause                time.Duration
	FromShards, ToShards int
	CancelCalls          bool
}

// reshardQueue shows the cost of a reshard, begins it once it is confirmed, or cancels it.
func (d *Dashboard) reshardQueue(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		back := view{Redirect: "/queues/" + url.PathEscape(q.Name)}
		if form.Get("cancel") != "" {
			_, err := d.operator.CancelReshard(r.Context(), auth.Who(r), q.Name)
			return back, err
		}
		shards, err := strconv.Atoi(strings.TrimSpace(form.Get("shards")))
		if err != nil {
			return view{}, web.NewProblem(http.StatusBadRequest, "shards: %.40q is no number.", form.Get("shards"))
		}
		want := actions.ReshardChange{Shards: shards, CancelCalls: form.Get("cancel_calls") != "", DryRun: form.Get("confirmed") == ""}
		now, err := d.operator.Reshard(r.Context(), auth.Who(r), q.Name, want)
		if err != nil || !want.DryRun || now.Estimate == nil {
			return back, err
		}
		b := reshardBody{Resharding: now, Shards: strconv.Itoa(shards), FromShards: now.From, ToShards: shards, CancelCalls: want.CancelCalls}
		b.Bytes, b.Memory = reshard.FormatBytes(now.Estimate.Bytes), reshard.FormatBytes(now.Estimate.Memory)
		if now.Estimate.Room != nil {
			b.Room = reshard.FormatBytes(*now.Estimate.Room)
		}
		b.Pause = time.Duration(now.Estimate.Pause * float64(time.Second)).Round(time.Second / 10)
		return view{Page: "reshard", Title: "Reshard " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
	})(w, r)
}
