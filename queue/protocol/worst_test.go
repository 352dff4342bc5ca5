package protocol_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// LOWKIQ_WORST=30s makes TestWorstScript look that long for the script that costs Redis most. "make bench"
// sets it.
const worstFor = "LOWKIQ_WORST"

// worstCPU is the maximum CPU time of one script.
const worstCPU = 50 * time.Millisecond

// TestWorstScript fills a shard at random within the default limits, takes every step of workers and people
// on it, and asks Redis after each script for its cost in CPU time of its main thread.
func TestWorstScript(t *testing.T) {
	patience, err := time.ParseDuration(os.Getenv(worstFor))
	if err != nil {
		t.Skipf("%s=30s asks for it", worstFor)
	}
	server := redistest.Start(t)
	worst := &worstOf{found: map[string]worstCase{}, info: redis.NewClient(&redis.Options{Addr: server.Addr()})}
	defer worst.info.Close()
	b := &backend{url: server.URL()}
	for begun, seed := time.Now(), uint64(1); time.Since(begun) < patience; seed++ {
		r := newRig(t, b)
		if seed == 1 {
			r.noErr(r.c.DB().Load(r.ctx))
		}
		worst.names(r.c)
		r.c.DB().ForTests().AddHook(worst)
		random := rand.New(rand.NewPCG(seed, 0))
		fill, what := randomFill(r, random)
		worst.what = fmt.Sprintf("seed %d: %s", seed, what)
		everything(r, fill(), randomError(random))
		fill()
		r.completeAll()
		worst.what = "4,000 long ids in flight, acked from the last to the first"
		other := newRig(t, b, func(cfg *Config) { cfg.Cluster = "acks" })
		other.c.DB().ForTests().AddHook(worst)
		worst.acks(other)
		worst.what = "100 states of 64 KiB that have expired"
		other.expiredStates()
		worst.journals(t, b)
		if seed == 1 {
			worst.clusterKeys(t, b)
			worst.holding(t, b)
		}
		r.noErr(r.c.DB().ForTests().FlushDB(r.ctx).Err())
	}
	t.Logf("acks of 4 x 999 ids by name, the last first:\n%s", worst.ackStats)
	worst.judge(t)
}

// judge reports what each script has cost.
func (w *worstOf) judge(t *testing.T) {
	t.Helper()
	names := slices.SortedFunc(maps.Keys(w.found), func(x, y string) int { return int(w.found[y].cpu - w.found[x].cpu) })
	for _, name := range names {
		found := w.found[name]
		t.Logf("%-14s %8s  %s", name, found.cpu.Round(10*time.Microsecond), found.what)
		if found.cpu > worstCPU {
			t.Errorf("%s: got %s of CPU in one call, want at most %s", name, found.cpu, worstCPU)
		}
	}
}

type worstCase struct {
	cpu  time.Duration
	what string
}

// worstOf is a hook that keeps the most expensive call of each script.
type worstOf struct {
	info  *redis.Client
	what  string
	mu    sync.Mutex
	found map[string]worstCase // guarded by mu
	sha   map[string]string

	ackStats string // what Redis says of the commands of acks by name
}

func (w *worstOf) names(c *Client) {
	w.sha = map[string]string{}
	for _, s := range c.DB().Scripts.All() {
		w.sha[s.SHA()] = s.Name
	}
}

func (w *worstOf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *worstOf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name := ""
		if args := cmd.Args(); len(args) > 1 && cmd.Name() == "evalsha" {
			name = w.sha[fmt.Sprint(args[1])]
		}
		if name == "" {
			return next(ctx, cmd)
		}
		before := w.cpu(ctx)
		err := next(ctx, cmd)
		spent := w.cpu(ctx) - before
		w.mu.Lock()
		defer w.mu.Unlock()
		if spent > w.found[name].cpu {
			w.found[name] = worstCase{spent, w.what}
		}
		return err
	}
}

// ProcessPipelineHook sends each command by itself.
func (w *worstOf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			err := w.ProcessHook(func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, []redis.Cmder{cmd}) })(ctx, cmd)
			if first == nil {
				first = err
			}
		}
		return first
	}
}

// expiredStates makes one answer delete 100 states of the largest size.
func (r *rig) expiredStates() {
	r.t.Helper()
	keys, rdb := r.s.Keys(), r.c.DB().ForTests()
	for _, id := range idsOf("old", 100) {
		r.noErr(rdb.HSet(r.ctx, keys.States, id, strings.Repeat("s", lowkiq.MaxStateBytes)).Err())
		r.noErr(rdb.ZAdd(r.ctx, keys.Statesx, redis.Z{Score: 1, Member: id}).Err())
	}
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", SetState: true, State: []byte("s"), StateFor: time.Hour}}})
	eq(r.t, "states", rdb.HLen(r.ctx, keys.States).Val(), 1)
}

// acks acks each id of long flights by name, in the most expensive order, and records the cost of each
// command.
func (w *worstOf) acks(r *rig) {
	flights := r.longFlights()
	r.noErr(w.info.ConfigResetStat(r.ctx).Err())
	for _, f := range slices.Backward(flights) {
		if n, err := r.claim.Ack(r.ctx, Acks{Flight: f.Flight, IDs: reversed(f.IDs)[1:]}); err != nil || n != len(f.IDs)-1 {
			r.t.Fatalf("ack of all but one: got %d, %v", n, err)
		}
	}
	if w.ackStats == "" {
		w.ackStats = w.info.Info(r.ctx, "commandstats").Val()
	}
	for _, f := range flights {
		r.ack(f.Flight, f.IDs[len(f.IDs)-1])
	}
}

// cpu returns the CPU time of Redis's main thread, including receiving and answering.
func (w *worstOf) cpu(ctx context.Context) (used time.Duration) {
	for line := range strings.Lines(w.info.Info(ctx, "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			seconds, _ := strconv.ParseFloat(value, 64)
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}

// randomFill returns how to push to one shard, up to about 100,000 payloads or 60 MiB.
func randomFill(r *rig, random *rand.Rand) (fill func() (ids []string), what string) {
	pick := func(of ...int) int { return of[random.IntN(len(of))] }
	payloads := pick(1, 1, 2, 31, 32, 33, 200, 2000, 2001, 9999, 10_000)
	size := pick(0, 3, 16, 100, 128, 129, 500, 4000, 16<<10, 16<<10+1, 100_000, 1<<20)
	payloads = min(payloads, max(1, (16<<20)/max(1, size+300)))
	calls := pick(0, 1, 2)
	most := min(100_000/payloads, 60<<20/max(1, size*payloads))
	if calls > 0 {
		size = min(size, 1<<20-300) // the address is a part of it
	}
	n := max(1, min(most, pick(1, 2, 36, 500, 3000)))
	length := pick(1, 10, 500)
	scores := pick(0, 1, 2)
	var ids []string
	for i := range n {
		ids = append(ids, strings.Repeat("i", length-1)+fmt.Sprint(i))
	}
	return func() []string { fillWith(r, random, ids, payloads, size, scores, calls); return ids },
		fmt.Sprintf("%d ids of %d bytes, %d payloads of %d bytes each, scores of kind %d, calls of kind %d", n, length, payloads, size, scores, calls)
}

func fillWith(r *rig, random *rand.Rand, ids []string, payloads, size, scores, calls int) {
	var jobs []lowkiq.Push
	bytes := 0
	flush := func() {
		if len(jobs) > 0 {
			r.push(jobs...)
			jobs, bytes = nil, 0
		}
	}
	for _, id := range ids {
		for k := range payloads {
			one := job(id, fmt.Sprintf("%x", k)+strings.Repeat("x", max(0, size-4)))
			if scores == 1 {
				one.Score = new(random.NormFloat64())
			} else if scores == 2 {
				one.Score = new(float64(random.IntN(3)))
			}
			if calls > 0 { // of one client, or of as many clients
				channel := r.c.DB().Keys.Replies(strings.Repeat("c", 100) + fmt.Sprint(k*(calls-1)))
				one.ReplyTo = envelope.Address(fmt.Sprintf("%022d", k), time.Hour, channel)
			}
			if jobs = append(jobs, one); len(jobs) == 5000 || bytes > 4<<20 {
				flush()
			}
			bytes += size
		}
	}
	flush()
}

// randomError returns a text that a handler might answer.
func randomError(random *rand.Rand) string {
	word := func() string {
		return []string{" ", "\n", "x", "\t", "Traceback (most recent call last)", "\x00", "\xff", "é", "1 2:", "'", "\""}[random.IntN(11)]
	}
	text := ""
	if random.IntN(2) == 0 {
		text = "Traceback (most recent call last)"
	}
	for len(text) < 5000 {
		text += strings.Repeat(word(), 1+random.IntN(3000))
	}
	return text
}
