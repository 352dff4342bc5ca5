package web

import (
	"net/http"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

// list is a route that lists jobs.
func (a *api) list(lists Lists) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.queue(r)
		if err != nil {
			return err
		}
		query, err := lists.Query(r.URL.Query())
		if err != nil {
			return err
		}
		if err := accountOf(r).take(int64(query.Limit) * bytesOfRow); err != nil {
			return err
		}
		page, err := q.Page(r.Context(), query)
		if err != nil {
			return err
		}
		writePage(w, page)
		return nil
	}
}

// jobs lists jobs, or shows one if the query names it.
func (a *api) jobs(w http.ResponseWriter, r *http.Request) error {
	id, ok, err := askedID(r.URL.Query())
	if err != nil {
		return err
	}
	if ok {
		return a.showJob(w, r, id)
	}
	return a.list(jobLists)(w, r)
}

func (a *api) oneJob(w http.ResponseWriter, r *http.Request) error {
	return a.showJob(w, r, r.PathValue("id"))
}

func (a *api) showJob(w http.ResponseWriter, r *http.Request, id string) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	if err := accountOf(r).take(bytesOfOne); err != nil {
		return err
	}
	job, ok, err := q.Job(r.Context(), id)
	if err != nil {
		return err
	}
	if !ok {
		return noJob(q, id)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(appendListed(nil, job), '\n'))
	return nil
}

func writePage(w http.ResponseWriter, page queue.Page) {
	body := append(make([]byte, 0, 4096), `{"jobs":[`...)
	for i, job := range page.Jobs {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendPaged(body, job)
	}
	body = append(body, `],"more":`...)
	body = strconv.AppendBool(body, page.Next != "")
	body = append(body, `,"next":"`...)
	body = append(body, page.Next...) // base64
	body = append(body, `","examined":`...)
	body = strconv.AppendInt(body, int64(page.Examined), 10)
	body = append(body, `,"ordered":`...)
	body = append(strconv.AppendBool(body, page.Ordered), "}\n"...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// appendPaged appends a job of a page, and how much there is of what the page has cut.
func appendPaged(dst []byte, job queue.Listed) []byte {
	dst = appendListed(dst, job)
	dst = append(dst[:len(dst)-1], `,"payload_count":`...)
	dst = strconv.AppendInt(dst, int64(job.Count), 10)
	dst = append(dst, `,"payload_bytes":`...)
	dst = strconv.AppendInt(dst, int64(job.Bytes), 10)
	dst = append(dst, `,"cut":`...)
	return append(strconv.AppendBool(dst, job.Cut), '}')
}

// appendListed appends a job as package wire writes it, and where it is.
func appendListed(dst []byte, listed queue.Listed) []byte {
	job := listed.Job
	if listed.State == queue.Dead {
		job.PerformAt = time.Time{} // it is the time of the burial, see below
	}
	dst = wire.AppendJob(dst, &job)
	dst = append(dst[:len(dst)-1], `,"state":"`...)
	dst = append(dst, listed.State...)
	dst = append(dst, `","shard":`...)
	dst = strconv.AppendInt(dst, int64(listed.Shard), 10)
	switch listed.State {
	case queue.InFlight:
		dst = append(dst, `,"flight":`...)
		dst = strconv.AppendInt(dst, listed.Flight, 10)
		dst = append(dst, `,"parked":`...)
		dst = strconv.AppendInt(dst, int64(listed.Parked), 10)
		dst = append(dst, `,"since":`...)
		dst = strconv.AppendFloat(dst, float64(listed.Since.UnixMicro())/1e6, 'f', -1, 64)
	case queue.Dead:
		dst = append(dst, `,"buried_at":`...)
		dst = strconv.AppendFloat(dst, float64(listed.PerformAt.UnixMicro())/1e6, 'f', -1, 64)
	}
	return append(dst, '}')
}
