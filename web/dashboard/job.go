package dashboard

import (
	"net/http"
	"net/url"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/web"
)

// jobBody is the page of an id.
type jobBody struct {
	Queue    string
	ID       string
	Shard    int
	Found    bool
	Job      queue.Listed
	Reason   web.Reason
	Payloads []payloadLine
	Hidden   int // payloads that are not shown
	Bytes    int
	Attempts []queue.Attempt
	Deeds    []button
	API      string
	Back     string
	Now      time.Time
}

type payloadLine struct {
	payloadText
	Score float64
}

// Due is when the id becomes due, if it will.
func (b jobBody) Due() (d time.Duration, ok bool) {
	if b.Reason.Due == nil {
		return 0, false
	}
	return time.Duration(*b.Reason.Due * float64(time.Second)), true
}

// Tries is how often the job failed.
func (b jobBody) Tries() int { return b.Job.RetryCount + 1 }

// askedID is the id that a request names, as it is or by its key.
func askedID(values url.Values) (string, error) {
	if values.Has("key") {
		return idOf(values.Get("key"))
	}
	if values.Get("id") == "" {
		return "", refuse(http.StatusBadRequest, "No id is named: want ?id=17.")
	}
	return values.Get("id"), nil
}

func (d *Dashboard) jobPage(r *http.Request) (view, error) {
	q, err := d.queue(r)
	if err != nil {
		return view{}, err
	}
	id, err := askedID(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	b := jobBody{Queue: q.Name, ID: id, Shard: q.Of(id).Index, Back: jobLink(q.Name, id)}
	if b.Job, b.Found, err = q.Job(r.Context(), id); err != nil {
		return view{}, err
	}
	if b.Reason, err = d.cfg.Cluster.Why(r.Context(), q, id); err != nil {
		return view{}, err
	}
	if b.Attempts, err = q.Attempts(r.Context(), id); err != nil {
		return view{}, err
	}
	if b.Now, err = d.cfg.Client.Time(r.Context()); err != nil {
		return view{}, err
	}
	b.fill(web.MayChange(r))
	v := view{Page: "job", Title: showID(id) + " of " + q.Name, Nav: "/", Queue: q.Name, Body: b}
	if !b.Found && len(b.Attempts) == 0 {
		v.Status = http.StatusNotFound
	}
	return v, nil
}

func (b *jobBody) fill(acts bool) {
	for i, p := range b.Job.Payloads {
		b.Bytes += len(p.Data)
		if i < shownPayloads {
			b.Payloads = append(b.Payloads, payloadLine{textOf(p.Data), p.Score})
		}
	}
	b.Hidden = len(b.Job.Payloads) - len(b.Payloads)
	b.API = "/api/v1/queues/" + url.PathEscape(b.Queue) + "/jobs?id=" + url.QueryEscape(b.ID)
	if b.Found && acts {
		b.Deeds = buttonsOf(deedsFor(b.Job))
	}
}

// deedsFor names what can be done to a job where it is.
func deedsFor(job queue.Listed) []string {
	switch job.State {
	case queue.Dead:
		return []string{"requeue", "delete-dead"}
	case queue.Waiting:
		return []string{"unblock", "skip", "bury"}
	case queue.Scheduled, queue.Retrying:
		return []string{"run-now", "kill", "delete"}
	case queue.Ready:
		return []string{"kill", "delete"}
	}
	return nil
}

// search goes to the page of an id.
func (d *Dashboard) search(w http.ResponseWriter, r *http.Request) {
	name, id := r.URL.Query().Get("queue"), r.URL.Query().Get("id")
	if name == "" || id == "" {
		d.fail(w, r, refuse(http.StatusBadRequest, "Name the queue and the id; got queue %.128q, id %.128q.", name, id))
		return
	}
	http.Redirect(w, r, jobLink(name, id), http.StatusSeeOther)
}
