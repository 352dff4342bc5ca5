package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// followTests test that producers, callers and deliveries follow a queue that is resharded. The steps of a
// reshard are taken by hand.
var followTests = []testCase{
	{"Follow_EachKindOfPush", testFollowEachKind}, {"Follow_InTheMiddle", testFollowInTheMiddle}, {"Follow_Order", testFollowOrder},
	{"Follow_Cancelled", testFollowCancelled}, {"Follow_ObsoleteMark", testFollowObsoleteMark}, {"Follow_Patience", testFollowPatience},
	{"Follow_OldQueueStaysGood", testFollowOldQueue}, {"Follow_LateReadOfTheEntry", testFollowLateRead}, {"Follow_Deliver", testFollowDeliver},
	{"Follow_Import", testFollowImport}, {"Follow_Calls", testFollowCalls}, {"Follow_ReplyLater", testFollowReply},
	{"Follow_Journals", testFollowJournals}, {"Follow_Audit", testFollowAudit}, {"Follow_Removed", testFollowRemoved},
	{"Follow_FormerCount", testFollowCount}, {"Follow_Restored", testFollowRestored}, {"Follow_OthersGoOn", testFollowOthersGoOn},
	{"Follow_OldDelivery", testFollowOldDelivery}, {"Follow_Deleted", testFollowDeleted}, {"Follow_CostsNothing", testFollowCostsNothing},
}

// move is a reshard by hand. The test has a client of its own, so the producer's client knows nothing of it.
type move struct {
	t        *testing.T
	ctx      context.Context
	c        *Client // of the producer
	q        *Queue  // as the producer opened it
	admin    *Client
	from, to *Queue
	reads    atomic.Int64 // of the producer's entry
}

func newMove(t *testing.T, b *backend, from, to int, change ...func(*Config)) *move {
	t.Helper()
	m := &move{t: t, ctx: t.Context(), c: b.open(t, change...)}
	m.q = newQueue(t, m.c, from)
	m.admin = b.open(t, func(cfg *Config) { cfg.Cluster = m.c.Cluster() })
	m.from = newQueue(t, m.admin, from)
	m.to = m.admin.Registry().InLayout("q", RegistryEntry{}, to, 2)
	m.c.DB().ForTests().AddHook(beforeEach(func(cmd redis.Cmder) {
		if args := cmd.Args(); cmd.Name() == "hget" && args[1] == m.c.DB().Keys.Queues() {
			m.reads.Add(1)
		}
	}))
	return m
}

// beforeEach is called before each command.
type beforeEach func(redis.Cmder)

func (beforeEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f beforeEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { f(cmd); return next(ctx, cmd) }
}

func (f beforeEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			f(cmd)
		}
		return next(ctx, cmds)
	}
}

func (m *move) noErr(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *move) entry(format string, args ...any) {
	m.t.Helper()
	m.noErr(m.admin.DB().ForTests().HSet(m.ctx, m.admin.DB().Keys.Queues(), "q", fmt.Sprintf(format, args...)).Err())
}

// begin writes the entry of a reshard.
func (m *move) begin() {
	m.t.Helper()
	m.entry(`{"shards":%d,"layout":1,"reshard":{"shards":%d,"layout":2,"at":1,"patience_ms":1},"needs":["reshard"]}`, m.from.Shards, m.to.Shards)
}

func (m *move) freeze(shards ...*Shard) {
	m.t.Helper()
	for _, s := range shards {
		reply, err := s.Run(m.ctx, m.admin.DB().Scripts.Freeze, "freeze", MovedMark(2), "quiet", "")
		m.noErr(err)
		if answer, _ := reply.([]any); len(answer) == 0 || answer[0] != "OK" {
			m.t.Fatalf("freeze answered %v", reply)
		}
	}
}

func (m *move) flip() { m.left(time.Now(), true) }

// left writes an entry that says when the queue left layout 1.
func (m *move) left(at time.Time, copying bool) {
	m.t.Helper()
	m.entry(`{"shards":%d,"layout":2,"was":[{"shards":%d,"layout":1,"at":%d,"copying":%t}],"needs":["reshard"]}`, m.to.Shards, m.from.Shards, at.UnixMilli(), copying)
}

func (m *move) cancel() {
	m.t.Helper()
	m.entry(`{"shards":%d,"layout":1,"tried":2,"needs":["reshard"]}`, m.from.Shards)
}

// awaitReads waits until the producer has read the entry some more times.
func (m *move) awaitReads(n int64) {
	m.t.Helper()
	for end, first := time.Now().Add(patience), m.reads.Load(); m.reads.Load() < first+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatal("the producer does not read the entry")
		}
	}
}

// stored returns the payloads of a queue, by id, in the order in which a handler gets them.
func (m *move) stored(q *Queue) map[string]string {
	m.t.Helper()
	all := map[string]string{}
	m.noErr(transfer.Each(m.ctx, q, false, func(some []transfer.Kept) error {
		for _, k := range some {
			for _, p := range k.Payloads {
				all[k.ID] += string(p.Data) + " "
			}
		}
		return nil
	}))
	return all
}

// testFollowEachKind checks that a push of each kind that meets a frozen shard waits for the flip, and is stored in the
// next layout.
func testFollowEachKind(t *testing.T, b *backend) {
	bulk := make([]lowkiq.Push, 3000)
	for i := range bulk {
		bulk[i] = job(fmt.Sprint("id", i%700), fmt.Sprint(i))
	}
	small := make([]lowkiq.Push, 12)
	for i := range small {
		small[i] = job(fmt.Sprint("id", i), "1")
	}
	push := func(jobs ...lowkiq.Push) func(*move) error {
		return func(m *move) error { _, err := m.q.Push(m.ctx, jobs...); return err }
	}
	for name, c := range map[string]struct {
		send  func(*move) error
		want  int
		rules PushRules
	}{
		"alone":     {push(job("a", "1")), 1, PushRules{}},
		"each":      {push(small...), 12, PushRules{}},
		"mixed":     {push(job("a", "1"), job("a", "2", in(time.Hour)), job("b", "1", score(5))), 3, PushRules{}},
		"bulk":      {push(bulk...), 3000, PushRules{}},
		"urgent":    {push(job("a", "1", urgent), job("b", "2")), 2, PushRules{}},
		"coalesced": {push(job("a", "1"), job("a", "2")), 1, PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest}}},
		"client":    {func(m *move) error { _, err := m.c.Push(m.ctx, "q", job("a", "1")); return err }, 1, PushRules{}},
		"deliver": {func(m *move) error {
			_, err := m.q.Deliver(m.ctx, Delivery{"s", 1}, job("a", "1"))
			return err
		}, 1, PushRules{}},
		"import": {func(m *move) error {
			_, err := transfer.Import(m.ctx, m.q, "old", entry(1, "a", "1"), entry(2, "b", "1 2"), entry(3, "a", "2"))
			return err
		}, 4, PushRules{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMove(t, b, 5, 3)
			m.noErr(m.c.SetRules("q", c.rules))
			m.begin()
			m.freeze(m.from.All()...)
			sent := make(chan error)
			go func() { sent <- c.send(m) }()
			m.awaitReads(3)
			m.flip()
			m.noErr(<-sent)
			n := 0
			for _, payloads := range m.stored(m.to) {
				n += len(strings.Fields(payloads))
			}
			eq(t, "stored in the next layout", n, c.want)
			eq(t, "stored in the former layout", len(m.stored(m.from)), 0)
			if c.want > 1000 {
				for id, payloads := range m.stored(m.to) {
					if list := strings.Fields(payloads); !slices.IsSortedFunc(list, func(x, y string) int { return cmp.Or(len(x)-len(y), strings.Compare(x, y)) }) {
						t.Errorf("%s: %q is not in push order", id, payloads)
					}
				}
			}
		})
	}
}

// testFollowInTheMiddle freezes a shard between two parts of a push. The later parts go to the next layout, in push order.
// Shards that are not frozen take their parts.
func testFollowInTheMiddle(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	id := func(shard int) string {
		for i := 0; ; i++ {
			if id := fmt.Sprint("id", i); m.from.Of(id).Index == shard {
				return id
			}
		}
	}
	a, other := id(0), id(1)
	var jobs []lowkiq.Push
	for i := range 2500 { // three parts, and one
		jobs = append(jobs, job(a, fmt.Sprintf("%04d", i)))
	}
	jobs = append(jobs, job(other, "x"))
	m.begin()
	parts := 0
	m.c.DB().ForTests().AddHook(afterEach(func(sha string) {
		if sha == m.c.DB().Scripts.Push.SHA() {
			if parts++; parts == 2 { // the first of each shard
				m.freeze(m.from.Shard(0))
				m.flip()
			}
		}
	}))
	m.noErr(m.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 5000}}))
	results, err := m.q.Push(m.ctx, jobs...)
	m.noErr(err)
	eq(t, "results", len(results), len(jobs))
	eq(t, "the unfrozen shard", m.stored(m.from), map[string]string{other: "x "})
	after := strings.Fields(m.stored(m.to)[a])
	if len(after) == 0 || len(after)%500 != 0 || after[len(after)-1] != "2499" || !slices.IsSorted(after) {
		t.Errorf("in the next layout: %d payloads, want the parts behind the first in push order", len(after))
	}
}

// testFollowOrder checks that after a refusal of an id's payload no later payload of that id is stored, neither here
// nor in the next layout.
func testFollowOrder(t *testing.T, b *backend) {
	m := newMove(t, b, 1, 2)
	m.noErr(m.c.SetRules("q", PushRules{Push: rules.Push{Payloads: 1}}))
	_, err := m.q.Push(m.ctx, job("a", "0"))
	m.noErr(err)
	jobs := []lowkiq.Push{job("a", "1")}
	for i := range 999 {
		jobs = append(jobs, job(fmt.Sprint("id", i), "1"))
	}
	jobs = append(jobs, job("a", "2"), job("b", "1"))
	m.begin()
	frozen := false
	m.c.DB().ForTests().AddHook(afterEach(func(sha string) {
		if sha == m.c.DB().Scripts.Push.SHA() && !frozen {
			frozen = true
			m.freeze(m.from.Shard(0))
			m.flip()
		}
	}))
	results, _ := m.q.Push(m.ctx, jobs...)
	eq(t, "the refused payload", errors.Is(results[0].Err, ErrTooManyPayloads), true)
	eq(t, "the payload behind it", errors.Is(results[1000].Err, ErrUnsent), true)
	eq(t, "another id", results[1001].Err, error(nil))
	eq(t, "b", m.stored(m.to)["b"], "1 ")
	eq(t, "a", m.stored(m.to)["a"], "")
}

// testFollowCancelled checks that a push that waits for a reshard goes on in the old layout when the reshard is
// cancelled, also if nobody thaws its shard.
func testFollowCancelled(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := m.q.Push(m.ctx, job("before", "1"))
	m.noErr(err)
	m.begin()
	m.freeze(m.from.All()...)
	sent := make(chan error)
	go func() { _, err := m.q.Push(m.ctx, job("a", "1"), job("before", "2")); sent <- err }()
	m.awaitReads(3)
	m.cancel()
	m.noErr(<-sent)
	eq(t, "stored", m.stored(m.from), map[string]string{"a": "1 ", "before": "1 2 "})
}

// testFollowObsoleteMark checks that a claim, a push and an import remove the mark of a cancelled reshard. A reshard
// that is under way under another number does not make the mark hold.
func testFollowObsoleteMark(t *testing.T, b *backend) {
	m := newMove(t, b, 1, 3)
	s := m.q.Shard(0)
	for name, op := range map[string]func() error{
		"claim": func() error {
			claim, err := s.Claim(m.ctx, "n/1", Fresh, must(s.Owner(m.ctx)))
			if errors.Is(err, ErrHeld) { // the fence came back with the thaw
				claim, err = s.Claim(m.ctx, "n/1", Fresh, must(s.Owner(m.ctx)))
			}
			if err == nil {
				_, err = claim.Release(m.ctx)
			}
			return err
		},
		"push": func() error { _, err := m.q.Push(m.ctx, job("a", "1")); return err },
		"import": func() error {
			_, err := transfer.Import(m.ctx, m.q, "old", entry(1, "b", "1"))
			// An import that goes on would refuse the next freeze.
			return errors.Join(err, s.DB().ForTests().HDel(m.ctx, s.Keys().From, "import/old").Err())
		},
	} {
		for _, text := range []string{`{"shards":1,"layout":1,"tried":2}`, `{"shards":1,"layout":1,"tried":2,"reshard":{"shards":3,"layout":3}}`} {
			m.entry(`{"shards":1,"layout":1,"reshard":{"shards":3,"layout":2}}`)
			m.freeze(m.from.Shard(0))
			m.entry("%s", text)
			if err := op(); err != nil {
				t.Errorf("%s, %s: %v", name, text, err)
			}
		}
	}
	m.begin()
	m.freeze(m.from.Shard(0))
	if _, err := s.Claim(m.ctx, "n/1", Fresh, must(s.Owner(m.ctx))); !errors.Is(err, ErrMoving) || !Transient(err) {
		t.Errorf("claim of a frozen shard: got %v, want %v", err, ErrMoving)
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// testFollowPatience checks that a push waits for the flip for at most the timeout of a command, and ends with its
// context. Nothing is stored then.
func testFollowPatience(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3, func(cfg *Config) { cfg.Timeout = 3 * time.Second })
	m.begin()
	m.freeze(m.from.All()...)
	for name, send := range map[string]func(ctx context.Context) ([]Result, error){
		"push": func(ctx context.Context) ([]Result, error) { return m.q.Push(ctx, job("a", "1"), job("b", "1")) },
		"deliver": func(ctx context.Context) ([]Result, error) {
			r, err := m.q.Deliver(ctx, Delivery{"s", 1}, job("a", "1"))
			return []Result{r}, err
		},
	} {
		results, err := send(m.ctx)
		if !errors.Is(err, ErrUnsent) || !errors.Is(err, ErrMoving) || !Transient(err) || !strings.Contains(err.Error(), `"lowkiq-node queues reshard q" goes on with it`) {
			t.Errorf("%s: got %v, want an error that says what goes on with the reshard", name, err)
		}
		for _, r := range results {
			eq(t, "its result is an error", r.Err != nil, true)
		}
	}
	results, err := transfer.Import(m.ctx, m.q, "old", entry(1, "a", "1"))
	if len(results) != 1 || !errors.Is(err, ErrMoving) || !Transient(err) {
		t.Errorf("import: got %v %v", results, err)
	}
	eq(t, "stored", len(m.stored(m.from))+len(m.stored(m.to)), 0)
}

// testFollowOldQueue checks that the Queue of a program follows two reshards, although it meets no mark.
func testFollowOldQueue(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	m.begin()
	m.freeze(m.from.All()...)
	m.flip()
	_, err := m.q.Push(m.ctx, job("a", "1"))
	m.noErr(err)
	second := m.q.Latest()
	eq(t, "layout", second.Layout(), 2)
	m.entry(`{"shards":7,"layout":5,"was":[{"shards":3,"layout":2,"at":1},{"shards":2,"layout":1,"at":1}]}`)
	_, _, err = m.c.Registry().Read(m.ctx)
	m.noErr(err)
	third := m.q.Latest()
	if third.Layout() != 5 || second.Latest() != third || third.Shards != 7 {
		t.Errorf("got layout %d, want 5", third.Layout())
	}
	if q, err := m.c.Queue(m.ctx, "q"); err != nil || q != third {
		t.Errorf("the client's queue: %v %v, want the latest", q, err)
	}
	for _, q := range []*Queue{m.q, second, third} {
		_, err := q.Push(m.ctx, job("b", fmt.Sprint(q.Layout())))
		m.noErr(err)
	}
	m.noErr(m.q.Pushable())
	eq(t, "stored", m.stored(third), map[string]string{"b": "1 2 5 "})
	eq(t, "shards of the queue", len(m.q.All()), 2)
}

// testFollowLateRead checks that an entry that was read before a reshard and applied after it does not lead back. If
// Redis has lost the reshard, the queue refuses pushes.
func testFollowLateRead(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	m.flip()
	_, _, err := m.c.Registry().Read(m.ctx)
	m.noErr(err)
	latest := m.q.Latest()
	if q, err := m.c.Registry().Adopt("q", `{"shards":2,"layout":1}`); err != nil || q != latest {
		t.Errorf("got %v %v, want the latest queue", q, err)
	}
	_, err = m.q.Push(m.ctx, job("a", "1"))
	m.noErr(err)
	eq(t, "stored", m.stored(m.to), map[string]string{"a": "1 "})
	m.entry(`{"shards":2,"layout":1}`)
	latest.MakeStale()
	if _, err := m.q.Push(m.ctx, job("b", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("after the loss of the reshard: got %v, want %v", err, lowkiq.ErrUnknownQueue)
	}
}

// testFollowDeliver checks that a delivery that the former layout has taken is not taken again for 30 days.
func testFollowDeliver(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := m.q.Deliver(m.ctx, Delivery{"s", 5}, job("a", "1"))
	m.noErr(err)
	m.begin()
	m.freeze(m.from.All()...)
	m.flip()
	for _, c := range []struct {
		number int64
		before bool
	}{{5, true}, {4, true}, {6, false}, {6, true}, {7, false}} {
		if _, err := m.q.Deliver(m.ctx, Delivery{"s", c.number}, job("a", fmt.Sprint(c.number))); errors.Is(err, ErrDelivered) != c.before || err != nil && !c.before {
			t.Errorf("number %d: got %v, want it delivered before: %t", c.number, err, c.before)
		}
	}
	eq(t, "stored", m.stored(m.to), map[string]string{"a": "6 7 "})
	m.left(time.Now().Add(-SourceAge-time.Minute), false)
	m.q.Latest().MakeStale()
	_, err = m.q.Deliver(m.ctx, Delivery{"s", 8}, job("a", "8"))
	m.noErr(err)
	reads := m.commands(func() {
		_, err = m.q.Deliver(m.ctx, Delivery{"s", 9}, job("a", "9"))
		m.noErr(err)
	})
	if slices.Contains(reads, "hget") {
		t.Errorf("after 30 days a delivery sends %v", reads)
	}
}

// commands returns the commands that the producer sends.
func (m *move) commands(during func()) []string {
	var mu sync.Mutex
	var names []string
	recording := true
	m.c.DB().ForTests().AddHook(beforeEach(func(cmd redis.Cmder) {
		mu.Lock()
		defer mu.Unlock()
		if recording {
			names = append(names, cmd.Name())
		}
	}))
	during()
	mu.Lock()
	defer mu.Unlock()
	recording = false
	return names
}

// testFollowOldDelivery checks that a delivery that the oldest of five former layouts has taken is known as long as its
// age allows.
func testFollowOldDelivery(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := m.q.Deliver(m.ctx, Delivery{"s", 5}, job("a", "5"))
	m.noErr(err)
	was := ""
	for layout := 5; layout > 1; layout-- {
		was += fmt.Sprintf(`{"shards":3,"layout":%d,"at":%d},`, layout, time.Now().UnixMilli())
	}
	m.entry(`{"shards":3,"layout":6,"was":[%s{"shards":2,"layout":1,"at":%d}],"needs":["reshard"]}`, was, time.Now().UnixMilli())
	_, _, err = m.c.Registry().Read(m.ctx)
	m.noErr(err)
	if _, err := m.q.Deliver(m.ctx, Delivery{"s", 5}, job("a", "5")); !errors.Is(err, ErrDelivered) {
		t.Errorf("got %v, want ErrDelivered", err)
	}
}

// testFollowOthersGoOn checks that pushes to a shard that is not frozen yet do not wait for pushes to a frozen shard,
// although they share commits.
func testFollowOthersGoOn(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	free, frozen := "", ""
	for i := 0; free == "" || frozen == ""; i++ {
		if id := fmt.Sprint("id", i); m.from.Of(id).Index == 0 {
			frozen = id
		} else {
			free = id
		}
	}
	m.begin()
	m.freeze(m.from.Shard(0))
	sent := make(chan error, 8)
	for i := range 8 {
		go func() {
			_, err := m.q.Push(m.ctx, job(frozen, fmt.Sprint(i)), job(free, fmt.Sprint("with", i)))
			sent <- err
		}()
	}
	m.awaitReads(8)
	longest := time.Duration(0)
	for i := range 50 {
		begun := time.Now()
		_, err := m.q.Push(m.ctx, job(free, fmt.Sprint(i)))
		m.noErr(err)
		longest = max(longest, time.Since(begun))
	}
	t.Logf("the longest push to a shard that is not frozen took %s", longest)
	if len(sent) > 0 {
		t.Error("a push to a frozen shard ended before the flip")
	}
	m.cancel()
	for range 8 {
		m.noErr(<-sent)
	}
	eq(t, "payloads of the frozen shard", len(strings.Fields(m.stored(m.from)[frozen])), 8)
	eq(t, "payloads of the other shard", len(strings.Fields(m.stored(m.from)[free])), 58)
	m.begin()
	m.freeze(m.from.Shard(0))
	ctx, stop := context.WithCancel(m.ctx)
	go func() { _, err := m.q.Push(ctx, job(frozen, "late"), job(free, "late")); sent <- err }()
	m.awaitReads(3)
	stop()
	if err := <-sent; err == nil {
		t.Error("a push that was given up reports no error")
	}
}

// testFollowImport checks that a source that was forgotten in the former layout is refused in the next layout.
func testFollowImport(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := transfer.Import(m.ctx, m.q, "old", entry(1, "a", "1"))
	m.noErr(err)
	m.noErr(transfer.Forget(m.ctx, m.q, "old"))
	m.begin()
	m.freeze(m.from.All()...)
	m.flip()
	_, _, err = m.c.Registry().Read(m.ctx)
	m.noErr(err)
	if _, err := transfer.Import(m.ctx, m.q, "old", entry(1, "a", "1"), entry(2, "b", "1")); !errors.Is(err, transfer.ErrForgotten) {
		t.Errorf("got %v, want %v", err, transfer.ErrForgotten)
	}
	_, err = transfer.Import(m.ctx, m.q, "new", entry(1, "a", "1"), entry(2, "b", "1"))
	m.noErr(err)
	eq(t, "stored", m.stored(m.to), map[string]string{"a": "1 ", "b": "1 "})
}

// serveShard handles the jobs of a shard once.
func (m *move) serveShard(s *Shard, n int) {
	m.t.Helper()
	claim, err := s.Claim(m.ctx, "n/1", Fresh, must(s.Owner(m.ctx)))
	m.noErr(err)
	p, err := claim.Pop(m.ctx, PopRequest{IDs: 100, Bytes: 1 << 20, MaxCrashes: 3})
	m.noErr(err)
	eq(m.t, "popped", len(p.Jobs), n)
	acks := Acks{Flight: p.Flight}
	for _, j := range p.Jobs {
		acks.IDs = append(acks.IDs, j.ID)
		acks.Answers = append(acks.Answers, Answer{ID: j.ID, Callers: j.Callers, Result: []byte("done " + j.ID)})
		acks.Runs.Add(&journal.Run{ID: j.ID, Verdict: journal.Done, RetryCount: -1, Ran: journal.Ran{Due: time.Now(), Popped: time.Now(), Began: time.Now()}})
	}
	_, err = claim.Ack(m.ctx, acks)
	m.noErr(err)
	_, err = claim.Release(m.ctx)
	m.noErr(err)
}

// copyJobs copies the records of a frozen shard to the next layout.
func (m *move) copyJobs(s *Shard) {
	m.t.Helper()
	db := m.admin.DB().ForTests()
	records, err := db.HGetAll(m.ctx, s.Keys().Tag+"old:jobs").Result()
	m.noErr(err)
	for id, record := range records {
		if id != "" {
			to := m.to.Of(id).Keys()
			m.noErr(db.HSet(m.ctx, to.Jobs, id, record).Err())
			m.noErr(db.RPush(m.ctx, to.Ready, id).Err())
		}
	}
}

// testFollowCalls checks that callers whose payloads end before, at and after the flip get their replies, without a
// message.
func testFollowCalls(t *testing.T, b *backend) {
	m := newMove(t, b, 1, 3)
	called := func(id string) chan lowkiq.Reply {
		got := make(chan lowkiq.Reply, 1)
		go func() {
			ctx, cancel := context.WithTimeout(m.ctx, patience)
			defer cancel()
			reply, err := m.c.Call(ctx, "q", job(id, "1"))
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			got <- reply
		}()
		return got
	}
	await := func(id string, in *Queue) {
		t.Helper()
		for end := time.Now().Add(patience); m.stored(in)[id] == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not stored", id)
			}
		}
	}
	before := called("before")
	await("before", m.from)
	m.serveShard(m.from.Shard(0), 1)
	across := called("across")
	await("across", m.from)
	m.begin()
	m.freeze(m.from.All()...)
	m.c.CheckReplies()
	at := called("at")
	m.awaitReads(3)
	m.flip()
	await("at", m.to)
	for range 3 { // its payload is nowhere to be seen
		m.c.CheckReplies()
	}
	m.copyJobs(m.from.Shard(0))
	m.left(time.Now(), false)
	m.c.CheckReplies()
	after := called("after")
	await("after", m.to)
	for _, s := range m.to.All() {
		n := 0
		for _, id := range []string{"across", "at", "after"} {
			if m.to.Of(id) == s {
				n++
			}
		}
		m.serveShard(s, n)
	}
	m.c.CheckReplies()
	for id, reply := range map[string]chan lowkiq.Reply{"before": before, "across": across, "at": at, "after": after} {
		got := <-reply
		wantReply(t, id, got, nil, lowkiq.ReplyDone, "done "+id)
	}
}

// testFollowReply checks that a reply that was stored before a reshard is found afterwards. While jobs are copied, a
// payload that no shard has is pending. Afterwards there is no reply.
func testFollowReply(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	pending := func(id string) lowkiq.Reply {
		ctx, cancel := context.WithTimeout(m.ctx, 50*time.Millisecond)
		defer cancel()
		all, err := m.c.Calls(ctx, "q", time.Hour, job(id, "1"))
		m.noErr(err)
		m.noErr(all[0].Err)
		return all[0].Reply
	}
	done, moved := pending("done"), lowkiq.Reply{}
	m.serveShard(m.from.Of("done"), 1)
	moved = pending("moved")
	m.begin()
	m.freeze(m.from.All()...)
	got, err := m.c.Reply(m.ctx, "q", "moved", moved.Token)
	wantReply(t, "moved, frozen", got, err, lowkiq.ReplyPending, "")
	m.flip()
	got, err = m.c.Reply(m.ctx, "q", "moved", moved.Token)
	wantReply(t, "moved, on its way", got, err, lowkiq.ReplyPending, "")
	got, err = m.c.Reply(m.ctx, "q", "done", done.Token)
	wantReply(t, "done before", got, err, lowkiq.ReplyDone, "done done")
	m.left(time.Now(), false)
	if got, err := m.c.Reply(m.ctx, "q", "moved", moved.Token); !errors.Is(err, lowkiq.ErrNoReply) {
		t.Errorf("a payload that is gone: got %v %v, want %v", got, err, lowkiq.ErrNoReply)
	}
}

// testFollowJournals checks that the runs of an id in the former layout are part of its history.
func testFollowJournals(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := m.q.Push(m.ctx, job("a", "1"))
	m.noErr(err)
	m.serveShard(m.from.Of("a"), 1)
	m.begin()
	m.freeze(m.from.All()...)
	m.flip()
	_, err = m.q.Push(m.ctx, job("a", "1"))
	m.noErr(err)
	m.serveShard(m.to.Of("a"), 1)
	for _, id := range []string{"a", ""} {
		runs, err := browse.Of(m.q).Runs(m.ctx, browse.RunQuery{ID: id})
		m.noErr(err)
		eq(t, fmt.Sprintf("runs of %q", id), len(runs.List), 2)
		if !slices.IsSortedFunc(runs.List, func(x, y browse.Run) int { return y.Ended.Compare(x.Ended) }) {
			t.Errorf("runs of %q: want the newest first, got %+v", id, runs.List)
		}
		runs, err = browse.Of(m.q).RunsAfter(m.ctx, 0, browse.RunQuery{ID: id})
		m.noErr(err)
		eq(t, fmt.Sprintf("followed runs of %q", id), len(runs.List) <= 2, true)
	}
}

// testFollowAudit checks that an audit reports nothing about the keys that stay in a former layout, or that a reshard
// needs for a time. It reports jobs that are stored where no node looks.
func testFollowAudit(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	for i := range 9 {
		_, err := m.q.Deliver(m.ctx, Delivery{"s", int64(i + 1)}, job(fmt.Sprint("id", i), "1"))
		m.noErr(err)
	}
	for _, s := range m.from.All() {
		m.serveShard(s, int(must(m.admin.DB().ForTests().HLen(m.ctx, s.Keys().Jobs).Result())))
	}
	_, err := m.q.Push(m.ctx, job("a", "1"))
	m.noErr(err)
	faults := func() string {
		t.Helper()
		got, err := audit.Run(m.ctx, m.admin, audit.Config{Orphans: true})
		m.noErr(err)
		return linesOf(got)
	}
	eq(t, "before", faults(), "")
	m.begin()
	m.noErr(m.admin.DB().ForTests().HSet(m.ctx, m.to.Shard(2).Keys().Coming, "need", 2).Err())
	m.freeze(m.from.All()...)
	eq(t, "frozen", faults(), "")
	m.noErr(m.admin.DB().ForTests().Del(m.ctx, m.to.Shard(2).Keys().Coming).Err())
	m.flip()
	eq(t, "copying", faults(), "")
	m.left(time.Now(), false)
	if got := faults(); !strings.Contains(got, "queue q has left layout 1, and its jobs are copied") {
		t.Errorf("frozen jobs that are left: got\n%s", got)
	}
	for _, s := range m.from.All() {
		_, err := s.Run(m.ctx, m.admin.DB().Scripts.Freeze, "drop", MovedMark(2), "100000")
		m.noErr(err)
	}
	eq(t, "done", faults(), "")
	lost := m.from.Shard(0).Keys().Jobs
	m.noErr(m.admin.DB().ForTests().HSet(m.ctx, lost, "a", "x").Err())
	if got := faults(); !strings.Contains(got, "key "+lost+": queue q has left layout 1, where no node handles jobs") {
		t.Errorf("a job in the former layout: got\n%s", got)
	}
}

// testFollowRemoved checks that a queue is not deleted while it is being resharded. A later deletion deletes the rest
// of the former layouts, except for their marks.
func testFollowRemoved(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	for i := range 9 {
		_, err := m.q.Deliver(m.ctx, Delivery{"s", int64(i + 1)}, job(fmt.Sprint("id", i), "1"))
		m.noErr(err)
	}
	m.begin()
	m.freeze(m.from.All()...)
	if _, err := remove.Delete(m.ctx, m.admin, "q", remove.Deletion{Force: true, Handled: nobody}); !errors.Is(err, remove.ErrHandled) || !strings.Contains(err.Error(), "queues reshard q") {
		t.Errorf("before the flip: got %v, want a refusal", err)
	}
	m.flip()
	if _, err := remove.Delete(m.ctx, m.admin, "q", remove.Deletion{Force: true, Handled: nobody}); !errors.Is(err, remove.ErrHandled) {
		t.Errorf("while jobs are copied: got %v, want a refusal", err)
	}
	m.left(time.Now(), false)
	_, err := remove.Delete(m.ctx, m.admin, "q", remove.Deletion{Force: true, Handled: nobody})
	m.noErr(err)
	for _, s := range m.from.All() {
		keys := must(m.admin.DB().ForTests().Exists(m.ctx, s.Keys().From, s.Keys().Old("jobs"), s.Keys().Journal).Result())
		mark := must(m.admin.DB().ForTests().HGet(m.ctx, s.Keys().Count, "last").Result())
		eq(t, "keys that are left", keys, int64(0))
		eq(t, "the mark stays", strings.HasPrefix(mark, "moved 2 "), true)
	}
	if _, err := m.q.Push(m.ctx, job("a", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("a push of a program that knew layout 1: got %v, want %v", err, lowkiq.ErrUnknownQueue)
	}
}

// testFollowCount checks that a program with a former number of shards in its configuration gets the present number. A
// number that the queue never had is refused.
func testFollowCount(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	m.left(time.Now(), false)
	c := b.open(t, func(cfg *Config) { cfg.Cluster = m.c.Cluster() })
	q, err := c.Register(m.ctx, lowkiq.Queue{Name: "q", Shards: 2})
	m.noErr(err)
	eq(t, "shards", q.Shards, 3)
	if _, err := c.Register(m.ctx, lowkiq.Queue{Name: "q", Shards: 4}); !errors.Is(err, lowkiq.ErrShardCount) {
		t.Errorf("a number that it never had: got %v, want %v", err, lowkiq.ErrShardCount)
	}
}

// testFollowRestored checks that Redis loses the entry of a queue that was resharded, or is being resharded. A process
// that knows it restores its layouts. After a deletion the queue begins anew.
func testFollowRestored(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	read := func() RegistryEntry {
		t.Helper()
		_, entry, err := m.admin.Registry().Stored(m.ctx, "q")
		m.noErr(err)
		return entry
	}
	for _, state := range []func(){m.begin, m.cancel, m.flip, func() { m.left(time.Now(), false) }} {
		state()
		_, _, err := m.c.Registry().Read(m.ctx)
		m.noErr(err)
		want := read()
		m.noErr(m.admin.DB().ForTests().Del(m.ctx, m.admin.DB().Keys.Queues()).Err())
		_, err = m.c.Registry().Restore(m.ctx, m.q)
		m.noErr(err)
		if got := read(); !reflect.DeepEqual(got.Was, want.Was) || !reflect.DeepEqual(got.Reshard, want.Reshard) || got.Tried != want.Tried || !slices.Equal(got.Needs, want.Needs) || got.Layout != want.Layout || got.Shards != want.Shards {
			t.Errorf("got the entry %+v, want %+v", got, want)
		}
	}
	m.entry(`{"shards":3,"layout":2,"removed":true,"was":[{"shards":2,"layout":1}],"needs":["reshard"]}`)
	_, err := m.c.Registry().Restore(m.ctx, m.q)
	m.noErr(err)
	if got := read(); got.Layout != 3 || got.Was != nil || got.Needs != nil {
		t.Errorf("after a deletion: got the entry %+v, want an entry of layout 3 alone", got)
	}
}

// testFollowDeleted checks that a program does not follow a queue that was resharded, deleted and registered anew.
func testFollowDeleted(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	m.begin()
	m.freeze(m.from.All()...)
	for _, text := range []string{`{"shards":3,"layout":2,"removed":true}`, `{"shards":3,"layout":3}`} {
		m.entry("%s", text)
		if _, err := m.q.Push(m.ctx, job("a", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
			t.Errorf("%s: got %v, want %v", text, err, lowkiq.ErrUnknownQueue)
		}
	}
}

// testFollowCostsNothing checks that a push, a pop and a delivery of a queue that was never resharded send the same
// commands as before.
func testFollowCostsNothing(t *testing.T, b *backend) {
	m := newMove(t, b, 2, 3)
	_, err := m.q.Push(m.ctx, job("first", "1"))
	m.noErr(err)
	sent := slices.DeleteFunc(m.commands(func() { _, err = m.q.Push(m.ctx, job("a", "1")) }), func(name string) bool { return name != "evalsha" && name != "hget" })
	eq(t, "a push", sent, []string{"evalsha"})
	m.noErr(err)
	_, err = m.q.Deliver(m.ctx, Delivery{"s", 1}, job("first", "1"))
	m.noErr(err)
	eq(t, "a delivery", slices.Contains(m.commands(func() { _, err = m.q.Deliver(m.ctx, Delivery{"s", 2}, job("a", "1")) }), "hget"), false)
	m.noErr(err)
}

// TestRulings checks the meaning of marks, for entries that are read after the mark was seen.
func TestRulings(t *testing.T) {
	t.Parallel()
	reshard := &Reshard{Shards: 4, Layout: 3}
	former := func(layouts ...int) (was []Former) {
		for _, l := range layouts {
			was = append(was, Former{Layout: l})
		}
		return was
	}
	for _, c := range []struct {
		name, mark string
		layout     int
		entry      RegistryEntry
		want       string
	}{
		{"deletion under way", "removed T 1", 2, RegistryEntry{Layout: 2, Removing: "T"}, "deleted"},
		{"deleted", "removed T 1", 2, RegistryEntry{Layout: 2, Removed: true}, "deleted"},
		{"deletion given up", "removed T 1", 2, RegistryEntry{Layout: 2}, "obsolete"},
		{"deletion given up, resharded", "removed T 1", 2, RegistryEntry{Layout: 2, Reshard: reshard}, "obsolete"},
		{"registered anew", "removed T 1", 2, RegistryEntry{Layout: 3}, "deleted"},
		{"frozen", "moved 3 1", 2, RegistryEntry{Layout: 2, Reshard: reshard}, "waits"},
		{"cancelled", "moved 3 1", 2, RegistryEntry{Layout: 2, Tried: 3}, "obsolete"},
		{"an earlier attempt", "moved 2 1", 1, RegistryEntry{Layout: 1, Tried: 2, Reshard: reshard}, "obsolete"},
		{"flipped", "moved 3 1", 2, RegistryEntry{Layout: 3, Was: former(2)}, "left"},
		{"flipped twice", "moved 2 1", 1, RegistryEntry{Layout: 4, Was: former(3, 1)}, "left"},
		{"a layout that is too old for the entry", "moved 2 1", 1, RegistryEntry{Layout: 20, Was: former(19, 18, 17, 16, 15, 14, 13, 12)}, "left"},
		{"not a layout of the queue", "moved 2 1", 1, RegistryEntry{Layout: 4, Was: former(3)}, "deleted"},
		{"flipped, then deleted", "moved 3 1", 2, RegistryEntry{Layout: 3, Removed: true}, "deleted"},
		{"flipped, and being deleted", "moved 3 1", 2, RegistryEntry{Layout: 3, Removing: "T", Was: former(2)}, "left"},
		{"frozen late, and being deleted", "moved 3 1", 2, RegistryEntry{Layout: 2, Removing: "T", Tried: 3}, "obsolete"},
	} {
		if got := c.entry.Rule(c.mark, c.layout); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestFrozenJobs checks that no job that waits for a flip is behind a refused payload of its id.
func TestFrozenJobs(t *testing.T) {
	t.Parallel()
	moving := fmt.Errorf("%w", ErrMoving)
	jobs := []lowkiq.Push{job("a", "1"), job("b", "1"), job("a", "2"), job("b", "2"), job("c", "1")}
	results := []Result{{Err: ErrTooManyPayloads}, {}, {Err: moving}, {Err: moving}, {Err: moving}}
	eq(t, "jobs that wait", FrozenJobs(jobs, results), []int{3, 4})
	if err := results[2].Err; !errors.Is(err, ErrUnsent) || !errors.Is(err, ErrTooManyPayloads) || errors.Is(err, ErrMoving) {
		t.Errorf("the payload behind the refused payload: got %v, want ErrUnsent", err)
	}
}
