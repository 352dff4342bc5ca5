package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// What the registry says of a queue's payloads holds for every client that pushes: the codec in
// which they are stored, by its name, and the limits. So a program that does not know of them
// stores nothing in another form, or beyond them.

// ErrCodec: the queue's payloads are stored in a codec that this client does not have, or without
// the one it has.
var ErrCodec = errors.New("payloads of the queue are stored in another form")

// Limits of what waits in a queue, and what a push does to it. They are in the registry, and hold for every client that pushes;
// 0 is the default.
type Limits struct {
	PayloadBytes int `json:"payload_bytes,omitempty"` // longest payload as stored, bytes. Default 1 MiB
	Payloads     int `json:"id_payloads,omitempty"`   // most payloads waiting for one id. Default 10,000
	IDPayload    int `json:"id_bytes,omitempty"`      // most bytes of payloads waiting for one id. Default 16 MiB

	Coalesce string         `json:"coalesce,omitempty"` // as package rules has it; "": rules.CoalesceAll
	Debounce rules.Debounce `json:"debounce,omitzero"`
}

// The highest limits.
const (
	MostPayloadBytes = 16 << 20
	MostPayloads     = 1_000_000
	MostIDPayload    = 1 << 30
)

// validate says what is wrong with limits.
func (l Limits) validate() error {
	for _, of := range []struct {
		name       string
		value, max int
	}{{"bytes of a payload", l.PayloadBytes, MostPayloadBytes}, {"payloads of an id", l.Payloads, MostPayloads}, {"bytes of an id's payloads", l.IDPayload, MostIDPayload}} {
		if of.value < 0 || of.value > of.max {
			return fmt.Errorf("payload limits: most %s are %d, want 1 to %d", of.name, of.value, of.max)
		}
	}
	if !slices.Contains([]string{"", rules.CoalesceAll, rules.CoalesceLatest, rules.CoalesceOnce}, l.Coalesce) {
		return fmt.Errorf("coalesce: got %q, want all, latest or once", l.Coalesce)
	}
	return l.Debounce.Check()
}

// with are the limits of a queue for a client that has some of its own: the stricter ones.
func (l Limits) with(own Limits) Limits {
	set := func(of, own, otherwise int) int {
		if of == 0 {
			of = otherwise
		}
		if own == 0 {
			return of
		}
		return min(of, own)
	}
	return Limits{
		set(l.PayloadBytes, own.PayloadBytes, lowkiq.MaxPayloadBytes),
		set(l.Payloads, own.Payloads, lowkiq.MaxPayloads),
		set(l.IDPayload, own.IDPayload, lowkiq.MaxIDPayload),
		cmp.Or(own.Coalesce, l.Coalesce), cmp.Or(own.Debounce, l.Debounce).WithDefaults(),
	}
}

// Effective are the limits that hold for pushes of a client that has none of its own: those of the
// registry, and the defaults of others.
func (l Limits) Effective() Limits { return l.with(Limits{}) }

// or are these limits where they are set, and other ones where they are not.
func (l Limits) or(other Limits) Limits {
	return Limits{
		cmp.Or(l.PayloadBytes, other.PayloadBytes), cmp.Or(l.Payloads, other.Payloads), cmp.Or(l.IDPayload, other.IDPayload),
		cmp.Or(l.Coalesce, other.Coalesce), cmp.Or(l.Debounce, other.Debounce),
	}
}

// LimitsOf are the limits of values that were set at run time.
func LimitsOf(v rules.Values) Limits {
	number := func(n *int) int {
		if n == nil {
			return 0
		}
		return *n
	}
	l := Limits{PayloadBytes: number(v.PayloadBytes), Payloads: number(v.Payloads), IDPayload: number(v.IDBytes)}
	if v.Coalesce != nil {
		l.Coalesce = *v.Coalesce
	}
	if v.Debounce != nil {
		l.Debounce = v.Debounce.WithDefaults()
	}
	return l
}

// SetLimits takes in the limits of a queue that are set at run time, for the pushes of this process: they take the
// place of all others.
func (g *Registry) SetLimits(queue string, live Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setLimits(queue, live)
}

func (g *Registry) setLimits(queue string, live Limits) {
	if g.live[queue] == live {
		return
	}
	g.live[queue] = live
	if live == (Limits{}) {
		delete(g.live, queue)
	}
	if q := g.queues[queue]; q != nil {
		q.obey(g.rules[queue])
	}
}

// Limits are those that hold for pushes to a queue of this entry, as far as this process has read what is set at run
// time.
func (g *Registry) Limits(queue string, entry Entry) Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live[queue].or(entry.Limits).Effective()
}

// limits are those that rules name.
func (r *PushRules) limits() Limits {
	return Limits{r.PayloadBytes, r.Payloads, r.IDPayload, r.Coalesce, r.Debounce}
}

// Stores says whether payloads in the form of a codec, by its name, are what the queue stores:
// ErrCodec if not.
func (e Entry) Stores(queue, codec string) error {
	switch {
	case e.Codec == codec:
		return nil
	case e.Codec == "":
		return fmt.Errorf("queue %q: %w: as they are pushed, not in codec %q: it becomes so once a node starts that handles the queue with this codec, or by queue.Registry.Publish",
			queue, ErrCodec, codec)
	case codec == "":
		return fmt.Errorf("queue %q: %w: codec %q, which is not here: push through a node that handles the queue (lowkiq-node push --node URL), or give this program the codec (queue.Client.SetRules, node.QueueConfig.Push)",
			queue, ErrCodec, e.Codec)
	}
	return fmt.Errorf("queue %q: %w: codec %q, not %q: a queue keeps its codec; one that reads more than one form has one name", queue, ErrCodec, e.Codec, codec)
}

// Pushable says why this client may not push to the queue; nil if it may.
func (q *Queue) Pushable() error {
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.refuses(q.registry.rules[q.Name])
}

// Storing is how payloads are stored now: codec and limits; an error says why this client may store none.
func (q *Queue) Storing(ctx context.Context) (PushRules, error) {
	q.look(ctx)
	if err := q.Pushable(); err != nil {
		return PushRules{}, err
	}
	return *q.rules.Load(), nil
}

// Codec is the name of the codec in which payloads are stored, "" if they are stored as they are pushed.
func (q *Queue) Codec() string {
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	return q.entry.Codec
}

// refuses says why pushes by rules are refused as a whole. The caller holds g.mu.
func (q *Queue) refuses(r PushRules) error {
	if q.damage != nil {
		return q.damage
	}
	if err := q.entry.Readable(q.Name); err != nil {
		return err
	}
	if q.entry.Removed || q.entry.Layout != q.layout { // one that is being deleted may be given up: its marks decide
		return fmt.Errorf("%w %q: %w", lowkiq.ErrUnknownQueue, q.Name, &markError{})
	}
	if q.entry.Shards != q.Shards {
		return fmt.Errorf("queue %q: %w: it is registered anew, with %d shards; open it again", q.Name, lowkiq.ErrShardCount, q.entry.Shards)
	}
	return q.entry.Stores(q.Name, r.Codec.Name)
}

// refused answers every job of a push with the same reason.
func refused(reason error) Pusher {
	return func(_ context.Context, jobs []lowkiq.Push) ([]Result, error) {
		results := make([]Result, len(jobs))
		for i := range results {
			results[i].Err = reason
		}
		return results, firstError(results)
	}
}

// Publish writes the codec's name and the limits of this client's rules for a registered queue into
// the registry, where they hold for every client that pushes. A node does so when it starts, for
// the queues that it handles. Limits that the rules do not name stay as they are. A queue without a
// codec gets one by this, whose Decode must be able to read what waits; a codec is never replaced:
// ErrCodec.
//
// A client that has the queue already learns of it within 10 s of pushing.
func (g *Registry) Publish(ctx context.Context, queue string) error {
	rules := g.rulesOf(queue)
	if rules.Codec.Name == "" && rules.limits() == (Limits{}) { // nothing to write
		q, err := g.queue(ctx, queue)
		if err != nil {
			return err
		}
		return q.Pushable()
	}
	return g.rewrite(ctx, queue, func(e *Entry) error {
		if err := e.Readable(queue); err != nil {
			return err
		}
		if e.Codec == "" {
			e.Codec = rules.Codec.Name
		}
		set := func(field *int, value int) {
			if value != 0 {
				*field = value
			}
		}
		set(&e.PayloadBytes, rules.PayloadBytes)
		set(&e.Payloads, rules.Payloads)
		set(&e.IDPayload, rules.IDPayload)
		e.Coalesce, e.Debounce = cmp.Or(rules.Coalesce, e.Coalesce), cmp.Or(rules.Debounce, e.Debounce)
		return e.Stores(queue, rules.Codec.Name)
	})
}

func (g *Registry) rulesOf(queue string) PushRules {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rules[queue]
}

// saw takes in an entry that was just read, or why it could not be.
func (g *Registry) saw(name string, entry Entry, damage error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[name]
	switch {
	case q == nil:
	case damage != nil:
		q.refuse(damage)
	default:
		q.learn(entry)
	}
}

// refuse has the queue's pushes refused until its entry can be read again. The caller holds g.mu.
func (q *Queue) refuse(damage error) {
	q.damage = damage
	q.obey(q.registry.rules[q.Name])
}

// learn makes the queue's pushes go by an entry. The caller holds g.mu.
func (q *Queue) learn(entry Entry) {
	was, damaged := q.entry, q.damage != nil
	q.entry, q.damage = entry, nil
	if damaged || was.Codec != entry.Codec || was.Limits != entry.Limits || was.Removed != entry.Removed || was.Shards != entry.Shards || was.Layout != entry.Layout || !slices.Equal(was.Needs, entry.Needs) {
		q.obey(q.registry.rules[q.Name])
	}
}

// lookEvery is how often a program that pushes asks whether what holds for the queue has changed: a change holds after lookLate. lookPatience
// is how long a push waits for that if it is the first one for longer.
const (
	lookEvery    = 9 * time.Second
	lookLate     = 10 * time.Second
	lookPatience = time.Second
)

// look reads the queue's entry anew if it was last read a while ago: beside the push, or before it if there was no push for so long that
// what is known may not hold any more. What goes wrong is left to the push itself.
func (q *Queue) look(ctx context.Context) {
	now, last := int64(time.Since(q.made)), q.looked.Load()
	age := time.Duration(now - last)
	if age < lookEvery || !q.looked.CompareAndSwap(last, now) {
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		ctx, cancel := context.WithTimeout(context.Background(), q.registry.cfg.Timeout)
		defer cancel()
		q.read(ctx) //nolint:errcheck // said above
	}()
	if age < lookLate {
		return
	}
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	select {
	case <-read:
	case <-patience.C:
	case <-ctx.Done():
	}
}

// read takes in what the registry says of the queue now. One that Redis has lost stays as it was.
func (q *Queue) read(ctx context.Context) error {
	keys := q.registry.db.Keys
	replies, err := q.registry.db.Pipeline(ctx, "read the queue registry",
		redisdb.Cmd{"HGET", keys.Queues(), q.Name}, redisdb.Cmd{"HGET", keys.Rules(), q.Name}, redisdb.Cmd{"TIME"})
	if len(replies) != 3 || replies[0] == nil {
		return err
	}
	if _, failed := replies[0].(error); failed {
		return err
	}
	live, readable := liveLimits(q.Name, replies[1], replies[2])
	entry, err := q.registry.parse(q.Name, redisdb.Text(replies[0]))
	q.registry.mu.Lock()
	defer q.registry.mu.Unlock()
	if readable {
		q.registry.setLimits(q.Name, live)
	}
	if err != nil {
		q.refuse(err)
		return err
	}
	q.learn(entry)
	return nil
}

// liveLimits reads the limits that are set at run time from what Redis has answered about rules and time. Without an answer that can be
// read (what stands there may be of another type, say) those that are known hold on.
func liveLimits(queue string, set, clock any) (live Limits, readable bool) {
	now, err := redisdb.Clock(clock)
	if _, failed := set.(error); failed || err != nil {
		return live, false
	}
	all, err := rules.Parse(queue, redisdb.Text(set))
	if err != nil {
		return live, false
	}
	values, _ := all.Values(now) // what this release cannot read does not hold here
	return LimitsOf(values), true
}

// readLive takes in the limits that are set at run time of a queue that this process does not have yet: one that pushes once goes by them,
// too. What goes wrong leaves the entry's in force, until a push has asked again.
func (g *Registry) readLive(ctx context.Context, queue string) {
	g.mu.Lock()
	known := g.queues[queue] != nil
	g.mu.Unlock()
	if known {
		return
	}
	replies, _ := g.db.Pipeline(ctx, "read rules", redisdb.Cmd{"HGET", g.db.Keys.Rules(), queue}, redisdb.Cmd{"TIME"})
	if len(replies) != 2 {
		return
	}
	if live, readable := liveLimits(queue, replies[0], replies[1]); readable {
		g.SetLimits(queue, live)
	}
}

// mayNeed says whether an entry may get what it needs beyond what it needed: nothing is written
// that a live process cannot read, so every lease must list it. A process that comes later reads
// the entry before it touches the queue's jobs.
func (g *Registry) mayNeed(ctx context.Context, queue string, was, needs []string) error {
	fresh := slices.DeleteFunc(slices.Clone(needs), func(f string) bool { return slices.Contains(was, f) })
	if len(fresh) == 0 {
		return nil
	}
	instances, err := lease.In(g.db).All(ctx)
	if err != nil {
		return err
	}
	for _, of := range instances {
		if of.Lease == nil {
			continue
		}
		var says struct {
			Features []string `json:"features"`
		}
		if err := json.Unmarshal(of.Lease, &says); err != nil {
			return fmt.Errorf("queue %q: the lease of %s says not what it reads: %w", queue, of.Name, err)
		}
		for _, feature := range fresh {
			if !slices.Contains(says.Features, feature) {
				return fmt.Errorf("queue %q: %s does not read %s, which the queue would need: run the new release on every node first", queue, of.Name, feature)
			}
		}
	}
	return nil
}
