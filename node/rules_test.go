package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/logbuf"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// set changes the rules of the queue at run time.
func (p *producer) set(c rules.Change, values ...string) {
	p.t.Helper()
	c.If = -1
	for i := 0; i+1 < len(values); i += 2 {
		if c.Set == nil {
			c.Set = map[string]json.RawMessage{}
		}
		c.Set[values[i]] = json.RawMessage(values[i+1])
	}
	if _, err := rules.In(p.client.DB()).Change(p.t.Context(), p.Queue.Name, c); err != nil {
		p.t.Fatal(err)
	}
}

// TestAssumedParts checks that parts of a value that the configuration does not set are told from parts that it sets to the
// same value.
func TestAssumedParts(t *testing.T) {
	t.Parallel()
	rate := rules.Rate{N: 600, Per: time.Minute}
	given := func(burst int, most time.Duration) (QueueConfig, rules.Push) {
		limit := rules.Limit{Rate: rate, Burst: burst}
		return QueueConfig{Rules: rules.Rules{Limit: limit, Groups: rules.Groups{By: ":", Limit: limit}}}, rules.Push{Debounce: rules.Debounce{Quiet: 2 * time.Second, Most: most}}
	}
	for want, parts := range map[string]struct {
		burst int
		most  time.Duration
	}{"[burst] [burst] [most]": {}, "[] [] []": {10, 20 * time.Second}} {
		cfg, limits := given(parts.burst, parts.most)
		all := cfg.ruleBases(1, 1, limits)
		if got := fmt.Sprint(all["limit"].Assumed, all["groups"].Assumed, all["debounce"].Assumed); got != want {
			t.Errorf("%+v: assumed are %s, want %s", parts, got, want)
		}
		shown, err := json.Marshal([]any{all["limit"].Value, all["groups"].Value, all["debounce"].Value})
		if whole := `[{"burst":10,"rate":"600/m"},{"burst":10,"by":":","rate":"600/m"},{"most":"20s","quiet":"2s"}]`; err != nil || string(shown) != whole {
			t.Errorf("%+v: got %s, %v, want %s", parts, shown, err, whole)
		}
	}
}

// TestRulesAtRunTime checks that settings are in force with the next renewal, for batches, calls at once and the journal. The
// value of the configuration returns when a setting is removed, or when its time is over.
func TestRulesAtRunTime(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var largest, running, most atomic.Int64
	held := make(chan struct{})
	var hold atomic.Bool
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{BatchSize: 2, Journal: rules.Journal{Runs: rules.JournalNone}}}, func(_ context.Context, b *lowkiq.Batch) error {
		largest.Store(max(largest.Load(), int64(len(b.Jobs))))
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		if hold.Load() {
			<-held
		}
		return nil
	}).serving()
	batch := func() *int {
		n := run.queues.handled["orders"].rulesNow().BatchSize
		return &n
	}
	p.push(numbered("a", 0, 20)...)
	p.drained()
	if largest.Load() > 2 {
		t.Errorf("a batch of %d ids, want 2 at most", largest.Load())
	}
	p.set(rules.Change{}, "batch_size", "7", "shard_concurrency", "3", "tracked", `["b3"]`)
	run.renew()
	await(t, "the rule is in force", func() bool { return *batch() == 7 })
	p.ids("b", 20)
	p.drained()
	if largest.Load() != 7 {
		t.Errorf("batches of %d ids at most, want 7", largest.Load())
	}
	for id, want := range map[string]int{"b3": 1, "b4": 0} {
		if runs, err := browse.Of(p.Queue).Runs(t.Context(), browse.RunQuery{ID: id}); err != nil || len(runs.List) != want {
			t.Errorf("journal of %s: got %d runs, %v, want %d", id, len(runs.List), err, want)
		}
	}
	base := run.Rules("orders")
	if got := fmt.Sprint(base["batch_size"], base["prefetch"]); got != "{2 program []} {100 default []}" || run.Rules("mail") != nil {
		t.Errorf("the configuration's rules: got %+v", base)
	}

	// Calls at once.
	hold.Store(true)
	p.set(rules.Change{}, "batch_size", "1", "concurrency", "2")
	run.renew()
	await(t, "the rule is in force", func() bool { return *batch() == 1 })
	most.Store(0)
	p.ids("c", 6)
	await(t, "two calls", func() bool { return running.Load() == 2 })
	hold.Store(false)
	close(held)
	p.drained()
	if most.Load() != 2 {
		t.Errorf("%d calls at once, want 2", most.Load())
	}

	p.set(rules.Change{Unset: []string{"batch_size", "concurrency", "shard_concurrency", "tracked"}})
	run.renew()
	await(t, "the configuration holds again", func() bool { return *batch() == 2 })
	for of, seen := time.Second, false; !seen; of *= 3 { // a second may be over before the node knows
		if of > patience {
			t.Fatal("a rule for a while is not in force")
		}
		p.set(rules.Change{For: of}, "batch_size", "9")
		run.renew()
		seen = *batch() == 9
	}
	await(t, "its time is over", func() bool { run.renew(); return *batch() == 2 })
}

// TestPriorityWithoutItsScheduler checks that a priority without scheduler lag has no effect, and that this is reported. With
// the scheduler it is in force.
func TestPriorityWithoutItsScheduler(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	var log lines
	run := start(t, Config{Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}, QueueConfig{Shards: 1, Rules: rules.Rules{Scheduler: rules.Seq}}, func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	now := func() string {
		run.renew()
		of := run.queues.handled["orders"].rulesNow()
		return fmt.Sprintf("%d %s %d", of.BatchSize, of.Scheduler, of.Priority)
	}
	in := func(want string) {
		t.Helper()
		await(t, "in force is "+want, func() bool { return now() == want })
	}
	p.set(rules.Change{}, "priority", "3", "batch_size", "2")
	in("2 seq 0")
	logbuf.Flush(run.cfg.Log, patience)
	if !log.has("level=ERROR", "left out", "priority: it is 3 and counts as 0, as the scheduler is seq") {
		t.Errorf("nothing is said of it:\n%s", log.String())
	}
	p.set(rules.Change{}, "scheduler", `"lag"`)
	in("2 lag 3")
	p.set(rules.Change{For: time.Second}, "scheduler", `"lag"`)
	in("2 seq 0") // its time is over
	p.set(rules.Change{}, "scheduler", `"lag"`)
	in("2 lag 3")
	p.set(rules.Change{Unset: []string{"scheduler"}})
	in("2 seq 0")
}

// TestRulesAreParsedWhenTheyChange checks that renewals parse no settings that have not changed and do not end.
func TestRulesAreParsedWhenTheyChange(t *testing.T) {
	srv := redistest.Start(t)
	n, err := New(Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(QueueConfig{Name: "orders"}, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil })); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	n.queues.parseRules(rules.Page{Queues: map[string]string{"orders": fmt.Sprintf(`{"rev":1,"set":{"batch_size":{"value":7,"until":%q}}}`, now.Add(time.Hour).Format(time.RFC3339))}})
	n.queues.applyDueSettings(now)
	if allocs := testing.AllocsPerRun(10, func() { n.queues.applyDueSettings(now.Add(time.Minute)) }); allocs > 0 {
		t.Errorf("settings that have not changed: %g allocations", allocs)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{time.Minute, 7}, {2 * time.Hour, 1}} {
		n.queues.applyDueSettings(now.Add(c.after))
		if got := n.queues.handled["orders"].rulesNow().BatchSize; got != c.want {
			t.Errorf("after %s: batch_size is %d, want %d", c.after, got, c.want)
		}
	}
}

// TestRulesBeforeStart checks that a node that starts uses the settings from its first pop on.
func TestRulesBeforeStart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.set(rules.Change{}, "batch_size", "5", "max_crashes", "0", "handler_timeout", `"1m"`, "exhausted", `"block"`, "journal", `{"keep":7}`, "retry_in", `["3s"]`, "state", `"1h"`)
	p.ids("a", 20)
	var largest atomic.Int64
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1}, func(_ context.Context, b *lowkiq.Batch) error {
		largest.Store(max(largest.Load(), int64(len(b.Jobs))))
		return nil
	}).serving()
	p.drained()
	if largest.Load() != 5 {
		t.Errorf("batches of %d ids at most, want 5", largest.Load())
	}
	now := run.queues.handled["orders"].rulesNow()
	got := fmt.Sprint(now.BatchSize, now.MaxCrashes, now.HandlerTimeout, now.Exhausted, now.Journal, now.RetryIn.Delay(0), now.State)
	if want := fmt.Sprint(5, -1, time.Minute, protocol.Block, rules.Journal{Runs: rules.JournalAll, Keep: 7}, 3*time.Second, time.Duration(0)); got != want {
		t.Errorf("got %s, want %s: whether there are states is the configuration's", got, want)
	}
}

// TestLimitsAtRunTime checks that settings for limits of pushes take the place of the configuration's, for the node's own
// client and for others.
func TestLimitsAtRunTime(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	run := start(t, Config{Redis: srv.URL()}, QueueConfig{Shards: 1, Rules: rules.Rules{Push: rules.Push{PayloadBytes: 4 << 10}}}, func(context.Context, *lowkiq.Batch) error { return nil }).serving()
	push := func(c *protocol.Client, size int) error {
		_, err := c.Push(t.Context(), "orders", lowkiq.Push{ID: "a", Payload: []byte(strings.Repeat("x", size))})
		return err
	}
	if err := push(run.Client().Protocol(), 5<<10); !errors.Is(err, protocol.ErrPayloadSize) {
		t.Fatalf("5 KiB by the configuration: got %v, want that it is refused", err)
	}
	p.set(rules.Change{}, "max_payload_size", `"8KiB"`)
	run.renew()
	await(t, "the limit is higher", func() bool { return push(run.Client().Protocol(), 5<<10) == nil })
	if err := push(run.Client().Protocol(), 9<<10); !errors.Is(err, protocol.ErrPayloadSize) {
		t.Errorf("9 KiB: got %v, want that it is refused", err)
	}
	// A program that knows the queue already asks again beside its pushes, within 10 s.
	if err := push(p.client, 3<<10); err != nil {
		t.Fatal(err)
	}
	p.set(rules.Change{}, "max_payload_size", `"2KiB"`)
	await(t, "the limit holds in a program", func() bool { return errors.Is(push(p.client, 3<<10), protocol.ErrPayloadSize) })
}

// TestRulesOfADeletedQueue checks that settings of a deleted queue do not hold for a queue that is registered anew with its
// name.
func TestRulesOfADeletedQueue(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := open(t, srv.URL(), 1)
	p.set(rules.Change{}, "batch_size", "5")
	if _, err := remove.Delete(t.Context(), p.client, "orders", remove.Deletion{Handled: func(context.Context) ([]string, error) { return nil, nil }}); err != nil {
		t.Fatal(err)
	}
	if set, _, err := rules.In(p.client.DB()).Queue(t.Context(), "orders"); err != nil || set.Rev != 0 {
		t.Errorf("got %+v, %v, want none", set, err)
	}
}

// TestRulesThatCannotBeRead checks that a node starts and works by its configuration if the settings cannot be read.
func TestRulesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(ctx context.Context, c *protocol.Client) error{
		"another type": func(ctx context.Context, c *protocol.Client) error {
			return c.DB().ForTests().Set(ctx, c.DB().Keys.Rules(), "x", 0).Err()
		},
		"no value": func(ctx context.Context, c *protocol.Client) error {
			return c.DB().ForTests().HSet(ctx, c.DB().Keys.Rules(), "#", 1, "orders", `{"rev":1,"set":{"journal":{}}}`).Err()
		},
		"no JSON": func(ctx context.Context, c *protocol.Client) error {
			return c.DB().ForTests().HSet(ctx, c.DB().Keys.Rules(), "#", 1, "orders", "{").Err()
		},
		"an unknown key": func(ctx context.Context, c *protocol.Client) error {
			return c.DB().ForTests().HSet(ctx, c.DB().Keys.Rules(), "#", 1, "orders", `{"rev":1,"set":{"colour":{"value":1},"batch_size":{"value":3}}}`).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			p := open(t, srv.URL(), 1)
			if err := spoil(t.Context(), p.client); err != nil {
				t.Fatal(err)
			}
			var log lines
			run := start(t, Config{Redis: srv.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))}, QueueConfig{Shards: 1, Rules: rules.Rules{BatchSize: 2}}, func(context.Context, *lowkiq.Batch) error { return nil }).serving()
			p.ids("a", 10)
			p.drained()
			want := 2
			if name == "an unknown key" {
				want = 3 // the others hold
			}
			if got := run.queues.handled["orders"].rulesNow().BatchSize; got != want {
				t.Errorf("batch size: got %d, want %d", got, want)
			}
			for range 3 {
				run.renew()
			}
			logbuf.Flush(run.cfg.Log, patience)
			words := "settings cannot be read"
			if name == "an unknown key" || name == "no value" { // the other settings of the queue could hold
				words = "settings are left out"
			}
			if n := strings.Count(log.String(), words); n != 1 || !log.has("level=ERROR", words) {
				t.Errorf("it is logged %d times, want once:\n%s", n, log.String())
			}
		})
	}
}
