package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

func (a *api) status(w http.ResponseWriter, r *http.Request) error {
	status, err := a.cfg.Status(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, status.filled())
}

// filled has lists in place of nil, so that scripts may always walk through them.
func (s Status) filled() Status {
	if s.Warnings == nil {
		s.Warnings = []string{}
	}
	if s.Nodes == nil {
		s.Nodes = []NodeStatus{}
	}
	if s.Queues == nil {
		s.Queues = []QueueStatus{}
	}
	return s
}

func (a *api) queues(w http.ResponseWriter, r *http.Request) error {
	handled, err := a.cfg.Cluster.Handled(r.Context())
	if err != nil {
		return err
	}
	all, err := Queues(r.Context(), a.cfg.Client, handled)
	if err != nil {
		return err
	}
	return writeJSON(w, struct {
		Queues []QueueStatus `json:"queues"`
	}{all})
}

func (a *api) oneQueue(w http.ResponseWriter, r *http.Request) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	entries, err := a.cfg.Client.Registry(r.Context())
	if err != nil {
		return err
	}
	entry, ok := entries[q.Name]
	if !ok { // Redis has forgotten it since
		return newProblem(http.StatusNotFound, "%v %q", lowkiq.ErrUnknownQueue, q.Name)
	}
	stats, err := q.Stats(r.Context())
	if err != nil {
		return err
	}
	handled, err := a.cfg.Cluster.Handled(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, queueStatus(q.Name, entry, stats, handled))
}

// Figures are a queue in the words of Ruby Lowkiq: length, morgue_length and lag
// as its /api/v1/stats has them, the others as its dashboard shows them.
type Figures struct {
	Length       int   `json:"length"`        // ids that wait
	MorgueLength int   `json:"morgue_length"` // ids in the morgue
	Lag          int   `json:"lag"`           // age of the oldest due job, whole seconds
	Processed    int64 `json:"processed"`
	Failed       int64 `json:"failed"`
	Busy         int   `json:"busy"`     // ids in flight
	Enqueued     int   `json:"enqueued"` // fresh + retries = length
	Fresh        int   `json:"fresh"`
	Retries      int   `json:"retries"` // failed: waiting for the next attempt, due or not, or blocked
	Dead         int   `json:"dead"`    // = morgue_length
}

func figuresOf(s queue.Stats) Figures {
	fresh := s.Jobs.Ready + s.Jobs.Scheduled + s.Jobs.Retry - s.Jobs.Failed
	retries := s.Jobs.Failed + s.Jobs.Blocked
	return Figures{
		Length: fresh + retries, Enqueued: fresh + retries, Fresh: fresh, Retries: retries,
		MorgueLength: s.MorgueIDs, Dead: s.MorgueIDs, Lag: int(s.Lag.Seconds()),
		Processed: s.Processed, Failed: s.Failed, Busy: s.Jobs.InFlight,
	}
}

// Stats are the figures of all queues.
type Stats struct {
	Total    Figures            `json:"total"`
	ByWorker map[string]Figures `json:"by_worker"` // by queue
}

// stats answers in the shape of Ruby Lowkiq's /api/v1/stats, where a worker class
// stands for its queue.
func (a *api) stats(w http.ResponseWriter, r *http.Request) error {
	entries, err := a.cfg.Client.Registry(r.Context())
	if err != nil {
		return err
	}
	all := make([]queue.Stats, 0, len(entries))
	byWorker := make(map[string]Figures, len(entries))
	for name := range entries {
		stats, err := readStats(r.Context(), a.cfg.Client, name)
		if err != nil {
			return err
		}
		all = append(all, stats)
		byWorker[name] = figuresOf(stats)
	}
	return writeJSON(w, Stats{figuresOf(queue.Sum(all)), byWorker})
}
