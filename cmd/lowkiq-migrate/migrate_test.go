//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/testing/clitest"
	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/movein"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

const rubyPrefix, rubyShards = "lowkiq:A:v1:Orders:", 5

// rubySide is an old Redis to which the test pushes as Ruby's Lowkiq does.
type rubySide struct {
	*redistest.Server
	t   testing.TB
	rdb *redis.Client
}

func startRubySide(t testing.TB) *rubySide {
	r := &rubySide{Server: redistest.StartOld(t), t: t}
	r.rdb = redis.NewClient(&redis.Options{Addr: r.Addr()})
	t.Cleanup(func() { r.rdb.Close() })
	return r
}

func unixNow() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// push is perform_async of one job.
func (r *rubySide) push(id, payload string) error {
	ctx, now := context.Background(), unixNow()
	pipe := r.rdb.TxPipeline()
	pipe.ZAdd(ctx, rubyPrefix+"all_ids_lex", redis.Z{Member: id})
	pipe.ZAddNX(ctx, rubyPrefix+"all_ids_scored_by_perfrom_in", redis.Z{Score: now, Member: id})
	pipe.ZAddNX(ctx, rubyPrefix+"all_ids_scored_by_retry_count", redis.Z{Score: -1, Member: id})
	pipe.ZAddNX(ctx, fmt.Sprint(rubyPrefix, "ids_scored_by_perform_in:", rubyqueue.ShardOf(id, rubyShards)), redis.Z{Score: now, Member: id})
	pipe.ZAddNX(ctx, rubyPrefix+"payloads:"+id, redis.Z{Score: now, Member: payload})
	_, err := pipe.Exec(ctx)
	return err
}

// fly leaves an id as a worker does that died with it.
func (r *rubySide) fly(id string) {
	r.t.Helper()
	ctx, shard := r.t.Context(), strconv.Itoa(rubyqueue.ShardOf(id, rubyShards))
	pipe := r.rdb.TxPipeline()
	pipe.HSet(ctx, rubyPrefix+"processing_length_by_shard", shard, 1)
	for _, name := range []string{"all_ids_lex", "all_ids_scored_by_perfrom_in", "all_ids_scored_by_retry_count", "ids_scored_by_perform_in:" + shard} {
		pipe.ZRem(ctx, rubyPrefix+name, id)
	}
	pipe.HSet(ctx, rubyPrefix+"processing:ids_with_perform_in:"+shard, id, unixNow())
	pipe.HSet(ctx, rubyPrefix+"processing:ids_with_retry_count:"+shard, id, -1)
	pipe.Rename(ctx, rubyPrefix+"payloads:"+id, rubyPrefix+"processing:payloads:"+id)
	if _, err := pipe.Exec(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// fill pushes so many payloads of so many bytes to each of the ids, of which every seventh is in flight then.
func (r *rubySide) fill(ids, payloads, size int) map[string][]string {
	r.t.Helper()
	want := map[string][]string{}
	for k := range payloads {
		for i := range ids {
			id := fmt.Sprint("order-", i)
			text := fmt.Sprint(k, strings.Repeat("x", size))
			if err := r.push(id, text); err != nil {
				r.t.Fatal(err)
			}
			want[id] = append(want[id], text)
		}
	}
	for i := 0; i < ids; i += 7 {
		r.fly(fmt.Sprint("order-", i))
	}
	return want
}

// left is what the old Redis has that is not moved: ids that wait, are in flight, or are taken.
func (r *rubySide) left() (n int64) {
	r.t.Helper()
	for _, name := range []string{"all_ids_lex", "morgue:all_ids_lex", "migrate:taken", "migrate:backs"} {
		n += r.rdb.ZCard(r.t.Context(), rubyPrefix+name).Val()
	}
	for shard := range rubyShards {
		n += r.rdb.HLen(r.t.Context(), fmt.Sprint(rubyPrefix, "processing:ids_with_perform_in:", shard)).Val()
		n += r.rdb.ZCard(r.t.Context(), fmt.Sprint(rubyPrefix, "ids_scored_by_perform_in:", shard)).Val()
	}
	return n
}

// commandOf is the real command.
func commandOf(from, to string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, append([]string{"--from", from, "--redis", to, "--worker", "Orders", "--shards", strconv.Itoa(rubyShards),
		"-q", "orders",
		"--payload", "marshal", "--watch", "10ms", "-o", "json"}, args...)...)
	cmd.Env = nodebin.Env()
	return cmd
}

// movedBy is what a run of the command has said.
type movedBy struct {
	Found, Moved struct{ Jobs, Payloads int }
	code         int
	stderr       string
}

func runMigrate(t testing.TB, from, to string, args ...string) (said movedBy) {
	t.Helper()
	cmd := commandOf(from, to, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		t.Fatalf("%v: %s%s", err, &out, &errs)
	}
	said.code, said.stderr = cmd.ProcessState.ExitCode(), errs.String()
	return said
}

// registered is the queue to move into.
func registered(t testing.TB, url, cluster string, shards int) (*protocol.Client, *protocol.Queue) {
	t.Helper()
	client, err := protocol.Open(protocol.Config{Redis: url, Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return client, q
}

// waitingIn is what waits in the new queue: the payloads of each id, in order.
func waitingIn(t testing.TB, q *protocol.Queue) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	err := transfer.Each(t.Context(), q, false, func(jobs []transfer.Kept) error {
		for _, k := range jobs {
			var all []string
			for _, p := range k.Payloads {
				all = append(all, string(p.Data))
			}
			got[k.ID] = all // a scan may tell an id twice
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// samePayloads compares what ids have.
func samePayloads(t testing.TB, what string, got, want map[string][]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d ids, want %d", what, len(got), len(want))
	}
	for id := range want {
		if !slices.Equal(got[id], want[id]) {
			t.Errorf("%s: %s has\n%.300q, want\n%.300q", what, id, got[id], want[id])
		}
	}
}

// TestMigrateToRedisCluster moves a queue to a Redis Cluster, in a lowkiq cluster of a name, and back.
func TestMigrateToRedisCluster(t *testing.T) {
	tier.All(t)
	t.Parallel()
	old, cluster := startRubySide(t), redistest.StartCluster(t, 3)
	client, q := registered(t, cluster.URL(), "shop", 12)
	want := old.fill(200, 3, 100)
	to := []string{"--cluster", "shop", "--workers-stopped"}
	if said := runMigrate(t, old.URL(), cluster.URL(), "--cluster", "shop", "--dry-run"); said.code != 0 || said.Found.Jobs != 200 ||
		said.Found.Payloads != 600 || old.left() == 0 {
		t.Errorf("a look says %+v", said)
	}
	if said := runMigrate(t, old.URL(), cluster.URL(), to...); said.code != 0 || said.Moved.Jobs != 200 || said.Moved.Payloads != 600 {
		t.Errorf("the move says %+v", said)
	}
	if n := old.left(); n != 0 {
		t.Errorf("%d are left in the old Redis", n)
	}
	samePayloads(t, "moved", waitingIn(t, q), want)
	if said := runMigrate(t, old.URL(), cluster.URL(), to...); said.code != 0 || said.Moved.Jobs != 0 {
		t.Errorf("once more says %+v", said)
	}
	if err := client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	before := old.rdb.DBSize(t.Context()).Val()
	if said := runMigrate(t, old.URL(), cluster.URL(), "--cluster", "shop", "--dry-run", "--back"); said.code != 0 ||
		said.Found.Jobs != 200 || said.Found.Payloads != 600 {
		t.Errorf("a look back says %+v", said)
	}
	if n := old.rdb.DBSize(t.Context()).Val(); n != before {
		t.Errorf("a look back has made %d keys of %d", n, before)
	}
	samePayloads(t, "after a look back", waitingIn(t, q), want)
	if said := runMigrate(t, old.URL(), cluster.URL(), append(to, "--back")...); said.code != 0 || said.Moved.Jobs != 200 || said.Moved.Payloads != 600 {
		t.Errorf("the way back says %+v", said)
	}
	samePayloads(t, "after the way back", waitingIn(t, q), nil)
	got := map[string][]string{}
	for id := range want {
		got[id] = old.rdb.ZRange(t.Context(), rubyPrefix+"payloads:"+id, 0, -1).Val()
	}
	samePayloads(t, "back", got, want)
}

// TestMigrateToAFullRedis fills the new Redis in the middle of a migration. The command says so and exits with the code
// for a Redis that it cannot ask. Nodes handle the jobs that have arrived. Once there is room, the same command brings
// the rest, and nothing twice.
func TestMigrateToAFullRedis(t *testing.T) {
	tier.All(t)
	t.Parallel()
	old, full := startRubySide(t), redistest.Start(t, "--maxmemory-policy", "noeviction")
	_, q := registered(t, full.URL(), "", 4)
	want := old.fill(600, 2, 8000)
	admin := redis.NewClient(&redis.Options{Addr: full.Addr()})
	defer admin.Close()
	used := int64(0)
	for line := range strings.Lines(admin.Info(t.Context(), "memory").Val()) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			used, _ = strconv.ParseInt(text, 10, 64)
		}
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", strconv.FormatInt(used+4<<20, 10)).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // while it is full, the command may be tried again
		said := runMigrate(t, old.URL(), full.URL(), "--workers-stopped", "--patience", "300ms")
		if said.code != exit.Unreachable || !strings.Contains(said.stderr, "maxmemory") || !strings.Contains(said.stderr, "the same command goes on") {
			t.Errorf("to a full Redis: %+v", said)
		}
	}
	came := waitingIn(t, q)
	if len(came) == 0 || len(came) == len(want) {
		t.Fatalf("%d of %d ids came before it was full", len(came), len(want))
	}
	for id, payloads := range came {
		if !slices.Equal(payloads, want[id]) {
			t.Errorf("%s came with\n%.100q, want\n%.100q", id, payloads, want[id])
		}
		delete(want, id)
		if _, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, id); err != nil { // for an import it is as if it was handled
			t.Fatal(err)
		}
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if said := runMigrate(t, old.URL(), full.URL(), "--workers-stopped"); said.code != 0 {
		t.Errorf("with room: %+v", said)
	}
	samePayloads(t, "after there was room", waitingIn(t, q), want)
	if n := old.left(); n != 0 {
		t.Errorf("%d are left in the old Redis", n)
	}
}

// TestMigrateFindsNothing checks that the command tells a missing queue from an empty queue. For a missing queue it
// fails, lists the existing queues, and prints no counts. It asks for the form of payloads once.
func TestMigrateFindsNothing(t *testing.T) {
	t.Parallel()
	old, redis := startRubySide(t), redistest.Start(t)
	client, _ := registered(t, redis.URL(), "", 4)
	if err := client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if err := old.push("order-7", "x"); err != nil {
		t.Fatal(err)
	}
	run := func(code int, says string, args ...string) {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--from", old.URL(), "--redis", redis.URL(), "--shards", strconv.Itoa(rubyShards),
			"-q", "orders", "--watch", "10ms"}, args...)...)
		cmd.Env = nodebin.Env()
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(errs.String()+out.String(), says) || code != 0 && out.Len() > 0 {
			t.Errorf("%q: got %d, %s%s; want %d, %q", args, got, &out, &errs, code, says)
		}
	}
	for _, what := range [][]string{{"--dry-run"}, {"--workers-stopped"}, {"--workers-stopped", "--follow"}, {"--workers-stopped", "--back"}} {
		run(exit.Failed, "no queue Order and no trace of one: there are Orders;", append(what, "--worker", "Order", "--payload", "marshal")...)
	}
	run(exit.Usage, "--payload must be json or marshal", "--worker", "Orders", "--dry-run")
	run(exit.Usage, `has no queue mails: it has orders;`, "--worker", "Orders", "--dry-run", "-q", "mails")
	run(exit.OK, "no node of cluster", "--worker", "Orders", "--workers-stopped", "--payload", "marshal", "--keep", "0s")
	run(exit.OK, "Orders is empty", "--worker", "Orders", "--dry-run")
	run(exit.Usage, "marshal, not json", "--worker", "Orders", "--dry-run", "--payload", "json")
	run(exit.Usage, ", not to ", "--worker", "Orders", "--workers-stopped", "--back", "-q", "mails", "--config", mailsConfig(t))
	run(exit.OK, "moved", "--worker", "Orders", "--workers-stopped", "--back")
	run(exit.Failed, "nothing of Orders was moved to it", "--worker", "Orders", "--workers-stopped", "--back", "--payload", "marshal")
}

// mailsConfig names another queue.
func mailsConfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("queues:\n  mails:\n    shards: 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// moveKills says how often TestMigrateFollowKilled kills the command: LOWKIQ_MOVE_KILLS, or 8.
func moveKills(t testing.TB) int {
	t.Helper()
	text := os.Getenv("LOWKIQ_MOVE_KILLS")
	if text == "" {
		return 8
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// changeover are producers that push payloads with rising numbers to each id: to the old queue, and from some number on to
// the new one.
type changeover struct {
	old  *rubySide
	q    *protocol.Queue
	rng  *rand.Rand
	want map[string][]string // what was pushed
	over map[string]bool     // the id's producer has changed over
	n    int
}

// push is the next push, to some id.
func (c *changeover) push(ids int) error {
	c.n++
	id := fmt.Sprint("order-", c.rng.IntN(ids))
	// Half of them stay, so that there is something to move as long as the test lasts.
	if len(c.over) < ids/2 && len(c.want[id]) > 5 && c.rng.IntN(60) == 0 {
		c.over[id] = true
	}
	text := fmt.Sprint(c.n, " to the old queue")
	var err error
	if c.over[id] {
		text = fmt.Sprint(c.n, " to the new queue")
		_, err = c.q.Push(context.Background(), lowkiq.Push{ID: id, Payload: []byte(text)})
	} else {
		err = c.old.push(id, text)
	}
	c.want[id] = append(c.want[id], text)
	return err
}

// TestMigrateFollowKilled kills the command with SIGKILL after some entries that it took, again and again, while producers
// push to the old queue, and, from some time on, an id after the other, to the new one, which is paused: at the end each
// payload is there, those of the old queue before the others, and all in order.
func TestMigrateFollowKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	old, redis := startRubySide(t), redistest.Start(t)
	client, q := registered(t, redis.URL(), "", 4)
	if err := client.Registry().Pause(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	const ids = 60
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := &changeover{old: old, q: q, rng: rand.New(rand.NewPCG(seed, 1)), want: old.fill(ids, 2, 3), over: map[string]bool{}}
	stop, work := make(chan struct{}), sync.WaitGroup{}
	var failed error
	work.Go(func() {
		for tick := time.NewTicker(time.Millisecond); failed == nil; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				failed = c.push(ids)
			}
		}
	})
	ended := sync.OnceFunc(func() { close(stop); work.Wait() })
	defer ended()
	kills := moveKills(t)
	for range kills {
		killFollowing(t, old, redis.URL(), rng.Int64N(120))
	}
	ended()
	if failed != nil {
		t.Fatal(failed)
	}
	said := runMigrate(t, old.URL(), redis.URL(), "--workers-stopped", "--follow", "--quiet", "100ms")
	if said.code != 0 {
		t.Errorf("the last run says %+v", said)
	}
	if n := old.left(); n != 0 {
		t.Errorf("%d are left in the old Redis", n)
	}
	samePayloads(t, "in the end", waitingIn(t, q), c.want)
	t.Logf("%d kills, %d pushes, %d of %d ids changed over", kills, c.n, len(c.over), ids)
}

// killFollowing starts the command, and kills it when it has taken so many entries more.
func killFollowing(t *testing.T, old *rubySide, to string, more int64) {
	t.Helper()
	number := func() int64 { n, _ := old.rdb.Get(t.Context(), rubyPrefix+"migrate:number").Int64(); return n }
	run := func() string { return old.rdb.Get(t.Context(), rubyPrefix+"migrate:run").Val() }
	before := run()
	cmd := commandOf(old.URL(), to, "--workers-stopped", "--follow", "--quiet", "1h")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
		if cmd.ProcessState.Exited() {
			t.Fatalf("it has ended by itself: %s", &errs)
		}
	}()
	begun := int64(-1)
	if !clitest.Eventually(func() bool {
		if begun < 0 && run() != before {
			begun = number()
		}
		return begun >= 0 && number() >= begun+more
	}) {
		t.Fatalf("it has not taken %d entries: %s", more, &errs)
	}
}

// TestMigrateTellsOfALateRestore lets a Ruby worker read a payload in flight just before the migration moves it, and
// write it back just after. Nothing can tell before the worker writes. Then the command reports the payload, because
// the worker will handle it once more.
func TestMigrateTellsOfALateRestore(t *testing.T) {
	t.Parallel()
	side, to := startRubySide(t), redistest.Start(t)
	_, q := registered(t, to.URL(), "", 4)
	if err := side.push("order-7", "x"); err != nil {
		t.Fatal(err)
	}
	side.fly("order-7")
	old, err := rubyqueue.Open(rubyqueue.Config{URL: side.URL(), Timeout: 20 * time.Second, Name: "Orders", Shards: rubyShards})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	c := command{Shards: rubyShards, Payload: movein.Bytes, Keep: time.Hour, Patience: clitest.Patience, Watch: time.Hour}
	m, err := c.newMover(t.Context(), old, q)
	if err == nil {
		err = m.MarkFlights(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	seen, err := m.WatchWorkers(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	run := &migration{command: &c, Streams: &terminal.Streams{}, mover: m, old: old, queue: q}
	run.sum.Moved = &movein.Counts{}
	ended := make(chan error, 1)
	go func() { ended <- run.moveOnce(t.Context(), seen) }()
	if !clitest.Eventually(func() bool { return side.rdb.Exists(t.Context(), rubyPrefix+"migrate:kept").Val() == 1 }) {
		t.Fatal("it is not moved")
	}
	if err := side.push("order-7", "x"); err != nil { // the restore's push_back, and its ack
		t.Fatal(err)
	}
	side.rdb.HDel(t.Context(), rubyPrefix+"processing_length_by_shard", strconv.Itoa(rubyqueue.ShardOf("order-7", rubyShards)))
	if err := <-ended; !errors.Is(err, movein.ErrWorking) {
		t.Errorf("got %v, want %v", err, movein.ErrWorking)
	}
	if got := m.MovedInFlight(); !slices.Equal(got, []string{"order-7"}) {
		t.Errorf("%q may run twice, want order-7", got)
	}
}
