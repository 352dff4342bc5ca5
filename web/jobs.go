package web

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/wire"
)

// maxExamined is how many jobs are looked at for a list that keeps only some of them.
// A list that gives up there says that there may be more.
const maxExamined = 16_000

// list is a route that lists jobs of one kind.
func (a *api) list(k kind) serveFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := a.queue(r)
		if err != nil {
			return err
		}
		l, err := parseListing(r.URL.Query(), k)
		if err != nil {
			return err
		}
		jobs, more, err := l.fetch(r.Context(), q)
		if err != nil {
			return err
		}
		writeJobs(w, jobs, more)
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
	return a.list(jobsKind)(w, r)
}

func (a *api) oneJob(w http.ResponseWriter, r *http.Request) error {
	return a.showJob(w, r, r.PathValue("id"))
}

func (a *api) showJob(w http.ResponseWriter, r *http.Request, id string) error {
	q, err := a.queue(r)
	if err != nil {
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

// fetch reads the list, and whether there is more than its limit.
func (l listing) fetch(ctx context.Context, q *queue.Queue) (jobs []queue.Listed, more bool, err error) {
	r := l.Range
	r.Limit++
	examinedAll := true
	switch {
	case l.state == queue.Retrying && l.by == byRetries:
		jobs, err = q.ByRetry(ctx, r)
	case l.state == queue.Retrying:
		jobs, err = l.sorted(ctx, q.ByRetry)
	case l.state == queue.InFlight:
		jobs, err = l.sorted(ctx, q.InFlight)
	case l.state == queue.Waiting && l.by == byDue:
		jobs, err = q.BlockedJobs(ctx, r)
	case l.state == queue.Waiting:
		jobs, err = l.sorted(ctx, q.BlockedJobs)
	case l.state == queue.Dead && l.by == byTime:
		jobs, err = q.Morgue(ctx, r)
	case l.state == queue.Dead:
		jobs, err = morgueByID(ctx, q.Morgue, r)
	case l.by == byID:
		jobs, examinedAll, err = narrow(ctx, q.ByID, r, l.state)
	default:
		jobs, examinedAll, err = narrow(ctx, q.ByTime, r, l.state)
	}
	if len(jobs) > l.Limit {
		return jobs[:l.Limit], true, err
	}
	return jobs, !examinedAll, err
}

// lister is a list of package queue.
type lister = func(context.Context, queue.Range) ([]queue.Listed, error)

// narrow keeps the jobs of one state from a list of several, asking for more until it
// has enough. It reports whether there are no others.
func narrow(ctx context.Context, list lister, r queue.Range, state queue.State) (kept []queue.Listed, all bool, err error) {
	want := r.Limit
	for {
		jobs, err := list(ctx, r)
		if err != nil {
			return nil, false, err
		}
		complete := len(jobs) < r.Limit
		kept = slices.DeleteFunc(jobs, func(job queue.Listed) bool { return state != "" && job.State != state })
		if complete || len(kept) >= want || r.Limit >= maxExamined {
			return kept[:min(len(kept), want)], complete, nil
		}
		r.Limit = min(4*r.Limit, maxExamined)
	}
}

// sorted reads a whole list and sorts it as asked: lists of what failed, is in flight or
// is blocked are short, or have no order of their own but one.
func (l listing) sorted(ctx context.Context, list lister) ([]queue.Listed, error) {
	r := l.Range
	r.Limit, r.Reverse = math.MaxInt32, false
	jobs, err := list(ctx, r)
	slices.SortFunc(jobs, func(x, y queue.Listed) int {
		if l.Reverse {
			x, y = y, x
		}
		return compare(l.by, x, y)
	})
	return jobs[:min(len(jobs), l.Limit+1)], err
}

func compare(by order, x, y queue.Listed) int {
	switch by {
	case byDue, byTime:
		return cmp.Or(x.PerformAt.Compare(y.PerformAt), strings.Compare(x.ID, y.ID))
	case byRetries:
		return cmp.Or(cmp.Compare(x.RetryCount, y.RetryCount), x.PerformAt.Compare(y.PerformAt), strings.Compare(x.ID, y.ID))
	}
	return strings.Compare(x.ID, y.ID)
}

// morgueByID walks through the whole morgue, which is kept in order of time, in steps,
// and keeps the first of the list by id.
func morgueByID(ctx context.Context, list lister, r queue.Range) ([]queue.Listed, error) {
	first := map[string]queue.Listed{} // the best so far; the steps overlap
	step := queue.Range{Limit: maxLimit}
	for {
		jobs, err := list(ctx, step)
		if err != nil {
			return nil, err
		}
		for _, job := range jobs {
			if job.ID >= r.MinID && (r.MaxID == "" || job.ID <= r.MaxID) {
				first[job.ID] = job
			}
		}
		best := bestByID(first, r)
		if len(jobs) < step.Limit {
			return best, nil
		}
		first = make(map[string]queue.Listed, len(best))
		for _, job := range best {
			first[job.ID] = job
		}
		step = nextStep(step, jobs[len(jobs)-1].PerformAt)
	}
}

// nextStep begins where the last one ended; if it did not get beyond one instant, it
// takes more at once.
func nextStep(step queue.Range, last time.Time) queue.Range {
	if last.Equal(step.MinTime) {
		step.Limit *= 2
	}
	step.MinTime = last
	return step
}

func bestByID(jobs map[string]queue.Listed, r queue.Range) []queue.Listed {
	best := make([]queue.Listed, 0, len(jobs))
	for _, job := range jobs {
		best = append(best, job)
	}
	slices.SortFunc(best, func(x, y queue.Listed) int {
		if r.Reverse {
			x, y = y, x
		}
		return strings.Compare(x.ID, y.ID)
	})
	return best[:min(len(best), r.Limit)]
}

func writeJobs(w http.ResponseWriter, jobs []queue.Listed, more bool) {
	body := append(make([]byte, 0, 4096), `{"jobs":[`...)
	for i, job := range jobs {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendListed(body, job)
	}
	body = append(body, `],"more":`...)
	body = append(strconv.AppendBool(body, more), "}\n"...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
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
	case queue.Dead:
		dst = append(dst, `,"buried_at":`...)
		dst = strconv.AppendFloat(dst, float64(listed.PerformAt.UnixMicro())/1e6, 'f', -1, 64)
	}
	return append(dst, '}')
}
