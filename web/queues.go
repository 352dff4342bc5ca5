package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web/auth"
)

func (a *api) showStatus(w http.ResponseWriter, r *http.Request) (any, error) {
	found, err := a.cfg.Cluster.Status(r.Context())
	if err == nil {
		found.Queues, err = a.readFigures(r.Context())
	}
	found.Warnings, found.Nodes = orEmpty(found.Warnings), orEmpty(found.Nodes)
	return found, err
}

func (a *api) listQueues(w http.ResponseWriter, r *http.Request) (any, error) {
	all, err := a.readFigures(r.Context())
	return Queues{all}, err
}

// readFigures reads the figures of all registered queues, in the order of their names.
func (a *api) readFigures(ctx context.Context) ([]status.Queue, error) {
	handled, err := a.cfg.Cluster.Handled(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := a.client.Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	reshards, err := status.ReadReshards(ctx, a.client, entries)
	if err != nil {
		return nil, err
	}
	all := make([]status.Queue, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		stats, err := a.readStats(ctx, name)
		if errors.Is(err, lowkiq.ErrUnknownQueue) || errors.Is(err, protocol.ErrEntryDamaged) {
			continue // it was deleted meanwhile, or its entry is damaged
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a.queueOf(name, entries[name], a.client.Registry().Limits(name, entries[name]), stats, handled, reshards[name]))
	}
	return all, nil
}

// readStats reads the figures of a queue's shards.
func (a *api) readStats(ctx context.Context, name string) ([]protocol.Stats, error) {
	q, err := a.client.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	return a.client.Stats(ctx, q.All()...)
}

func (a *api) queueOf(name string, entry protocol.RegistryEntry, limits rules.Push, shards []protocol.Stats, handled status.Handled, reshard *status.Reshard) status.Queue {
	stats := protocol.Sum(shards)
	facts := status.QueueFacts{Name: name, Paused: entry.Paused, Redis: a.cfg.Cluster.RedisRefuses(), Full: a.cfg.Cluster.RedisFull(), Handled: handled, Shards: shards, Reshard: reshard}
	return status.Queue{
		Name: name, Shards: entry.Shards, Paused: entry.Paused, Unhandled: len(handled.By(name)) == 0, Lag: stats.Lag.Seconds(),
		Jobs: stats.Jobs, Morgue: stats.Morgue, Outgoing: stats.Outgoing, Processed: stats.Processed, Failed: stats.Failed,
		Codec: entry.Codec, Limits: status.Limits{PayloadBytes: limits.PayloadBytes, Payloads: limits.Payloads, IDPayload: limits.IDPayload},
		Causes: facts.Causes(), Reshard: reshard,
	}
}

func (a *api) showQueue(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	entries, err := a.client.Registry().Entries(r.Context())
	if err != nil {
		return nil, err
	}
	entry, ok := entries[q.Name]
	if !ok { // Redis has forgotten it since
		return nil, NewProblem(http.StatusNotFound, "%v %q", lowkiq.ErrUnknownQueue, q.Name)
	}
	stats, err := a.client.Stats(r.Context(), q.All()...)
	if err != nil {
		return nil, err
	}
	reshard, err := status.ReadReshard(r.Context(), a.client, q.Name, entry)
	if err != nil {
		return nil, err
	}
	handled, err := a.cfg.Cluster.Handled(r.Context())
	return a.queueOf(q.Name, entry, a.client.Registry().Limits(q.Name, entry), stats, handled, reshard), err
}

func figuresOf(s protocol.Stats) Figures {
	fresh := s.Jobs.Ready + s.Jobs.Scheduled + s.Jobs.Retry - s.Jobs.Failed
	retries := s.Jobs.Failed + s.Jobs.Blocked
	return Figures{
		Length: fresh + retries, Enqueued: fresh + retries, Fresh: fresh, Retries: retries,
		MorgueLength: s.MorgueIDs, Dead: s.MorgueIDs, Lag: int(s.Lag.Seconds()),
		Processed: s.Processed, Failed: s.Failed, Busy: s.Jobs.InFlight,
	}
}

// showStats answers in the form of Ruby Lowkiq's /api/v1/stats, which names a worker class for each queue.
func (a *api) showStats(w http.ResponseWriter, r *http.Request) (any, error) {
	entries, err := a.client.Registry().Entries(r.Context())
	if err != nil {
		return nil, err
	}
	all := make([]protocol.Stats, 0, len(entries))
	byWorker := make(map[string]Figures, len(entries))
	for name := range entries {
		shards, err := a.readStats(r.Context(), name)
		if err != nil {
			return nil, err
		}
		all = append(all, shards...)
		byWorker[name] = figuresOf(protocol.Sum(shards))
	}
	return Stats{figuresOf(protocol.Sum(all)), byWorker}, nil
}

// showRedis answers with the figures of each Redis server that Ruby Lowkiq's dashboard shows.
func (a *api) showRedis(w http.ResponseWriter, r *http.Request) (any, error) {
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
	if err := a.readOptionalBody(w, r, &want, `empty, or {"force":true,"dry_run":true}`); err != nil {
		return nil, err
	}
	had, err := a.operator.DeleteQueue(r.Context(), auth.Who(r), name, want.Force, want.DryRun)
	needsForce := want.DryRun && errors.Is(err, remove.ErrNotEmpty)
	if err != nil && !needsForce {
		return nil, err
	}
	answer := Deleted{name, !want.DryRun, had.Before, needsForce, had.Jobs, had.Morgue, had.Aside, had.Outgoing, nil}
	if want.DryRun {
		answer.NeededBy, err = a.findNeeds(r.Context(), name)
		return answer, err
	}
	return answer, nil
}

// findNeeds returns a sentence for each rule then of this node's queues, and for each recurring entry, that pushes to a queue.
func (a *api) findNeeds(ctx context.Context, name string) (needs []string, err error) {
	then := a.node.Then()
	for _, q := range slices.Sorted(maps.Keys(then)) {
		if q != name && then[q].Done == name {
			needs = append(needs, fmt.Sprintf("the rule then.done of queue %s passes payloads to it", q))
		}
		if q != name && then[q].Dead == name {
			needs = append(needs, fmt.Sprintf("the rule then.dead of queue %s passes payloads to it", q))
		}
	}
	entries, err := recurring.Of(a.client).List(ctx)
	for _, e := range entries {
		if e.Queue == name {
			needs = append(needs, fmt.Sprintf("the recurring entry %s pushes to it", e.Name))
		}
	}
	return needs, err
}
