package reshard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
)

// world is a Redis with a client.
type world struct {
	*testing.T
	url    string
	client *protocol.Client
}

func newWorld(t *testing.T) *world {
	r := &world{T: t, url: redistest.Start(t).URL()}
	r.client = r.open()
	return r
}

func (r *world) open() *protocol.Client {
	r.Helper()
	c, err := protocol.Open(protocol.Config{Redis: r.url, Timeout: time.Minute})
	r.must(err)
	r.Cleanup(func() { c.Close() })
	return c
}

func (r *world) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// driver returns a driver that drives at once.
func (r *world) driver(c *protocol.Client) *Driver {
	return &Driver{
		Client: c, Leads: func() bool { return true }, Entries: c.Registry().Entries, By: changes.Itself("n1"), Log: slog.New(slog.DiscardHandler),
		Failed: func(op string, err error) {
			if !errors.Is(err, errKilled) {
				r.Logf("%s: %v", op, err)
			}
		},
	}
}

// drive drives a reshard to its end, which must come within a minute.
func (r *world) drive(d *Driver, name string) {
	r.Helper()
	ctx, stop := context.WithTimeout(r.Context(), time.Minute)
	defer stop()
	if d.Drive(ctx, name); ctx.Err() != nil && r.Context().Err() == nil {
		r.Errorf("the reshard of %s does not end: %+v", name, r.entry(name))
	}
}

// queue registers a queue.
func (r *world) queue(name string, shards int) *protocol.Queue {
	r.Helper()
	q, err := r.client.Register(r.Context(), lowkiq.Queue{Name: name, Shards: shards})
	r.must(err)
	return q
}

// push pushes payloads for ids, with growing scores.
func (r *world) push(q *protocol.Queue, jobs ...string) {
	r.Helper()
	var all []lowkiq.Push
	for _, job := range jobs {
		id, payload, _ := strings.Cut(job, ":")
		all = append(all, lowkiq.Push{ID: id, Payload: []byte(payload)})
	}
	results, err := q.Push(r.Context(), all...)
	r.must(err)
	for _, result := range results {
		r.must(result.Err)
	}
}

// handle pops and acks all due jobs of a queue, and returns the payloads of each id in their order.
func (r *world) handle(name string) map[string][]string {
	r.Helper()
	ctx := r.Context()
	q, err := r.open().Queue(ctx, name)
	r.must(err)
	found := map[string][]string{}
	for _, s := range q.All() {
		owner, err := s.Owner(ctx)
		r.must(err)
		claim, err := s.Claim(ctx, "test/1.1", protocol.Fresh, owner)
		r.must(err)
		for {
			popped, err := claim.Pop(ctx, protocol.PopRequest{IDs: 100, Bytes: 1 << 20, Slot: true})
			r.must(err)
			if len(popped.Jobs) == 0 {
				break
			}
			for _, job := range popped.Jobs {
				if q.Of(job.ID) != s {
					r.Errorf("id %s is in shard %s", job.ID, s)
				}
				for _, p := range job.Payloads {
					found[job.ID] = append(found[job.ID], string(p.Data))
				}
			}
			_, err = claim.Ack(ctx, protocol.Acks{Flight: popped.Flight, Rest: true})
			r.must(err)
		}
		_, err = claim.Release(ctx)
		r.must(err)
	}
	return found
}

// entry returns the entry of a queue.
func (r *world) entry(name string) protocol.RegistryEntry {
	r.Helper()
	_, entry, err := r.client.Registry().Stored(r.Context(), name)
	r.must(err)
	return entry
}

// lines returns the actions in the list of changes, oldest first.
func (r *world) lines() (actions []string) {
	r.Helper()
	lines, _, err := changes.In(r.client.DB()).Read(r.Context(), changes.Query{})
	r.must(err)
	for _, line := range slices.Backward(lines) {
		actions = append(actions, fmt.Sprintf("%s %s %s", line.Action, line.Old, line.New))
	}
	return actions
}

// pushesOf returns n ids with two payloads each, and the same as handle returns them.
func pushesOf(n int) (pushes []string, want map[string][]string) {
	want = map[string][]string{}
	for _, payload := range []string{"1", "2"} {
		for i := range n {
			id := fmt.Sprintf("id-%d", i)
			pushes, want[id] = append(pushes, id+":"+payload), append(want[id], payload)
		}
	}
	return pushes, want
}

// checkHandled compares what handle has returned.
func (r *world) checkHandled(got, want map[string][]string) {
	r.Helper()
	for id, payloads := range want {
		if !slices.Equal(got[id], payloads) {
			r.Errorf("%s: got payloads %q, want %q", id, got[id], payloads)
		}
	}
	if len(got) != len(want) {
		r.Errorf("got %d ids, want %d", len(got), len(want))
	}
}

// TestDrive reshards a queue without nodes up and down. Its jobs stay in order.
func TestDrive(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	q := r.queue("orders", 3)
	pushes, want := pushesOf(200)
	r.push(q, pushes...)
	for i, shards := range []int{7, 2, 1, 16} {
		begun, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: shards, By: changes.Who{Name: "ann"}})
		r.must(err)
		if again, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: shards}); again || err != nil || !begun {
			t.Fatalf("got begun %t and again %t, %v", begun, again, err)
		}
		r.drive(r.driver(r.client), "orders")
		e := r.entry("orders")
		if e.Shards != shards || e.Layout != i+2 || e.Reshard != nil || e.Copying() || len(e.Was) != i+1 {
			t.Fatalf("got the entry %+v", e)
		}
		p, err := Read(t.Context(), r.client, "orders")
		if err != nil || p.UnderWay() || p.From != shards {
			t.Fatalf("got progress %+v, %v", p, err)
		}
	}
	r.checkHandled(r.handle("orders"), want)
	got := r.lines()
	if len(got) != 8 || got[0] != `reshard {"shards":3} {"shards":7}` || got[1] != `reshard done {"shards":3} {"shards":7}` {
		t.Errorf("got the changes %q", got)
	}
}

// killer lets a client send a number of requests. With lost set, Redis gets the last of them, and its answer is lost. Then it
// ends the driver.
type killer struct {
	left atomic.Int64
	lost bool
	kill context.CancelFunc
}

var errKilled = errors.New("the driver was killed")

func (k *killer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *killer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return k.pass(func() error { return next(ctx, cmd) }, cmd)
	}
}

func (k *killer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return k.pass(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (k *killer) pass(send func() error, cmds ...redis.Cmder) error {
	left := k.left.Add(-1)
	if left > 0 {
		return send()
	}
	k.kill()
	if left == 0 && k.lost {
		_ = send()
	}
	for _, cmd := range cmds {
		cmd.SetErr(errKilled)
	}
	return errKilled
}

// TestReshardEveryStop kills a driver after each of its requests, with and without the answer, and another goes on. No
// job is lost, none is there twice, and the order of each id stays. Pushes come before and after.
func TestReshardEveryStop(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	for _, lost := range []bool{false, true} {
		for n := 1; ; n++ {
			name := fmt.Sprintf("orders-%d-%t", n, lost)
			q := r.queue(name, 3)
			pushes, want := pushesOf(12)
			r.push(q, pushes...)
			_, err := Begin(t.Context(), r.client, Request{Queue: name, Shards: 2})
			r.must(err)
			first := r.open()
			ctx, kill := context.WithCancel(t.Context())
			k := &killer{lost: lost, kill: kill}
			k.left.Store(int64(n))
			first.DB().ForTests().AddHook(k)
			r.driver(first).Drive(ctx, name)
			first.Close()
			kill()
			survived := k.left.Load() > 0
			if !survived {
				r.drive(r.driver(r.client), name)
			}
			if e := r.entry(name); e.Shards != 2 || e.Reshard != nil || e.Copying() {
				t.Fatalf("killed after %d requests: got the entry %+v", n, e)
			}
			late, err := r.open().Queue(t.Context(), name)
			r.must(err)
			r.push(late, "id-0:3", "id-1:3")
			want["id-0"], want["id-1"] = append(want["id-0"], "3"), append(want["id-1"], "3")
			r.checkHandled(r.handle(name), want)
			if t.Failed() {
				t.Fatalf("killed after %d requests, the last one lost: %t", n, lost)
			}
			if survived {
				t.Logf("a reshard takes %d requests", n)
				break
			}
		}
	}
}

// TestPatience checks that a job of a living instance stops the reshard. The reshard is cancelled when its patience is
// over, says why, and leaves the queue as it was.
func TestPatience(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 2)
	r.push(q, "a:1", "b:1")
	_, err := r.client.Leases().Take(ctx, "n1/1.1", []byte(`{"ttl_ms":6000}`), []byte(`{"queues":{"orders":2},"paused":["orders"],"features":["reshard"]}`), time.Hour)
	r.must(err)
	s := q.Of("a")
	owner, err := s.Owner(ctx)
	r.must(err)
	claim, err := s.Claim(ctx, "n1/1.1", protocol.Fresh, owner)
	r.must(err)
	popped, err := claim.Pop(ctx, protocol.PopRequest{IDs: 10, Bytes: 1 << 20})
	r.must(err)
	_, err = Begin(ctx, r.client, Request{Queue: "orders", Shards: 5, Patience: 300 * time.Millisecond})
	r.must(err)
	p, err := Read(ctx, r.client, "orders")
	r.must(err)
	if p.Phase != Draining || p.From != 2 || p.To != 5 || len(p.Calls) == 0 || p.Calls[0].Instance != "n1/1.1" {
		t.Errorf("got progress %+v", p)
	}
	r.drive(r.driver(r.client), "orders")
	if e := r.entry("orders"); e.Reshard != nil || e.Tried != 2 || e.Shards != 2 || e.Layout != 1 {
		t.Errorf("got the entry %+v", e)
	}
	p, err = Read(ctx, r.client, "orders")
	r.must(err)
	if !strings.Contains(p.Cancelled, "the patience of 300ms is over: ") || !strings.Contains(p.Cancelled, "on n1 for ") {
		t.Errorf("got the reason %q", p.Cancelled)
	}
	_, err = claim.Ack(ctx, protocol.Acks{Flight: popped.Flight, Rest: true})
	r.must(err)
	r.push(q, "a:2", "b:2")

	// Without calls the next attempt succeeds, under the next number.
	_, err = claim.Release(ctx)
	r.must(err)
	_, err = Begin(ctx, r.client, Request{Queue: "orders", Shards: 5})
	r.must(err)
	r.drive(r.driver(r.client), "orders")
	if e := r.entry("orders"); e.Shards != 5 || e.Layout != 3 || e.Tried != 0 {
		t.Errorf("got the entry %+v", e)
	}
}

// TestDeadOwner checks that without nodes the driver takes the flights of a dead owner back.
func TestDeadOwner(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 2)
	r.push(q, "a:1", "b:1", "c:1")
	for _, s := range q.All() {
		owner, err := s.Owner(ctx)
		r.must(err)
		claim, err := s.Claim(ctx, "n1/1.1", protocol.Fresh, owner)
		r.must(err)
		_, err = claim.Pop(ctx, protocol.PopRequest{IDs: 10, Bytes: 1 << 20})
		r.must(err)
	}
	_, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 5})
	r.must(err)
	d := r.driver(r.client)
	d.leaselessSince = map[string]time.Time{"n1/1.1": time.Now().Add(-time.Minute)} // seen for longer than a ttl
	r.drive(d, "orders")
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1"}, "b": {"1"}, "c": {"1"}})
}

// TestCancel checks that a reshard can be undone at each step before the flip, and that its shards then take pushes.
func TestCancel(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 2)
	r.push(q, "a:1")
	if err := Cancel(ctx, r.client, "orders", changes.Who{}, ""); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want ErrNone", err)
	}
	_, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 5})
	r.must(err)
	_, err = freezeShards(ctx, q, 2)
	r.must(err)
	p, err := Read(ctx, r.client, "orders")
	if r.must(err); p.Phase != Freezing {
		t.Errorf("got phase %s", p.Phase)
	}
	r.must(Cancel(ctx, r.client, "orders", changes.Who{Name: "ann"}, ""))
	r.push(q, "a:2", "b:1")
	// A late freeze of the cancelled attempt is thawed by the next driver.
	_, err = freezeShards(ctx, q, 2)
	r.must(err)
	r.drive(r.driver(r.client), "orders")
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1", "2"}, "b": {"1"}})
	if got := r.lines(); len(got) != 2 || got[1] != `cancel reshard {"shards":5} {"shards":2}` {
		t.Errorf("got the changes %q", got)
	}
}

// TestRefusals checks that each invalid request is refused with its reason, and changes nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 2)
	set := func(text string) {
		t.Helper()
		_, err := r.client.DB().Do(ctx, "write the entry", "HSET", r.client.DB().Keys.Queues(), "orders", text)
		r.must(err)
	}
	from := func(field, value string) {
		t.Helper()
		_, err := r.client.DB().Do(ctx, "write a source", "HSET", q.Shard(1).Keys().From, field, value)
		r.must(err)
	}
	none := func() {}
	for _, c := range []struct {
		name   string
		state  func()
		want   Request
		err    error
		reason string
	}{
		{"no shards", none, Request{Queue: "orders"}, ErrValue, "0 shards; the number must be between 1 and 10000"},
		{"a negative number", none, Request{Queue: "orders", Shards: -1}, ErrValue, "-1 shards"},
		{"too many", none, Request{Queue: "orders", Shards: 1_000_001}, ErrValue, "1000001 shards"},
		{"no patience", none, Request{Queue: "orders", Shards: 4, Patience: -1}, ErrValue, "of patience; it must be more than 0"},
		{"the same number", none, Request{Queue: "orders", Shards: 2}, ErrSame, "it has 2 shards already"},
		{"an unknown queue", none, Request{Queue: "nowhere", Shards: 2}, lowkiq.ErrUnknownQueue, `unknown queue "nowhere"`},
		{"no name", none, Request{Shards: 2}, lowkiq.ErrUnknownQueue, "name is empty"},
		{"a deleted queue", func() { set(`{"shards":2,"layout":1,"removed":true}`) }, Request{Queue: "orders", Shards: 4}, lowkiq.ErrUnknownQueue, "it was deleted"},
		{"being deleted", func() { set(`{"shards":2,"layout":1,"removing":"X"}`) }, Request{Queue: "orders", Shards: 4}, ErrBusy, "it is being deleted"},
		{"a damaged entry", func() { set(`{`) }, Request{Queue: "orders", Shards: 4}, protocol.ErrEntryDamaged, "damaged"},
		{"a later release", func() { set(`{"shards":2,"layout":1,"needs":["later"]}`) }, Request{Queue: "orders", Shards: 4}, nil, "run the release of the other nodes"},
		{"another reshard", func() { set(`{"shards":2,"layout":1,"reshard":{"shards":8,"layout":2,"at":1,"patience_ms":1}}`) }, Request{Queue: "orders", Shards: 4}, ErrUnderWay, "to 8 shards; wait for its end, or take it back"},
		{"another copy", func() { set(`{"shards":8,"layout":2,"was":[{"shards":2,"layout":1,"at":1,"copying":true}]}`) }, Request{Queue: "orders", Shards: 4}, ErrUnderWay, "to 8 shards; wait for its end"},
		{"a ninth within a month", func() { set(entryWithFormer(time.Now())) }, Request{Queue: "orders", Shards: 4}, ErrBusy, "it was resharded 8 times within 30 days; the next reshard may begin on 20"},
		{"a move from Ruby", func() { from("import/old", "7") }, Request{Queue: "orders", Shards: 4}, ErrBusy, "jobs of old are moving in; end that with lowkiq-migrate first"},
		{"a move back", func() { from("export", "run") }, Request{Queue: "orders", Shards: 4}, ErrBusy, "its jobs are moving to another system"},
		{"an old node", func() {
			_, err := r.client.Leases().Take(ctx, "n0/1.1", nil, []byte(`{"queues":{}}`), time.Hour)
			r.must(err)
		}, Request{Queue: "orders", Shards: 4}, nil, "n0/1.1 does not read reshard"},
	} {
		set(`{"shards":2,"layout":1}`)
		_, err := r.client.DB().Do(ctx, "forget sources", "DEL", q.Shard(1).Keys().From)
		r.must(err)
		c.state()
		before, err := r.client.DB().Do(ctx, "read the entry", "HGET", r.client.DB().Keys.Queues(), "orders")
		r.must(err)
		begun, err := Begin(ctx, r.client, c.want)
		if begun || err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: got begun %t, %v", c.name, begun, err)
		}
		if after, err := r.client.DB().Do(ctx, "read the entry", "HGET", r.client.DB().Keys.Queues(), "orders"); err != nil || after != before {
			t.Errorf("%s: got the entry %v, want %v", c.name, after, before)
		}
	}
	set(entryWithFormer(time.Now().Add(-protocol.SourceAge - time.Minute)))
	_, err := r.client.DB().Do(ctx, "drop a lease", "DEL", r.client.DB().Keys.Lease("n0/1.1"))
	r.must(err)
	if begun, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 4}); !begun || err != nil {
		t.Errorf("a ninth after a month: got %t, %v", begun, err)
	}
	// What a forgotten source has left does not matter.
	set(`{"shards":2,"layout":1}`)
	from("import/old", "x 1")
	if begun, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 4}); !begun || err != nil {
		t.Errorf("got %t, %v", begun, err)
	}
}

// entryWithFormer returns an entry with as many former layouts as there may be. The queue left the oldest at a time.
func entryWithFormer(at time.Time) string {
	var was []string
	for i := range protocol.MaxFormer {
		was = append(was, fmt.Sprintf(`{"shards":2,"layout":%d,"at":%d}`, protocol.MaxFormer-i, at.UnixMilli()))
	}
	return fmt.Sprintf(`{"shards":2,"layout":%d,"was":[%s]}`, protocol.MaxFormer+1, strings.Join(was, ","))
}

// TestMeasure checks that the estimate counts what is there, and refuses what costs too much.
func TestMeasure(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 3)
	pushes, _ := pushesOf(300)
	r.push(q, pushes...)
	e, err := Measure(ctx, r.client, Request{Queue: "orders", Shards: 6})
	r.must(err)
	if e.From != 3 || e.To != 6 || e.Jobs != 300 || e.Bytes < 3000 || e.Memory < e.Bytes || e.Pause <= 0 || e.Room != -1 || len(e.Calls) != 0 {
		t.Errorf("got %+v", e)
	}
	if err := e.Check("orders", time.Minute); err != nil {
		t.Error(err)
	}
	if err := e.Check("orders", time.Millisecond); !errors.Is(err, ErrCost) || !strings.Contains(err.Error(), "--max-pause 10s allows it") {
		t.Errorf("got %v", err)
	}
	_, err = r.client.DB().Do(ctx, "set maxmemory", "CONFIG", "SET", "maxmemory", 1<<20)
	r.must(err)
	if e, err = Measure(ctx, r.client, Request{Queue: "orders", Shards: 6}); err != nil || e.Room != 0 {
		t.Fatalf("got %+v, %v", e, err)
	}
	if err := e.Check("orders", 0); !errors.Is(err, ErrCost) || !strings.Contains(err.Error(), "raise maxmemory") {
		t.Errorf("got %v", err)
	}
	if e := r.entry("orders"); e.Reshard != nil {
		t.Errorf("got the entry %+v", e)
	}
}

// stall calls a function once, before the first pipeline that its client sends.
type stall struct{ once func() }

func (s *stall) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *stall) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *stall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if once := s.once; once != nil {
			s.once = nil
			once()
		}
		return next(ctx, cmds)
	}
}

// TestStalledDriverThawsNothing stalls a driver after it has read an entry without a reshard. Meanwhile the queue is
// resharded. The marks that the driver then sees are those of the present layout, so they stay.
func TestStalledDriverThawsNothing(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	q := r.queue("orders", 2)
	r.push(q, "a:1")
	stalled := r.open()
	stalled.DB().ForTests().AddHook(&stall{func() {
		_, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: 3})
		r.must(err)
		r.drive(r.driver(r.client), "orders")
	}})
	r.drive(r.driver(stalled), "orders")
	if e := r.entry("orders"); e.Shards != 3 || e.Layout != 2 {
		t.Fatalf("got the entry %+v", e)
	}
	for _, s := range q.All() {
		last, err := r.client.DB().Do(t.Context(), "read a mark", "HGET", s.Keys().Count, "last")
		r.must(err)
		if layout, _ := parseMark(fmt.Sprint(last)); layout != 2 {
			t.Errorf("shard %s: got the mark %v, want that of layout 2", s, last)
		}
	}
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1"}})
}

// TestLateCancelOfAnAttempt checks that a driver whose patience with an attempt is over does not cancel the next
// attempt.
func TestLateCancelOfAnAttempt(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	r.queue("orders", 2)
	begin := func() int {
		_, err := Begin(t.Context(), r.client, Request{Queue: "orders", Shards: 3})
		r.must(err)
		return r.entry("orders").Reshard.Layout
	}
	first := begin()
	r.must(Cancel(t.Context(), r.client, "orders", changes.Who{}, ""))
	second := begin()
	if err := cancelAttempt(t.Context(), r.client, "orders", first, changes.Who{}, ""); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want ErrNone", err)
	}
	if e := r.entry("orders"); e.Reshard == nil || e.Reshard.Layout != second {
		t.Errorf("got the entry %+v, want attempt %d", e, second)
	}
}

// TestForgottenFreezeAtTheEnd lets a failover forget a freeze after all new shards are open. A producer that knows only
// the former layout pushes to the shard. The driver freezes the shard again and copies it again, and the push is not
// lost.
func TestForgottenFreezeAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	q := r.queue("orders", 3)
	pushes, want := pushesOf(30)
	r.push(q, pushes...)
	_, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 2})
	r.must(err)
	d := r.driver(r.client)
	for {
		_, entry, err := r.client.Registry().Stored(ctx, "orders")
		r.must(err)
		l, _ := layoutsOf(r.client.Registry(), "orders", entry)
		f, err := d.readFacts(ctx, "orders", entry, l)
		r.must(err)
		if nextStep(entry, f) == stepEnd {
			break
		}
		_, _, err = d.takeStep(ctx, "orders", nil)
		r.must(err)
	}
	_, err = q.Of("id-0").Run(ctx, r.client.DB().Scripts.Freeze, "thaw", protocol.MovedMark(2)) // as the replica was before the freeze
	r.must(err)
	late := pushThrough(t, q.Of("id-0"), lowkiq.Push{ID: "id-0", Payload: []byte("3")})
	want["id-0"] = append(want["id-0"], late)
	r.drive(d, "orders")
	r.must(ctx.Err())
	if e := r.entry("orders"); e.Copying() || e.Shards != 2 {
		t.Fatalf("got the entry %+v", e)
	}
	r.checkHandled(r.handle("orders"), want)
}

// pushThrough stores a payload in a shard, as a producer does that has not noticed the flip.
func pushThrough(t *testing.T, s *protocol.Shard, job lowkiq.Push) string {
	t.Helper()
	args := []any{"m", 1000, 1 << 20, s.Keys().Wake, job.ID, job.Payload, "", ""}
	if _, err := s.Run(t.Context(), s.DB().Scripts.Push, args...); err != nil {
		t.Fatal(err)
	}
	return string(job.Payload)
}

// TestBusyShards checks that the driver waits for a shard that is busy for another reason than a call, and freezes
// nothing meanwhile. When the patience is over, people read why. The driver does not wait for a move.
func TestBusyShards(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	for name, c := range map[string]struct {
		busy     func(*protocol.Shard) []any
		patience time.Duration
		why      string
		freezes  bool
	}{
		"parked":     {func(s *protocol.Shard) []any { return []any{"HSET", s.Keys().Parked, "left", "x"} }, 300 * time.Millisecond, "has payloads that no flight has left behind; run lowkiq-node check --repair", false},
		"follow-ups": {func(s *protocol.Shard) []any { return []any{"XADD", s.Keys().Out, "*", "a", "b"} }, 300 * time.Millisecond, "has follow-ups to other queues that wait to be delivered; lowkiq-node outgoing shows why", false},
		"move":       {func(s *protocol.Shard) []any { return []any{"HSET", s.Keys().From, "import/old", "7"} }, time.Hour, "end that with lowkiq-migrate first: import/old", true},
	} {
		q := r.queue(name, 3)
		_, err := Begin(ctx, r.client, Request{Queue: name, Shards: 2, Patience: c.patience})
		r.must(err)
		s := q.Shard(1)
		r.must(r.client.DB().ForTests().Do(ctx, c.busy(s)...).Err())
		if p, err := Read(ctx, r.client, name); err != nil || !c.freezes && !strings.Contains(p.String(), "waits, as shard "+s.String()+" "+c.why) {
			t.Errorf("%s: got %q, %v", name, p.String(), err)
		}
		driving := r.open()
		r.must(driving.DB().Load(ctx))
		freezes := 0
		driving.DB().ForTests().AddHook(&faults{is: func(sha string) bool {
			if sha == driving.DB().Scripts.Freeze.SHA() {
				freezes++
			}
			return false
		}})
		r.drive(r.driver(driving), name)
		p, err := Read(ctx, r.client, name)
		r.must(err)
		if p.UnderWay() || !strings.Contains(p.Cancelled, c.why) {
			t.Errorf("%s: got %+v, want that it is cancelled because the shard %s", name, p, c.why)
		}
		if !c.freezes && freezes > 1 || freezes > 2 { // the cancel thaws
			t.Errorf("%s: the driver sent %d requests to freeze or thaw", name, freezes)
		}
	}
}

// attempt begins a reshard and takes it to the step before its flip.
func (r *world) attempt(name string, shards int) layouts {
	r.Helper()
	_, err := Begin(r.Context(), r.client, Request{Queue: name, Shards: shards})
	r.must(err)
	return r.floors(name)
}

// floors takes the attempt of a queue to the step before its flip.
func (r *world) floors(name string) layouts {
	r.Helper()
	l, _ := layoutsOf(r.client.Registry(), name, r.entry(name))
	r.must(prepareShards(r.Context(), l.to, l.from))
	frozen, err := freezeShards(r.Context(), l.from, l.number)
	r.must(err)
	r.must(setFloors(r.Context(), l.to, l.from, frozen))
	return l
}

// keys returns the keys of a queue in a layout.
func (r *world) keys(name string, layout int) []string {
	r.Helper()
	keys, err := r.client.DB().ForTests().Keys(r.Context(), fmt.Sprintf("*{*%s/%d/*", name, layout)).Result()
	r.must(err)
	return keys
}

// TestCancelledAttemptLeavesNothing checks that an attempt that is cancelled or restarted leaves no keys of its new
// shards behind.
func TestCancelledAttemptLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	r.push(r.queue("orders", 2), "a:1", "b:1")
	l := r.attempt("orders", 5)
	r.must(r.driver(r.client).restartAttempt(ctx, "orders", l))
	if left := r.keys("orders", l.number); len(left) > 0 {
		t.Errorf("restarted: these keys are left: %q", left)
	}
	r.must(thawShards(ctx, l.from, l.number))
	l = r.floors("orders")
	r.must(Cancel(ctx, r.client, "orders", changes.Who{}, ""))
	if left := r.keys("orders", l.number); len(left) > 0 {
		t.Errorf("cancelled: these keys are left: %q", left)
	}
	report, err := audit.Run(ctx, r.client, audit.Config{Orphans: true})
	r.must(err)
	for _, fault := range report.Faults {
		t.Error(fault)
	}
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1"}, "b": {"1"}})
}

// TestEndOfAttemptEveryStop kills a process that cancels or restarts an attempt after each of its requests, with and without
// the answer. The next step on the queue must delete the closed shards of that attempt.
func TestEndOfAttemptEveryStop(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	cancel := func(ctx context.Context, c *protocol.Client, name string, _ protocol.RegistryEntry) error {
		return Cancel(ctx, c, name, changes.Who{}, "")
	}
	restart := func(ctx context.Context, c *protocol.Client, name string, entry protocol.RegistryEntry) error {
		l, _ := layoutsOf(c.Registry(), name, entry)
		return r.driver(c).restartAttempt(ctx, name, l)
	}
	for _, c := range []struct {
		what string
		end  func(context.Context, *protocol.Client, string, protocol.RegistryEntry) error // ends the attempt
		next func(name string)
	}{
		{"cancel, and a leader looks", cancel, func(name string) {
			ctx, stop := context.WithTimeout(ctx, 20*time.Second)
			defer stop()
			d := r.driver(r.client)
			d.seen, d.done = map[string]sighting{}, map[string]int{}
			d.lookAround(ctx)
			d.work.Wait()
			r.must(ctx.Err())
		}},
		{"cancel, and a reshard", cancel, func(name string) {
			_, err := Begin(ctx, r.client, Request{Queue: name, Shards: 2})
			r.must(err)
			r.drive(r.driver(r.client), name)
		}},
		{"cancel, and a reshard that is cancelled at once", cancel, func(name string) {
			_, err := Begin(ctx, r.client, Request{Queue: name, Shards: 2})
			r.must(err)
			r.must(Cancel(ctx, r.client, name, changes.Who{}, ""))
		}},
		{"cancel, and a deletion", cancel, func(name string) {
			_, err := remove.Delete(ctx, r.client, name, remove.Deletion{Force: true, Handled: func(context.Context) ([]string, error) { return nil, nil }})
			r.must(err)
		}},
		{"restart, and its end", restart, func(name string) { r.drive(r.driver(r.client), name) }},
		{"restart, and a cancel", restart, func(name string) { r.must(Cancel(ctx, r.client, name, changes.Who{}, "")) }},
	} {
		for _, lost := range []bool{false, true} {
			for n := 1; ; n++ {
				name := strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprint(c.what, " ", lost, " ", n))
				r.push(r.queue(name, 3), "a:1")
				number, before := r.attempt(name, 5).number, r.entry(name)
				ending := r.open()
				killed, kill := context.WithCancel(ctx)
				k := &killer{lost: lost, kill: kill}
				k.left.Store(int64(n))
				ending.DB().ForTests().AddHook(k)
				_ = c.end(killed, ending, name, before)
				ending.Close()
				kill()
				if e := r.entry(name); e.Reshard != nil && e.Reshard.Layout == number {
					r.must(c.end(ctx, r.client, name, before)) // it was killed before it had written the entry
				}
				c.next(name)
				if left := r.keys(name, number); len(left) > 0 {
					t.Errorf("%s, killed after %d requests, the last one lost: %t: these keys are left: %q", c.what, n, lost, left)
				}
				if k.left.Load() > 0 {
					break
				}
			}
		}
	}
}

// nthFault fails one request of a client. Its other requests succeed.
type nthFault struct {
	left  atomic.Int64
	times int // how often Redis gets the request: 0, 1 or 2; after 0 and 1 the client gets an error
}

func (f *nthFault) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *nthFault) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return f.pass(func() error { return next(ctx, cmd) }, cmd)
	}
}

func (f *nthFault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return f.pass(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (f *nthFault) pass(send func() error, cmds ...redis.Cmder) error {
	if f.left.Add(-1) != 0 {
		return send()
	}
	var err error
	for range f.times {
		err = send()
	}
	if f.times > 1 {
		return err
	}
	for _, cmd := range cmds {
		cmd.SetErr(errLost)
	}
	return errLost
}

// TestCancelWithFaults cancels an attempt while a request fails, loses its answer, or comes twice. The queue must be as before,
// and people must read the reason of this cancel, and never the reason of an earlier cancel.
func TestCancelWithFaults(t *testing.T) {
	t.Parallel()
	for times := range 3 {
		for _, driven := range []bool{false, true} {
			t.Run(fmt.Sprintf("comes %d times, of a driver: %t", times, driven), func(t *testing.T) {
				t.Parallel()
				r := newWorld(t)
				for n := 1; r.cancelWithFault(n, times, driven); n++ {
				}
			})
		}
	}
}

// cancelWithFault cancels an attempt with a fault of the request n. It returns false if there are fewer requests.
func (r *world) cancelWithFault(n, times int, driven bool) (faulty bool) {
	r.Helper()
	ctx, name := r.Context(), fmt.Sprint("orders-", n)
	q := r.queue(name, 3)
	r.push(q, "a:1", "b:1", "c:1")
	_, err := Begin(ctx, r.client, Request{Queue: name, Shards: 4})
	r.must(err)
	r.must(Cancel(ctx, r.client, name, changes.Who{}, "earlier"))
	_, err = Begin(ctx, r.client, Request{Queue: name, Shards: 5, Patience: time.Millisecond})
	r.must(err)
	l, _ := layoutsOf(r.client.Registry(), name, r.entry(name))
	r.must(prepareShards(ctx, l.to, l.from))
	r.must(freezeSome(ctx, l.from.All()[:2], l.number, func(*protocol.Shard, Frozen) {}))
	c := r.open()
	defer c.Close()
	f := &nthFault{times: times}
	f.left.Store(int64(n))
	c.DB().ForTests().AddHook(f)
	reason := "by hand"
	if driven {
		reason = "the patience of 1ms is over"
		r.drive(r.driver(c), name)
	} else if err := Cancel(ctx, c, name, changes.Who{}, reason); err != nil && r.entry(name).Reshard != nil {
		r.must(Cancel(ctx, c, name, changes.Who{}, reason))
	}
	faulty = f.left.Load() <= 0
	if p, err := Read(ctx, r.client, name); err != nil || p.UnderWay() || !strings.HasPrefix(p.Cancelled, reason) && (times > 0 || p.Cancelled != "") {
		r.Errorf("request %d: got the reason %q, %v, want %q", n, p.Cancelled, err, reason)
	}
	r.drive(r.driver(r.client), name) // as the leader at its next look
	if e := r.entry(name); e.Reshard != nil || e.Layout != 1 || e.Tried != 3 {
		r.Errorf("request %d: got the entry %+v", n, e)
	}
	if left := append(r.keys(name, 2), r.keys(name, 3)...); len(left) > 0 {
		r.Errorf("request %d: these keys are left: %q", n, left)
	}
	r.push(q, "a:2", "b:2", "c:2")
	r.checkHandled(r.handle(name), map[string][]string{"a": {"1", "2"}, "b": {"1", "2"}, "c": {"1", "2"}})
	return faulty
}

// TestFlightsWithoutOwner checks that without nodes the driver puts flights back that no instance has, such as those of
// a claim that a failover forgot.
func TestFlightsWithoutOwner(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	q := r.queue("orders", 2)
	r.push(q, "a:1", "b:1", "c:1")
	for _, s := range q.All() {
		owner, err := s.Owner(ctx)
		r.must(err)
		claim, err := s.Claim(ctx, "n1/1.1", protocol.Fresh, owner)
		r.must(err)
		_, err = claim.Pop(ctx, protocol.PopRequest{IDs: 10, Bytes: 1 << 20})
		r.must(err)
		r.must(r.client.DB().ForTests().HDel(ctx, s.Keys().Claim, "instance").Err())
	}
	_, err := Begin(ctx, r.client, Request{Queue: "orders", Shards: 5, Patience: 2 * time.Second})
	r.must(err)
	r.drive(r.driver(r.client), "orders")
	if e := r.entry("orders"); e.Shards != 5 {
		t.Errorf("got the entry %+v", e)
	}
	r.checkHandled(r.handle("orders"), map[string][]string{"a": {"1"}, "b": {"1"}, "c": {"1"}})
}

// TestManySources reshards a queue whose shards know many sources of deliveries. A shard that knows too many is refused
// before it is read as a whole.
func TestManySources(t *testing.T) {
	t.Parallel()
	r := newWorld(t)
	ctx := t.Context()
	q := r.queue("orders", 2)
	rdb := r.client.DB().ForTests()
	fill := func(n int) {
		t.Helper()
		script := "for i = 1, ARGV[1] do redis.call('HSET', KEYS[1], 'source/' .. i, i) end return 1"
		r.must(rdb.Do(ctx, "EVAL", script, 1, q.Shard(1).Keys().From, n).Err())
	}
	fill(maxSources)
	r.must(checkSources(ctx, r.client, "orders", r.entry("orders")))
	begun := time.Now()
	_, err := freezeShards(ctx, q, 2)
	r.must(err)
	t.Logf("a freeze of a shard with %d sources took %s", maxSources, time.Since(begun))
	r.must(thawShards(ctx, q, 2))
	r.must(rdb.HSet(ctx, q.Shard(1).Keys().From, "import/old", 7).Err())
	if err := checkSources(ctx, r.client, "orders", r.entry("orders")); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want that too many sources are known", err)
	}
	r.must(rdb.HDel(ctx, q.Shard(1).Keys().From, "source/1").Err())
	if err := checkSources(ctx, r.client, "orders", r.entry("orders")); err == nil || !strings.Contains(err.Error(), "jobs of old are moving in") {
		t.Errorf("got %v, want that jobs are moving in", err)
	}
	fill(maxSources + 1)
	for _, err := range []error{checkSources(ctx, r.client, "orders", r.entry("orders")), func() error { _, err := freezeShards(ctx, q, 2); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "knows the numbers of more than 50000 sources of deliveries, which is the maximum") {
			t.Errorf("got %v, want that too many sources are known", err)
		}
	}
}
