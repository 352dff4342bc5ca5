package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// arrivals has the payloads that a handler got, by id, in the order of the calls.
type arrivals struct {
	mu  sync.Mutex
	all map[string][]lowkiq.Payload // guarded by mu
}

func (a *arrivals) add(batch *lowkiq.Batch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[string][]lowkiq.Payload{}
	}
	for _, job := range batch.Jobs {
		a.all[job.ID] = append(a.all[job.ID], job.Payloads...)
	}
}

func (a *arrivals) handle(_ context.Context, batch *lowkiq.Batch) error { a.add(batch); return nil }

// of returns the payloads of an id as text.
func (a *arrivals) of(id string) (texts []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.all[id] {
		texts = append(texts, string(p.Data))
	}
	return texts
}

// header returns a header of the first payload of an id.
func (a *arrivals) header(id, name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all[id]) == 0 {
		return ""
	}
	return a.all[id][0].Header.Get(name)
}

func (a *arrivals) count() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, payloads := range a.all {
		n += len(payloads)
	}
	return n
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// countOutgoing returns the number of waiting follow-ups of a queue.
func (r *running) countOutgoing(name string) int {
	r.t.Helper()
	q, err := r.client.Queue(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	stats, err := q.Stats(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return stats.Outgoing
}

// TestFollowUps checks that each follow-up of an answer arrives once, and that the follow-ups from an id to an id arrive in
// order. Queues have a codec or none, and are handled here or nowhere.
func TestFollowUps(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var mail arrivals
	const n = 300
	sealed := queue.Codec{Name: "xor", Encode: xor, Decode: xor}
	node := startQueues(t, Config{Name: "n1", Redis: srv.URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "orders", Shards: 3, Rules: rules.Rules{BatchSize: 10}}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
				for _, job := range batch.Jobs {
					for _, p := range job.Payloads {
						batch.Answer(job.ID).Then("mail", lowkiq.Push{ID: "to-" + job.ID, Payload: p.Data}).Then("later", lowkiq.Push{ID: job.ID, Payload: p.Data})
					}
				}
				return nil
			}))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "mail", Shards: 2, Codec: sealed, Rules: rules.Rules{BatchSize: 7}}, lowkiq.HandlerFunc(mail.handle))
		})
	if _, err := node.client.Register(t.Context(), lowkiq.Queue{Name: "later", Shards: 2}); err != nil {
		t.Fatal(err)
	}
	node.serving()
	for i := range n {
		var jobs []lowkiq.Push
		for _, id := range []string{"a", "b", "c"} {
			jobs = append(jobs, lowkiq.Push{ID: id, Payload: fmt.Append(nil, i)})
		}
		if _, err := node.client.Push(t.Context(), "orders", jobs...); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "all mail", func() bool { return mail.count() >= 3*n })
	await(t, "no follow-up is left", func() bool { return node.countOutgoing("orders") == 0 })
	for _, id := range []string{"a", "b", "c"} {
		if got := mail.of("to-" + id); !slices.Equal(got, numbers(n)) {
			t.Errorf("mail of %s: got %d payloads %v, want %d in order", id, len(got), got, n)
		}
	}
	if got := mail.header("to-a", "hops"); got != "1" {
		t.Errorf("got hops %q, want 1", got)
	}
	later, err := node.client.Queue(t.Context(), "later")
	if err != nil {
		t.Fatal(err)
	}
	stats, err := later.Stats(t.Context())
	if err != nil || stats.Jobs.Ready != 3 {
		t.Errorf("a queue without a node: got %d ids, %v, want 3", stats.Jobs.Ready, err)
	}
}

func xor(data []byte) ([]byte, error) {
	out := slices.Clone(data)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out, nil
}

// TestFollowUpsAreSealed checks that the payload of a follow-up lies in Redis in the codec of its queue from the start, and
// that a queue whose codec is not here fails the batch.
func TestFollowUpsAreSealed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	other, err := queue.Open(queue.Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.SetRules("vault", queue.PushRules{Codec: queue.Codec{Name: "xor", Encode: xor, Decode: xor}}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Register(t.Context(), lowkiq.Queue{Name: "vault", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	node := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, func(_ context.Context, batch *lowkiq.Batch) error {
		batch.Answer(batch.Jobs[0].ID).Then("vault", lowkiq.Push{ID: "a", Payload: []byte("secret")})
		return nil
	})
	if err := node.producer.SetRules("vault", queue.PushRules{Codec: queue.Codec{Name: "xor", Encode: xor, Decode: xor}}); err != nil {
		t.Fatal(err)
	}
	node.serving()
	vault, err := node.client.Queue(t.Context(), "vault")
	if err != nil {
		t.Fatal(err)
	}
	// A full shard of the target keeps the follow-up where it can be seen.
	full := vault.Shard(0).Keys().Jobs
	if err := node.client.DB().ForTests().Set(t.Context(), full, "not a hash", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := node.client.Push(t.Context(), "orders", lowkiq.Push{ID: "x"}); err != nil {
		t.Fatal(err)
	}
	await(t, "the follow-up waits", func() bool { return node.countOutgoing("orders") == 1 })
	orders, err := node.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	dump, err := node.client.DB().ForTests().XRange(t.Context(), orders.Shard(0).Keys().Out, "-", "+").Result()
	if err != nil || strings.Contains(fmt.Sprint(dump), "secret") {
		t.Errorf("got %v, %v, want no bare payload at rest", dump, err)
	}
	await(t, "the lease says so", func() bool {
		node.renew()
		return strings.Contains(string(node.working().leaseText()), `"outgoing":{"orders":"follow-up `)
	})
	if err := node.client.DB().ForTests().Del(t.Context(), full).Err(); err != nil {
		t.Fatal(err)
	}
	await(t, "it is delivered", func() bool { return node.countOutgoing("orders") == 0 })
	await(t, "the lease is clean", func() bool { return !strings.Contains(string(node.working().leaseText()), `"outgoing"`) })
}

// TestFollowUpsFail checks the ends of jobs whose follow-ups cannot be stored.
func TestFollowUpsFail(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []lowkiq.FollowUp
	node := start(t, Config{Redis: redistest.Start(t).URL()}, QueueConfig{Shards: 1}, func(_ context.Context, batch *lowkiq.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range asked {
			batch.Answer(batch.Jobs[0].ID).Then(one.Queue, one.Push)
		}
		return nil
	})
	node.serving()
	many := make([]lowkiq.FollowUp, lowkiq.MaxFollowUps+1)
	for i := range many {
		many[i] = lowkiq.FollowUp{Queue: "orders", Push: lowkiq.Push{ID: "b"}}
	}
	for name, c := range map[string]struct {
		then []lowkiq.FollowUp
		want string
	}{
		"unknown": {[]lowkiq.FollowUp{{Queue: "ordres", Push: lowkiq.Push{ID: "b"}}}, `follow-up to queue "ordres": unknown queue "ordres"`},
		"no-id":   {[]lowkiq.FollowUp{{Queue: "orders"}}, "job id is empty"},
		"many":    {many, "it has 1001 follow-ups, at most 1000 are allowed"},
		"large": {[]lowkiq.FollowUp{
			{Queue: "orders", Push: lowkiq.Push{ID: "b", Payload: make([]byte, 600<<10)}}, {Queue: "orders", Push: lowkiq.Push{ID: "c", Payload: make([]byte, 600<<10)}},
		}, "its follow-ups are 1228"},
		"urgent": {[]lowkiq.FollowUp{{Queue: "orders", Push: lowkiq.Push{ID: "b", Urgent: true}}}, "must not be urgent"},
	} {
		mu.Lock()
		asked = c.then
		mu.Unlock()
		if _, err := node.client.Push(t.Context(), "orders", lowkiq.Push{ID: name}); err != nil {
			t.Fatal(err)
		}
		q, err := node.client.Queue(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		var found browse.Listed
		await(t, name+" fails", func() bool {
			found, _, err = browse.Of(q).Job(t.Context(), name)
			return err == nil && found.State == browse.StateRetry
		})
		if !strings.Contains(found.Error, c.want) {
			t.Errorf("%s: got %q, want %q in it", name, found.Error, c.want)
		}
	}
	if got := node.countOutgoing("orders"); got != 0 {
		t.Errorf("got %d follow-ups of failed jobs, want none", got)
	}
}

// TestLoopOfFollowUpsEnds checks that a loop ends after 100 follow-ups in the morgue of its queue, by an answer and by the
// rule.
func TestLoopOfFollowUpsEnds(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var asked, ruled arrivals
	node := startQueues(t, Config{Name: "n1", Redis: srv.URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "asked", Shards: 1}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
				asked.add(batch)
				batch.Answer("a").Then("asked", lowkiq.Push{ID: "a"})
				return nil
			}))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "ruled", Shards: 1, Rules: rules.Rules{Then: rules.Then{Done: "ruled"}}}, lowkiq.HandlerFunc(ruled.handle))
		})
	node.serving()
	for name, got := range map[string]*arrivals{"asked": &asked, "ruled": &ruled} {
		if _, err := node.client.Push(t.Context(), name, lowkiq.Push{ID: "a"}); err != nil {
			t.Fatal(err)
		}
		q, err := node.client.Queue(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		var found browse.Listed
		await(t, "the end of the loop", func() bool {
			list, err := browse.Of(q).Page(t.Context(), browse.Query{State: browse.StateMorgue})
			if err != nil || len(list.Jobs) == 0 {
				return false
			}
			found = list.Jobs[0]
			return true
		})
		if !strings.Contains(found.Error, protocol.ErrHops.Error()) || got.count() != lowkiq.MaxHops+1 {
			t.Errorf("%s: got %d runs, error %q, want %d runs and %v", name, got.count(), found.Error, lowkiq.MaxHops+1, protocol.ErrHops)
		}
	}
}

// TestRuleThen checks that the rule passes payloads on when they are done, buried or expired, with its change at run time.
func TestRuleThen(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var billing, alerts arrivals
	codec := queue.Codec{Name: "xor", Encode: xor, Decode: xor}
	bad := errors.New("no stock")
	node := startQueues(t, Config{Name: "n1", Redis: srv.URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "orders", Shards: 2, Codec: codec, Rules: rules.Rules{MaxRetryCount: -1, Exhausted: rules.Policy("bury"), Then: rules.Then{Done: "billing", Dead: "alerts"}}},
				lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
					if strings.HasPrefix(batch.Jobs[0].ID, "bad") {
						return bad
					}
					return nil
				}))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "billing", Shards: 1}, lowkiq.HandlerFunc(billing.handle))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "alerts", Shards: 1}, lowkiq.HandlerFunc(alerts.handle))
		})
	node.serving()
	push := func(id, payload string, header map[string]string) {
		t.Helper()
		if _, err := node.client.Push(t.Context(), "orders", lowkiq.Push{ID: id, Payload: []byte(payload), Header: header}); err != nil {
			t.Fatal(err)
		}
	}
	push("good", "1", map[string]string{"tag": "vip"})
	push("bad", "2", map[string]string{"expires": "2099-01-01T00:00:00Z"})
	push("bad-late", "3", map[string]string{"expires": "2001-10-01T00:00:00Z"})
	await(t, "follow-ups", func() bool { return billing.count() == 1 && alerts.count() == 2 })
	for what, c := range map[string]struct{ got, want string }{
		"done":         {fmt.Sprint(billing.of("good"), billing.header("good", "tag"), billing.header("good", "ended"), billing.header("good", "hops")), "[1]vipdone1"},
		"buried":       {fmt.Sprint(alerts.of("bad"), alerts.header("bad", "ended"), alerts.header("bad", "error"), alerts.header("bad", "expires")), "[2]buriedno stock"},
		"late, buried": {fmt.Sprint(alerts.of("bad-late"), alerts.header("bad-late", "ended")), "[3]buried"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", what, c.got, c.want)
		}
	}
	// A person buries a payload, with a rule that was changed meanwhile.
	book := rules.In(node.client.DB())
	if _, err := book.Change(t.Context(), "orders", rules.Change{Set: map[string]json.RawMessage{"then": json.RawMessage(`{"dead":"billing"}`)}, If: -1}); err != nil {
		t.Fatal(err)
	}
	node.renew()
	q, err := node.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the changed rule in each shard", func() bool {
		for _, s := range q.All() {
			if node.client.DB().ForTests().HGet(t.Context(), s.Keys().Count, "then").Val() != "billing" {
				return false
			}
		}
		return true
	})
	if _, err := node.client.Push(t.Context(), "orders", lowkiq.Push{ID: "person", Payload: []byte("4"), PerformAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if n, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, "person"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	await(t, "the buried payload", func() bool { return len(billing.of("person")) == 1 })
	push("good2", "5", nil)
	await(t, "the done job", func() bool { stats, err := q.Stats(t.Context()); return err == nil && stats.Jobs.Total() == 0 })
	if got := billing.of("good2"); got != nil {
		t.Errorf("got %v after the rule for done jobs was taken away", got)
	}
}

// TestFollowUpsSurvive checks that nothing is lost, doubled or out of order while nodes and Redis end again and again.
func TestFollowUpsSurvive(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	srv := redistest.Start(t, redistest.Durable...)
	var got arrivals
	const ids, n = 5, 60
	begin := func(name string) *running {
		return startQueues(t, Config{Name: name, Redis: srv.URL(), TTL: shortTTL, Bind: "127.0.0.1:0"},
			func(n *Node) error {
				return n.Handle(QueueConfig{Name: "orders", Shards: 3}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
					job := batch.Jobs[0]
					for _, p := range job.Payloads {
						batch.Answer(job.ID).Then("ledger", lowkiq.Push{ID: job.ID, Payload: p.Data})
					}
					return nil
				}))
			})
	}
	ledger := startQueues(t, Config{Name: "ledger", Redis: srv.URL()}, func(n *Node) error {
		return n.Handle(QueueConfig{Name: "ledger", Shards: 2, Rules: rules.Rules{State: time.Hour}}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
			// The state is exact, whatever the handler sees twice.
			job := batch.Jobs[0]
			state := string(job.State)
			for _, p := range job.Payloads {
				state += string(p.Data) + " "
			}
			batch.Answer(job.ID).State([]byte(state))
			got.add(&lowkiq.Batch{Jobs: []lowkiq.Job{{ID: job.ID, Payloads: []lowkiq.Payload{{Data: []byte(state)}}}}})
			return nil
		}))
	})
	one, other := begin("one"), begin("other")
	other.serving()
	for i := range n {
		for id := range ids {
			for {
				if _, err := ledger.client.Push(t.Context(), "orders", lowkiq.Push{ID: fmt.Sprint(id), Payload: fmt.Append(nil, i)}); err == nil {
					break
				}
			}
		}
		switch i % 20 {
		case 7:
			one.stop()
			one = begin("one")
		case 13:
			one.working() // a node that does not find its Redis when it starts ends
			srv.Restart()
		}
	}
	var want strings.Builder
	for i := range n {
		fmt.Fprint(&want, i, " ")
	}
	await(t, "all payloads", func() bool {
		for id := range ids {
			all := got.of(fmt.Sprint(id))
			if len(all) == 0 || len(all[len(all)-1]) < want.Len() {
				return false
			}
		}
		return true
	})
	for id := range ids {
		all := got.of(fmt.Sprint(id))
		if all[len(all)-1] != want.String() {
			t.Errorf("id %d: got %s, want %s", id, all[len(all)-1], want.String())
		}
	}
	await(t, "no follow-up is left", func() bool { return ledger.countOutgoing("orders") == 0 })
}

// TestFollowUpsOfAnUnhandledQueue checks that follow-ups leave the shards of a queue that no node handles.
func TestFollowUpsOfAnUnhandledQueue(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	node := start(t, Config{Redis: srv.URL(), TTL: shortTTL}, QueueConfig{Name: "mail", Shards: 1}, func(context.Context, *lowkiq.Batch) error { return nil })
	q, err := node.client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range q.All() {
		if err := node.client.DB().ForTests().HSet(t.Context(), s.Keys().Count, "then", "mail").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: "a"}, lowkiq.Push{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	if n, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, "a", "b"); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if got := node.countOutgoing("orders"); got != 2 {
		t.Fatalf("got %d follow-ups, want 2", got)
	}
	await(t, "the follow-ups leave", func() bool { return node.countOutgoing("orders") == 0 })
	mail, err := node.client.Queue(t.Context(), "mail")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "both are handled", func() bool { stats, err := mail.Stats(t.Context()); return err == nil && stats.Processed == 2 })
}

// TestRefusedFollowUps checks that a follow-up that its queue will never take holds nothing up. Payloads of the rule dead are
// in the morgue of their queue anyway.
func TestRefusedFollowUps(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var alerts arrivals
	var log lines
	picky := func(_ string, next queue.Pusher) queue.Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
			switch string(jobs[0].Payload) {
			case "dropped":
				return make([]queue.Result, len(jobs)), nil
			case "doubled":
				results, err := next(ctx, append(jobs, jobs...))
				return results[:len(jobs)], err
			case "refused":
				return make([]queue.Result, len(jobs)), errors.New("not today")
			case "panics":
				panic("no such payload")
			}
			return next(ctx, jobs)
		}
	}
	encode := func(data []byte) ([]byte, error) {
		if string(data) == "no code" {
			return nil, errors.New("no code for it")
		}
		return xor(data)
	}
	decode := func(data []byte) ([]byte, error) {
		if string(data) == "garbled" {
			return nil, errors.New("it is garbled")
		}
		return data, nil
	}
	same := func(data []byte) ([]byte, error) { return data, nil }
	node := startQueues(t, Config{Name: "n1", Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "orders", Shards: 1, Codec: queue.Codec{Name: "same", Encode: same, Decode: decode}, Rules: rules.Rules{Then: rules.Then{Dead: "alerts"}}},
				lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "alerts", Shards: 1, Codec: queue.Codec{Name: "xor", Encode: encode, Decode: xor}, PushMiddlewares: []queue.Middleware{picky},
				Rules: rules.Rules{Push: rules.Push{PayloadBytes: 2000}}}, lowkiq.HandlerFunc(alerts.handle))
		})
	node.serving()
	bad := []string{"dropped", "doubled", "refused", "panics", "no code", "garbled", strings.Repeat("large", 1000)}
	var jobs []lowkiq.Push
	for i, payload := range append(slices.Clone(bad), "good") {
		jobs = append(jobs, lowkiq.Push{ID: fmt.Sprint("id", i), Payload: []byte(payload), PerformAt: time.Now().Add(time.Hour)})
	}
	q, err := node.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Push(t.Context(), jobs...); err != nil {
		t.Fatal(err)
	}
	for _, job := range jobs {
		if n, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, job.ID); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	await(t, "the good payload", func() bool { return len(alerts.of(jobs[len(bad)].ID)) == 1 })
	await(t, "no follow-up is left", func() bool { return node.countOutgoing("orders") == 0 })
	if got := alerts.count(); got != 1 {
		t.Errorf("got %d payloads, want 1", got)
	}
	page, err := browse.Of(q).Page(t.Context(), browse.Query{State: browse.StateMorgue})
	if err != nil || len(page.Jobs) != len(jobs) {
		t.Errorf("got %d jobs in the morgue, %v, want %d", len(page.Jobs), err, len(jobs))
	}
	for reason, want := range map[string]float64{"size": 1, "invalid": 6} {
		if got := total(t, []*running{node}, "lowkiq_outgoing_refused_total", "orders", reason); got != want {
			t.Errorf("refused for %s: got %v, want %v", reason, got, want)
		}
	}
	for _, want := range []string{"a middleware made 0 jobs of it", "5034 bytes, at most 2000 are allowed"} { // the first of each reason
		if !strings.Contains(log.String(), want) {
			t.Errorf("got no %q in the log %s", want, log.String())
		}
	}
}

// TestUnknownQueuesOfThen checks that the log at the start and the status warn of mistyped queues in the rule then, until the
// queues are registered.
func TestUnknownQueuesOfThen(t *testing.T) {
	t.Parallel()
	var log lines
	run := startQueues(t, Config{Name: "n1", Redis: redistest.Start(t).URL(), Log: slog.New(slog.NewTextHandler(&log, nil))},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "orders", Shards: 1, Rules: rules.Rules{Then: rules.Then{Done: "biling", Dead: "alerts"}}}, lowkiq.HandlerFunc(nothing))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "billing", Shards: 1}, lowkiq.HandlerFunc(nothing))
		}).serving()
	const done = `the rule then.done of queue orders names queue "biling", which is not registered; until it is, its jobs fail and are retried; did you mean "billing"?`
	const dead = `the rule then.dead of queue orders names queue "alerts", which is not registered; until it is, its dead payloads wait`
	if !run.warned(done) || !run.warned(dead) || !strings.Contains(log.String(), "then.done of queue orders") {
		known, err := run.Cluster().Status(t.Context())
		t.Errorf("got %q, %v, and the log %s", known.Warnings, err, log.String())
	}
	if _, err := run.Client().Register(t.Context(), lowkiq.Queue{Name: "biling", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	if run.warned("then.done of queue orders") {
		t.Error("got a warning of a queue that is registered")
	}
}

// TestUnreadableQueuesAreRegistered checks that neither the log at the start nor the status calls a queue unregistered, only
// because its entry is damaged or of a later release.
func TestUnreadableQueuesAreRegistered(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	register(t, srv.Addr(), "alerts", `{"shards":2,"layout":1`)
	register(t, srv.Addr(), "billing", `{"shards":2,"layout":1,"needs":["fmt2"]}`)
	var log lines
	ticks := map[string]recurring.Spec{
		"a": {Every: recurring.Duration(time.Hour), Queue: "alerts"}, "b": {Every: recurring.Duration(time.Hour), Queue: "billing"},
	}
	run := startQueues(t, Config{Redis: srv.URL(), Recurring: ticks, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(n *Node) error {
		return n.Handle(QueueConfig{Name: "orders", Shards: 1, Rules: rules.Rules{Then: rules.Then{Done: "billing", Dead: "alerts"}}}, lowkiq.HandlerFunc(nothing))
	}).serving()
	if run.warned("which is not registered") || log.has("which is not registered") {
		known, err := run.Cluster().Status(t.Context())
		t.Errorf("got %q, %v, and the log %s", known.Warnings, err, log.String())
	}
}

// TestThenDoneTooLarge checks that a payload that the queue of the rule then cannot get is buried with the reason. Its
// handler runs once, so nothing is lost or done twice.
func TestThenDoneTooLarge(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	node := startQueues(t, Config{Name: "n1", Redis: redistest.Start(t).URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "orders", Shards: 1, Rules: rules.Rules{Then: rules.Then{Done: "billing"}}},
				lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { runs.Add(1); return nil }))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "billing", Shards: 1, Rules: rules.Rules{Push: rules.Push{PayloadBytes: 1024}}}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
		})
	node.serving()
	if _, err := node.client.Push(t.Context(), "orders", lowkiq.Push{ID: "a", Payload: make([]byte, 1020)}); err != nil {
		t.Fatal(err)
	}
	q, err := node.client.Queue(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var found browse.Listed
	await(t, "the job in the morgue", func() bool {
		found, _, err = browse.Of(q).Job(t.Context(), "a")
		return err == nil && found.State == browse.StateMorgue
	})
	const want = `the rule then cannot pass a payload on: follow-up to queue "billing": bad follow-up: job "a": payload is too large: 1052 bytes, at most 1024 are allowed`
	if found.Error != want || runs.Load() != 1 || len(found.Payloads) != 1 || len(found.Payloads[0].Data) != 1020 {
		t.Errorf("got %d runs, %d payloads, error %q, want 1 run, 1 payload, %q", runs.Load(), len(found.Payloads), found.Error, want)
	}
}
