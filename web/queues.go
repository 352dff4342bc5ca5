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
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/auth"
)

func (a *api) status(w http.ResponseWriter, r *http.Request) (any, error) {
	found, err := a.node.Cluster().Status(r.Context())
	if err == nil {
		found.Queues, err = a.figures(r.Context())
	}
	found.Warnings, found.Nodes = orEmpty(found.Warnings), orEmpty(found.Nodes)
	return found, err
}

func (a *api) queues(w http.ResponseWriter, r *http.Request) (any, error) {
	all, err := a.figures(r.Context())
	return Queues{all}, err
}

// figures reads those of all registered queues, in order of their names.
func (a *api) figures(ctx context.Context) ([]status.Queue, error) {
	handled, err := a.node.Cluster().Handled(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := a.client.Registry().Entries(ctx)
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
		all = append(all, queueOf(name, entries[name], a.client.Registry().Limits(name, entries[name]), stats, handled))
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

func queueOf(name string, entry queue.Entry, limits queue.Limits, stats queue.Stats, handled status.Handled) status.Queue {
	return status.Queue{
		Name: name, Shards: entry.Shards, Paused: entry.Paused, Unhandled: len(handled.By(name)) == 0, Lag: stats.Lag.Seconds(),
		Jobs: stats.Jobs, Morgue: stats.Morgue, Processed: stats.Processed, Failed: stats.Failed,
		Codec: entry.Codec, Limits: status.Limits{PayloadBytes: limits.PayloadBytes, Payloads: limits.Payloads, IDPayload: limits.IDPayload},
	}
}

func (a *api) oneQueue(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	entries, err := a.client.Registry().Entries(r.Context())
	if err != nil {
		return nil, err
	}
	entry, ok := entries[q.Name]
	if !ok { // Redis has forgotten it since
		return nil, NewProblem(http.StatusNotFound, "%v %q", lowkiq.ErrUnknownQueue, q.Name)
	}
	stats, err := q.Stats(r.Context())
	if err != nil {
		return nil, err
	}
	handled, err := a.node.Cluster().Handled(r.Context())
	return queueOf(q.Name, entry, a.client.Registry().Limits(q.Name, entry), stats, handled), err
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

// stats answers in the shape of Ruby Lowkiq's /api/v1/stats, where a worker class
// stands for its queue.
func (a *api) stats(w http.ResponseWriter, r *http.Request) (any, error) {
	entries, err := a.client.Registry().Entries(r.Context())
	if err != nil {
		return nil, err
	}
	all := make([]queue.Stats, 0, len(entries))
	byWorker := make(map[string]Figures, len(entries))
	for name := range entries {
		stats, err := a.readStats(r.Context(), name)
		if err != nil {
			return nil, err
		}
		all = append(all, stats)
		byWorker[name] = figuresOf(stats)
	}
	return Stats{figuresOf(queue.Sum(all)), byWorker}, nil
}

// redis answers what Ruby Lowkiq's dashboard says of Redis, per server.
func (a *api) redis(w http.ResponseWriter, r *http.Request) (any, error) {
	found, err := a.client.Info(r.Context())
	if err != nil {
		return nil, err
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
	return Redis{a.client.Redis(), servers}, nil
}

// deleteQueue deletes a queue that no node handles.
func (a *api) deleteQueue(w http.ResponseWriter, r *http.Request) (any, error) {
	name := r.PathValue("q")
	var want Deletion
	if err := a.optional(w, r, &want, `no body, or {"force":true,"dry_run":true}`); err != nil {
		return nil, err
	}
	d := queue.Deletion{Force: want.Force, Handled: func(ctx context.Context) ([]string, error) {
		handled, err := a.node.Cluster().Handled(ctx)
		return handled.By(name), err
	}}
	if want.DryRun {
		had, err := a.client.Registry().Deletable(r.Context(), name, d)
		if err != nil && !errors.Is(err, queue.ErrNotEmpty) {
			return nil, err
		}
		return Deleted{name, false, had.Before, err != nil, had.Jobs, had.Morgue, had.Aside}, nil
	}
	had, err := a.client.Registry().Delete(r.Context(), name, d)
	if err != nil {
		return nil, err
	}
	if !had.Before {
		a.cfg.Log.Info("queue deleted", "queue", name, "force", want.Force, "jobs", had.Jobs, "morgue", had.Morgue, auth.Sender(r))
		WriteDown(a.node, a.cfg.Log, r, changes.Line{Action: "delete queue", Queue: name, Count: had.Jobs + had.Morgue})
	}
	return Deleted{name, true, had.Before, false, had.Jobs, had.Morgue, had.Aside}, nil
}
