package rubyqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// The longest that one command or script may keep the old Redis, which still serves those who use it.
const worstScript = 25 * time.Millisecond

// crowd is what a queue of Ruby's Lowkiq has: of each id so many payloads of so many bytes, some of them in flight, and in
// the morgue. Ruby has no limits, so that some of these are far beyond those of a queue here.
type crowd struct {
	ids, payloads, size int
	id, failure         int // bytes of an id, and of its error
	flying              int // ids in flight; they wait, too
	equal               bool
}

func (c crowd) String() string {
	scores := "scores that rise"
	if c.equal {
		scores = "equal scores"
	}
	return fmt.Sprintf("%d ids of %d bytes, %d in flight, errors of %d bytes, %d payloads of %d bytes each, %s", c.ids, c.id, c.flying,
		c.failure, c.payloads, c.size, scores)
}

var crowds = []crowd{
	{ids: 1, payloads: 10_000, size: 1670, id: 10, flying: 1},
	{ids: 1, payloads: 10_000, size: 1670, id: 10, flying: 1, equal: true},
	{ids: 2, payloads: 10_000, size: 10, id: 10, flying: 1, equal: true},
	{ids: 3, payloads: 16, size: 1 << 20, id: 10, flying: 1},
	{ids: 3, payloads: 100, size: 160 << 10, id: 10, flying: 1, equal: true},
	{ids: 1, payloads: 1000, size: 16 << 10, id: 500, flying: 1, equal: true},
	{ids: 1, payloads: 30_000, size: 50, id: 10},
	{ids: 3000, payloads: 1, size: 50, id: 10, flying: 1000},
	{ids: 1000, payloads: 16, size: 600, id: 500, flying: 500, failure: 4000},
	{ids: 100, payloads: 1, size: 10, id: 10, flying: 50, failure: 256 << 10},
}

// rounds is how often a queue is moved: whatever else the machine does lengthens other calls each time.
const rounds = 3

// TestWorstScript does to queues of all kinds what a move and the way back do, and asks Redis after each script and command
// what that has cost: the time that it took by the statistics of commands, and CPU of the main thread, which does other
// things, too. The smaller of the two counts, and of the same call the smallest of some rounds; the longest time that the
// slow log has, of any round, is told beside it. A payload that is larger than a queue here may have is measured and not
// judged: Redis reads a payload whole.
func TestWorstScript(t *testing.T) {
	if os.Getenv("LOWKIQ_WORST") == "" {
		t.Skip("LOWKIQ_WORST=30s asks for it")
	}
	server := redistest.StartOld(t, "--slowlog-log-slower-than", "1000", "--slowlog-max-len", "100000")
	q := open(t, server.URL(), "Orders", 5)
	w := &costs{info: redis.NewClient(&redis.Options{Addr: server.Addr()}), calls: map[string][]time.Duration{}}
	defer w.info.Close()
	for _, s := range scripts {
		if err := w.info.ScriptLoad(t.Context(), s.Text()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	q.db.ForTests().AddHook(w)
	worst := map[string]cost{}
	for _, c := range crowds {
		for name, took := range w.measure(t, q, c) {
			if took > worst[name].took {
				worst[name] = cost{took, c}
			}
		}
	}
	slow := slowest(t, w.info)
	for _, name := range slices.SortedFunc(maps.Keys(worst), func(a, b string) int { return int(worst[b].took - worst[a].took) }) {
		found := worst[name]
		t.Logf("%-9s %9s, slow log %9s: %s", name, found.took.Round(time.Microsecond), slow[name], found.of)
		if found.took > worstScript {
			t.Errorf("%s: one call took %s, want at most %s", name, found.took, worstScript)
		}
	}
	for name, took := range w.measure(t, q, crowd{ids: 1, payloads: 4, size: 4 << 20, id: 10, flying: 1}) {
		if took > worstScript/5 {
			t.Logf("with payloads of 4 MiB: %-9s %9s", name, took.Round(time.Microsecond))
		}
	}
}

// measure moves a queue in some rounds, and returns what the most expensive call of each kind has cost.
func (w *costs) measure(t *testing.T, q *Queue, c crowd) map[string]time.Duration {
	t.Helper()
	least := map[string][]time.Duration{}
	for range rounds {
		if err := w.info.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		c.fill(t, q)
		w.calls = map[string][]time.Duration{}
		c.everything(t, q)
		for name, calls := range w.calls {
			for i := range min(len(calls), len(least[name])) {
				calls[i] = min(calls[i], least[name][i])
			}
			least[name] = calls
		}
	}
	most := map[string]time.Duration{}
	for name, calls := range least {
		most[name] = slices.Max(calls)
	}
	return most
}

// cost is what the most expensive call of a kind has cost, and to which queue it was sent.
type cost struct {
	took time.Duration
	of   crowd
}

// costs is a hook that asks what each call has cost, in turn, but for those in pipelines.
type costs struct {
	info  *redis.Client
	calls map[string][]time.Duration
}

func (w *costs) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *costs) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *costs) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		cpu, took := w.used(ctx, cmd.Name())
		err := next(ctx, cmd)
		cpuThen, tookThen := w.used(ctx, cmd.Name())
		spent := min(cpuThen-cpu, tookThen-took)
		name := nameOf(cmd.Args())
		w.calls[name] = append(w.calls[name], spent)
		return err
	}
}

// used is what Redis's main thread has used, to receive and to answer included, and how long all calls of a command have taken.
func (w *costs) used(ctx context.Context, command string) (cpu, took time.Duration) {
	for line := range strings.Lines(w.info.Info(ctx, "all").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "used_cpu_user_main_thread", "used_cpu_sys_main_thread":
			seconds, _ := strconv.ParseFloat(value, 64)
			cpu += time.Duration(seconds * float64(time.Second))
		case "cmdstat_" + command:
			_, usec, _ := strings.Cut(value, "usec=")
			usec, _, _ = strings.Cut(usec, ",")
			us, _ := strconv.ParseInt(usec, 10, 64)
			took += time.Duration(us) * time.Microsecond
		}
	}
	return cpu, took
}

// nameOf is a script's name, or a command's.
func nameOf[V any](args []V) string {
	if len(args) > 1 {
		for _, s := range scripts {
			if one := fmt.Sprint(args[1]); one == s.SHA() || one == s.Text() {
				return strings.TrimPrefix(s.Name, "ruby queue: ")
			}
		}
	}
	return strings.ToUpper(fmt.Sprint(args[0]))
}

// slowest reads in the slow log how long the slowest of each kind took.
func slowest(t *testing.T, rdb *redis.Client) map[string]time.Duration {
	t.Helper()
	log, err := rdb.SlowLogGet(t.Context(), -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]time.Duration{}
	for _, one := range log {
		name := nameOf(one.Args)
		found[name] = max(found[name], one.Duration)
	}
	return found
}

// fill brings a crowd to Redis.
func (c crowd) fill(t *testing.T, q *Queue) {
	t.Helper()
	ctx := t.Context()
	pipe, held := q.db.ForTests().Pipeline(), 0
	send := func(least int) {
		t.Helper()
		if held >= least {
			if _, err := pipe.Exec(ctx); err != nil {
				t.Fatal(err)
			}
			held = 0
		}
	}
	for i := range c.ids {
		id := c.name(i)
		shard := shardText(id, q.shards)
		pipe.Do(ctx, "ZADD", q.key("all_ids_lex"), 0, id)
		pipe.Do(ctx, "ZADD", q.key("all_ids_scored_by_perfrom_in"), 1.6e9+float64(i), id)
		pipe.Do(ctx, "ZADD", q.key("all_ids_scored_by_retry_count"), -1, id)
		pipe.Do(ctx, "ZADD", q.key("ids_scored_by_perform_in:"+shard), 1.6e9+float64(i), id)
		pipe.Do(ctx, "ZADD", q.key("morgue:all_ids_lex"), 0, id)
		pipe.Do(ctx, "ZADD", q.key("morgue:all_ids_scored_by_updated_at"), 1.6e9+float64(i), id)
		piles := []string{"payloads:", "morgue:payloads:"}
		if c.failure > 0 {
			pipe.Do(ctx, "HSET", q.key("errors"), id, strings.Repeat("e", c.failure))
			pipe.Do(ctx, "HSET", q.key("morgue:errors"), id, strings.Repeat("e", c.failure))
		}
		if i < c.flying {
			piles = append(piles, "processing:payloads:")
			pipe.Do(ctx, "HSET", q.key("processing:ids_with_perform_in:"+shard), id, 1.5e9)
			pipe.Do(ctx, "HSET", q.key("processing:ids_with_retry_count:"+shard), id, 2)
			if c.failure > 0 {
				pipe.Do(ctx, "HSET", q.key("processing:errors:"+shard), id, strings.Repeat("e", c.failure))
			}
		}
		for _, pile := range piles {
			for k := range c.payloads {
				pipe.Do(ctx, "ZADD", q.key(pile+id), c.score(k), c.payload(pile, k))
				held += c.size
				send(8 << 20)
			}
		}
		held += 1000 + 3*c.failure
		send(8 << 20)
	}
	send(1)
}

func (c crowd) name(i int) string { return strings.Repeat("i", c.id-6) + fmt.Sprintf("%06d", i) }

func (c crowd) score(k int) float64 {
	if c.equal {
		return 1
	}
	return float64(k)
}

// payload is one of a pile, which begins as all others do: what lies in the morgue is in flight, and what waits is not.
func (c crowd) payload(pile string, k int) string {
	return strings.Repeat("x", max(0, c.size-8)) + fmt.Sprintf("%c%06d", strings.TrimPrefix(pile, "morgue:")[0], k)
}

// everything is a survey, a move of which half is put back to where producers have pushed meanwhile, and a way back.
func (c crowd) everything(t *testing.T, q *Queue) {
	t.Helper()
	ctx := t.Context()
	no := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	const most = 10_000
	flights, err := q.ReadFlights(ctx)
	no(err)
	_, err = q.ReadSigns(ctx)
	no(err, q.FindStrays(ctx, func(string, int) {}), q.FindOrphans(ctx, func(Orphan) {}))
	ids, buried := c.all(t, q.ReadWaiting), c.all(t, q.ReadMorgue)
	each := func(ids []string, read func([]string) ([]*Entry, error)) (all []*Entry) {
		t.Helper()
		for len(ids) > 0 {
			some, err := read(ids)
			no(err)
			ids, all = ids[len(some):], append(all, some...)
		}
		return all
	}
	look := func(ids []string) ([]*Entry, error) { return q.Peek(ctx, ids, flights, most) }
	take := func(ids []string) ([]*Entry, error) { return q.Take(ctx, ids, flights, most) }
	bury := func(ids []string) ([]*Entry, error) { return q.TakeBuried(ctx, ids, most) }
	each(ids, look)
	each(buried, func(ids []string) ([]*Entry, error) { return q.PeekBuried(ctx, ids, most) })
	_, err = q.BeginRun(ctx)
	no(err, q.MarkFlights(ctx, flights))
	entries := slices.Concat(each(ids, take), each(buried, bury))
	for last := int64(0); ; {
		some, err := q.ReadTaken(ctx, last, most)
		no(err)
		if len(some) == 0 {
			break
		}
		last = some[len(some)-1].Number
	}
	c.pushMeanwhile(t, q)
	var kept, forgotten []int64
	for i, e := range entries {
		switch {
		case i < 40:
			no(q.PutBack(ctx, e.Number))
		case i%2 == 0:
			kept = append(kept, e.Number)
		default:
			forgotten = append(forgotten, e.Number)
		}
	}
	entries = slices.Concat(each(ids, take), each(buried, bury))
	for i, e := range entries {
		if e != nil && i < 40 {
			kept = append(kept, e.Number)
		} else if e != nil {
			forgotten = append(forgotten, e.Number)
		}
	}
	no(q.Keep(ctx, time.Hour, kept...), q.Forget(ctx, forgotten...), q.SweepSets(ctx))
	c.pushMeanwhile(t, q)
	some := ids[:min(len(ids), idsPerScript)]
	_, err = q.ReadKept(ctx, some, false, most)
	no(err)
	c.comeBack(t, q, some)
	_, err = q.EndSealing(ctx)
	no(err)
}

// all are the ids that a list has.
func (c crowd) all(t *testing.T, read func(ctx context.Context, from, n int) ([]Due, error)) (ids []string) {
	t.Helper()
	for {
		due, err := read(t.Context(), len(ids), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(due) == 0 {
			return ids
		}
		for _, d := range due {
			ids = append(ids, d.ID)
		}
	}
}

// pushMeanwhile fills some ids again, as producers do while a move is under way.
func (c crowd) pushMeanwhile(t *testing.T, q *Queue) {
	t.Helper()
	few := c
	few.ids, few.flying = min(c.ids, 20), 0
	few.payloads = min(c.payloads, 10_000)
	few.fill(t, q)
}

// comeBack writes jobs down, as large as they may be, and gives them to Ruby, where as many wait.
func (c crowd) comeBack(t *testing.T, q *Queue, ids []string) {
	t.Helper()
	ctx, job := t.Context(), Job{At: 1.6e9, Retries: -1}
	for k := range min(c.payloads, 10_000) {
		job.Payloads = append(job.Payloads, Payload{c.score(k), []byte(c.payload("back", k))})
	}
	for i, id := range ids[:min(len(ids), 40)] {
		number, err := q.Stage(ctx, id, false, job)
		if err == nil {
			_, err = q.ReadStaged(ctx, 0)
		}
		if err == nil && i%4 == 3 {
			err = q.Unstage(ctx, number)
		} else if err == nil {
			err = q.Publish(ctx, Staged{number, id, false})
		}
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
}
