package web

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

func (a *api) status(w http.ResponseWriter, r *http.Request) error {
	found, err := a.node.Status(r.Context())
	if err == nil {
		found.Queues, err = a.figures(r.Context())
	}
	if err != nil {
		return err
	}
	found.Warnings, found.Nodes = orEmpty(found.Warnings), orEmpty(found.Nodes)
	return writeJSON(w, found)
}

func (a *api) queues(w http.ResponseWriter, r *http.Request) error {
	all, err := a.figures(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, struct {
		Queues []status.Queue `json:"queues"`
	}{all})
}

// figures reads those of all registered queues, in order of their names.
func (a *api) figures(ctx context.Context) ([]status.Queue, error) {
	handled, err := a.node.Handled(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := a.client.Registry(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]status.Queue, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		stats, err := a.readStats(ctx, name)
		if errors.Is(err, lowkiq.ErrUnknownQueue) || errors.Is(err, queue.ErrEntryDamaged) {
			continue // it was deleted meanwhile, or its entry damaged
		}
		if err != nil {
			return nil, err
		}
		all = append(all, queueOf(name, entries[name], stats, handled))
	}
	return all, nil
}

func (a *api) readStats(ctx context.Context, name string) (queue.Stats, error) {
	q, err := a.client.Queue(ctx, name)
	if err != nil {
		return queue.Stats{}, err
	}
	return q.Stats(ctx)
}

func queueOf(name string, entry queue.Entry, stats queue.Stats, handled status.Handled) status.Queue {
	return status.Queue{
		Name: name, Shards: entry.Shards, Paused: entry.Paused, Unhandled: len(handled.By(name)) == 0, Lag: stats.Lag.Seconds(),
		Jobs: stats.Jobs, Morgue: stats.Morgue, Processed: stats.Processed, Failed: stats.Failed,
		Codec: entry.Codec, Limits: status.Limits(entry.Limits.Effective()),
	}
}

func (a *api) oneQueue(w http.ResponseWriter, r *http.Request) error {
	q, err := a.queue(r)
	if err != nil {
		return err
	}
	entries, err := a.client.Registry(r.Context())
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
	handled, err := a.node.Handled(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, queueOf(q.Name, entry, stats, handled))
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
	entries, err := a.client.Registry(r.Context())
	if err != nil {
		return err
	}
	all := make([]queue.Stats, 0, len(entries))
	byWorker := make(map[string]Figures, len(entries))
	for name := range entries {
		stats, err := a.readStats(r.Context(), name)
		if err != nil {
			return err
		}
		all = append(all, stats)
		byWorker[name] = figuresOf(stats)
	}
	return writeJSON(w, Stats{figuresOf(queue.Sum(all)), byWorker})
}

// RedisServer is one Redis server. The figures are its own; what it does not say is 0 or "".
type RedisServer struct {
	Address          string `json:"address"`
	Version          string `json:"version"`
	Role             string `json:"role"`
	UptimeDays       int    `json:"uptime_in_days"`
	ConnectedClients int    `json:"connected_clients"`
	UsedMemory       int    `json:"used_memory"` // bytes
	UsedMemoryHuman  string `json:"used_memory_human"`
	PeakMemoryHuman  string `json:"used_memory_peak_human"`
	MaxMemory        int    `json:"maxmemory"` // bytes; 0 = no limit
	MaxMemoryPolicy  string `json:"maxmemory_policy"`
}

// Redis are the Redis servers that hold a cluster's jobs.
type Redis struct {
	URL     string        `json:"url"` // hosts, without credentials
	Servers []RedisServer `json:"servers"`
}

// redis answers what Ruby Lowkiq's dashboard says of Redis, per server.
func (a *api) redis(w http.ResponseWriter, r *http.Request) error {
	found, err := a.client.Info(r.Context())
	if err != nil {
		return err
	}
	servers := make([]RedisServer, len(found))
	for i, one := range found {
		f := one.Fields
		number := func(name string) int { n, _ := strconv.Atoi(f[name]); return n }
		servers[i] = RedisServer{
			Address: one.Address, Version: f["redis_version"], Role: f["role"], UptimeDays: number("uptime_in_days"),
			ConnectedClients: number("connected_clients"), UsedMemory: number("used_memory"), UsedMemoryHuman: f["used_memory_human"],
			PeakMemoryHuman: f["used_memory_peak_human"], MaxMemory: number("maxmemory"), MaxMemoryPolicy: f["maxmemory_policy"],
		}
	}
	return writeJSON(w, Redis{a.client.Redis(), servers})
}
