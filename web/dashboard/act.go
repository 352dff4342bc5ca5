package dashboard

import (
	"context"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// Bounds of one request that acts on a list: then it says what is left.
const (
	actTime = 2 * time.Second // no further step is begun after it
	actMost = 30 * time.Second
)

// act does what an order asks for, and sends the browser to a page that says how it went:
// reloading that page repeats nothing.
func (d *Dashboard) act(w http.ResponseWriter, r *http.Request) {
	o, err := d.order(w, r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actMost)
	defer cancel()
	result := d.do(ctx, o)
	d.cfg.Log.Info("done by hand", "action", o.name, "queue", result.Queue, "node", o.Node, "changed", result.Changed, "left", result.Left, "err", result.Err, web.Sender(r))
	token, err := d.results.seal(result)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	http.Redirect(w, r, "/results/"+token, http.StatusSeeOther)
}

func (d *Dashboard) do(ctx context.Context, o order) result {
	res := result{Deed: o.name, Done: o.done, Danger: o.danger, Back: o.Back, Kind: o.Kind, Node: o.Node, SoFar: o.SoFar}
	if o.Queue != nil {
		res.Queue = o.Queue.Name
	}
	switch {
	case o.drain != nil:
		res.Instance, res.Err = d.cfg.Cluster.Drain(ctx, o.Node, *o.drain)
		res.Sentence = map[bool]string{true: "heard it, and gives its shards away.", false: "heard it, and may own shards again."}[*o.drain]
	case o.paused != nil && *o.paused:
		res.Err = d.cfg.Client.Pause(ctx, o.Queue.Name)
		res.Sentence = "is paused. Nodes see it with their next lease renewal, within a second or two."
	case o.paused != nil:
		res.Err = d.cfg.Client.Resume(ctx, o.Queue.Name)
		res.Sentence = "goes on. Nodes see it with their next lease renewal, within a second or two."
	case o.some != nil:
		res.Changed, res.Err = o.some(o.Queue, ctx, o.IDs...)
		res.Asked, res.Jobs = len(o.IDs), true
	default:
		res.bulk(ctx, o)
	}
	if res.Err != nil {
		res.Trouble = d.explain(res.Err)
	}
	return res
}

// bulk works through a list until it ends or the time of one request is over.
func (res *result) bulk(ctx context.Context, o order) {
	res.Jobs = true
	q := o.query(o.Kind)
	q.Cursor = o.Cursor
	for began := time.Now(); ; {
		var step queue.Step
		step, res.Err = o.Queue.Bulk(ctx, o.all, q)
		res.Changed, res.Skipped = res.Changed+step.Changed, res.Skipped+step.Skipped
		if step.Next != "" {
			q.Cursor = step.Next
		}
		res.Cursor, res.Left = step.Next, step.Left
		if step.Next == "" || res.Err != nil || time.Since(began) > actTime {
			return
		}
	}
}

// resultPage says how an order went.
func (d *Dashboard) resultPage(r *http.Request) (view, error) {
	res, ok := d.results.open(r.PathValue("token"))
	if !ok {
		return view{}, refuse(http.StatusNotFound, "This node cannot read this result: it is older than %s, or was made with another token. What was done is done; look at the queue.", resultLife)
	}
	if !web.MayChange(r) {
		res.Cursor = "" // no button to go on
	}
	return view{Page: "result", Title: "Result", Nav: res.Back, Queue: res.Queue, Body: res}, nil
}
