package rubyqueue

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Bounds of one script, so that none keeps Redis from others for more than a few milliseconds.
const (
	idsPerScript      = 100
	bytesPerScript    = 512 << 10 // but for one payload
	payloadsPerScript = 500
	maxProbe          = 1024 // shards beyond the configured ones that may have something from a larger count
)

// ErrTakenOver says that another migration of the same queue has begun since: this one is over.
var ErrTakenOver = errors.New("another migration of this queue has begun since")

// ErrFlight says that a worker of Ruby's Lowkiq has taken an id that was to be taken here, or to be put back.
var ErrFlight = errors.New("a worker of Ruby's Lowkiq works on the queue")

// Queue is a queue of Ruby's Lowkiq. A run, from [Queue.Begin] to [Queue.End], is one at a time: a later
// one ends it.
type Queue struct {
	db     *redisdb.DB
	prefix string
	shards int
	run    string
}

// Config says which queue, and where.
type Config struct {
	URL     string
	Timeout time.Duration // of a command
	Name    string        // queue_name: the class's name, unless it is set
	Shards  int           // shards_count
}

// keyPrefix is before the names of queues in all keys.
const keyPrefix = "lowkiq:A:v1:"

// Open reads the URL. It does not connect.
func Open(cfg Config) (*Queue, error) {
	db, err := redisdb.Open(redisdb.Config{URL: cfg.URL, Timeout: cfg.Timeout, PoolSize: 4})
	if err != nil {
		return nil, err
	}
	if db.Sharded {
		return nil, errors.Join(errors.New("want redis:// or redis+sentinel://: Ruby's Lowkiq does not run on a Redis Cluster"), db.Close())
	}
	return &Queue{db: db, prefix: keyPrefix + cfg.Name, shards: cfg.Shards}, nil
}

// Close gives the connections back.
func (q *Queue) Close() error { return q.db.Close() }

// Time is the clock of the old Redis.
func (q *Queue) Time(ctx context.Context) (time.Time, error) { return q.db.Time(ctx) }

func (q *Queue) key(name string) string { return q.prefix + ":" + name }

// ShardOf is the shard of an id under a shard count.
func ShardOf(id string, shards int) int {
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(shards))
}

//go:embed scripts
var files embed.FS

// script reads a script, and before it what it has in common with others: "shown" or "unite".
func script(name string, common ...string) *redisdb.Script {
	text := ""
	for _, one := range common {
		text += source(one)
	}
	return redisdb.NewScript("ruby queue: "+name, text+source(name))
}

func source(name string) string {
	text, err := files.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // a name that is not in the program
	}
	return string(text)
}

var (
	shardsScript  = script("shards")
	lookScript    = script("look", "shown")
	takeScript    = script("take", "shown")
	markScript    = script("mark")
	takenScript   = script("taken", "shown")
	piecesScript  = script("pieces")
	forgetScript  = script("forget")
	putBackScript = script("put_back", "unite")
	sweepScript   = script("sweep")
	closeScript   = script("close")
	rotateScript  = script("rotate")
	sealedScript  = script("sealed")
	keepScript    = script("keep")
	keptScript    = script("kept", "shown")
	stageScript   = script("stage")
	stagedScript  = script("staged")
	unstageScript = script("unstage")
	publishScript = script("publish", "unite")

	unlistedScript = script("unlisted")
)

// scripts are all of them.
var scripts = []*redisdb.Script{
	shardsScript, lookScript, markScript, takeScript, takenScript, piecesScript, forgetScript, putBackScript, sweepScript, closeScript, rotateScript, sealedScript,
	keepScript, keptScript, stageScript, stagedScript, unstageScript, publishScript, unlistedScript,
}

// call runs a script.
func (q *Queue) call(ctx context.Context, s *redisdb.Script, args ...any) (any, error) {
	reply, err := q.db.Run(ctx, s, []string{q.prefix}, args...)
	switch {
	case redisdb.Says(err, "TAKENOVER"):
		err = ErrTakenOver
	case redisdb.Says(err, "FLIGHT"):
		err = ErrFlight
	}
	return reply, err
}

// Run is one migration. Source names what the numbers of entries belong to.
type Run struct {
	Source string
	Fresh  bool // no earlier run has used the source
	// Sealing is a source that is over, "" for none: of its numbers, those up to Bound, none may be imported any more. It is
	// there until [Queue.Sealed].
	Sealing string
	Bound   int64
}

// Begin starts a run: it ends an earlier one that is still there, and has its source. No entry has number 1.
func (q *Queue) Begin(ctx context.Context) (run Run, err error) {
	q.run = rand.Text()
	replies, err := q.db.Atomic(ctx, "begin the migration",
		redisdb.Cmd{"SET", q.key("migrate:source"), rand.Text(), "NX"},
		redisdb.Cmd{"SET", q.key("migrate:number"), 1, "NX"},
		redisdb.Cmd{"PERSIST", q.key("migrate:number")},
		redisdb.Cmd{"SET", q.key("migrate:run"), q.run},
		redisdb.Cmd{"GET", q.key("migrate:source")},
		redisdb.Cmd{"GET", q.key("migrate:sealing")})
	if err != nil {
		return run, err
	}
	run.Source, run.Fresh = redisdb.Text(replies[4]), replies[0] != nil
	return run, run.sealing(redisdb.Text(replies[5]))
}

// Way is how a queue was moved: the form of its payloads, and where they went. The zero value is of a queue that was not.
type Way struct{ Form, To string }

// wayKept is for how long a Way is known: longer than anything is kept.
const wayKept = 365 * 24 * time.Hour

// Way is how the queue was moved before.
func (q *Queue) Way(ctx context.Context) (w Way, err error) {
	reply, err := q.db.Do(ctx, "see how the queue was moved", "GET", q.key("migrate:way"))
	w.Form, w.To, _ = strings.Cut(redisdb.Text(reply), " ")
	return w, err
}

// SetWay notes how the queue is moved; the zero value, that all of it is back.
func (q *Queue) SetWay(ctx context.Context, w Way) error {
	cmd := redisdb.Cmd{"SET", q.key("migrate:way"), w.Form + " " + w.To, "EX", int64(wayKept / time.Second)}
	if w == (Way{}) {
		cmd = redisdb.Cmd{"DEL", q.key("migrate:way")}
	}
	_, err := q.db.Do(ctx, "note how the queue is moved", cmd...)
	return err
}

// traces are keys of a queue that was there: counters stay when all is done, and the way of a move when all is gone.
var traces = []string{"processed", "failed", "all_ids_lex", "morgue:all_ids_lex", "processing_length_by_shard", "migrate:way", "migrate:kept", "migrate:run", "migrate:backs"}

// Known reports whether the old Redis has a trace of the queue.
func (q *Queue) Known(ctx context.Context) (bool, error) {
	cmd := redisdb.Cmd{"EXISTS"}
	for _, name := range traces {
		cmd = append(cmd, q.key(name))
	}
	n, err := q.db.Do(ctx, "look for the queue", cmd...)
	if err != nil || redisdb.Int(n) > 0 {
		return err == nil, err
	}
	flights, err := q.Flights(ctx)
	return len(flights) > 0, err
}

// mostNames is how many queues [Queue.Others] names.
const mostNames = 20

// Others says what the old Redis has in place of the queue, in a few words. It goes through the names of all keys of the database.
func (q *Queue) Others(ctx context.Context) (string, error) {
	names := map[string]bool{}
	for cursor := "0"; ; {
		reply, err := q.db.Do(ctx, "look for queues", "SCAN", cursor, "MATCH", keyPrefix+"*", "COUNT", keysPerScan)
		if err != nil {
			return "", err
		}
		keys, next := redisdb.Scanned(reply)
		for _, key := range keys {
			for _, trace := range traces {
				if name, ok := strings.CutSuffix(strings.TrimPrefix(key, keyPrefix), ":"+trace); ok && !strings.HasSuffix(name, ":morgue") {
					names[name] = true
				}
			}
		}
		if cursor = next; cursor == "0" {
			break
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	switch {
	case len(sorted) > mostNames:
		return fmt.Sprintf("there are %d queues, as %s", len(sorted), strings.Join(sorted[:mostNames], ", ")), nil
	case len(sorted) > 0:
		return "there are " + strings.Join(sorted, ", "), nil
	}
	databases, err := q.db.Do(ctx, "look for other databases", "INFO", "keyspace")
	if all := databaseRule.FindAllString(redisdb.Text(databases), -1); err == nil && len(all) > 0 {
		return "this database has no queue of Ruby's Lowkiq; databases with keys are " + strings.Join(all, ", "), nil
	}
	return "this Redis has no queue of Ruby's Lowkiq", nil // or INFO is forbidden
}

var databaseRule = regexp.MustCompile(`\bdb[0-9]+\b`)

// Name is what the run is called.
func (q *Queue) Name() string { return q.run }

func (r *Run) sealing(text string) error {
	if text == "" {
		return nil
	}
	source, bound, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(bound, 10, 64)
	if err != nil {
		return fmt.Errorf("migrate:sealing of the old Redis is %q, want a source and a number", text)
	}
	r.Sealing, r.Bound = source, n
	return nil
}

// Rotate gives the run another source. The one that it had is to be sealed.
func (q *Queue) Rotate(ctx context.Context) (run Run, err error) {
	run.Source, run.Fresh = rand.Text(), true
	reply, err := q.call(ctx, rotateScript, q.run, run.Source)
	if err != nil {
		return run, err
	}
	return run, run.sealing(redisdb.Text(reply))
}

// Sealed notes that the source is sealed.
func (q *Queue) Sealed(ctx context.Context, run Run) error {
	_, err := q.call(ctx, sealedScript, run.Sealing+" "+strconv.FormatInt(run.Bound, 10))
	return err
}

// End removes what the run needed, if no entry is taken any more.
func (q *Queue) End(ctx context.Context) error {
	_, err := q.end(ctx, 0)
	return err
}

// EndSealing is End where the run's source is to be sealed.
func (q *Queue) EndSealing(ctx context.Context) (run Run, err error) {
	text, err := q.end(ctx, 1)
	if err != nil {
		return run, err
	}
	return run, run.sealing(text)
}

func (q *Queue) end(ctx context.Context, seal int) (sealing string, err error) {
	flights, err := q.Flights(ctx)
	if err != nil {
		return "", err
	}
	reply, err := q.call(ctx, closeScript, q.run, len(flights), seal)
	if err != nil {
		return "", err
	}
	answer := redisdb.List(reply)
	if len(answer) != 2 {
		return "", fmt.Errorf("ruby queue: Redis answered %v at the end of a run", reply)
	}
	if n := redisdb.Int(answer[0]); n > 0 {
		return "", fmt.Errorf("%d entries are taken yet and are not forgotten", n)
	}
	return redisdb.Text(answer[1]), nil
}

// ids returns the next ids in order of their due time, then the id, and these times: the waiting ones, or
// those of the morgue, whose time is that of the burial.
func (q *Queue) ids(ctx context.Context, morgue bool, from, n int) ([]Due, error) {
	name := "all_ids_scored_by_perfrom_in" // as Ruby spells it
	if morgue {
		name = "morgue:all_ids_scored_by_updated_at"
	}
	reply, err := q.db.Do(ctx, "read ids", "ZRANGE", q.key(name), from, from+n-1, "WITHSCORES")
	list := redisdb.List(reply)
	due := make([]Due, 0, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		at, _ := redisdb.Score(list[i+1])
		due = append(due, Due{redisdb.Text(list[i]), at})
	}
	return due, err
}

// Due is an id and when it is due, or was buried: seconds since 1970.
type Due struct {
	ID string
	At float64
}

// Waiting returns the next n ids after the first from, in order of their due time, then of the id.
func (q *Queue) Waiting(ctx context.Context, from, n int) ([]Due, error) {
	return q.ids(ctx, false, from, n)
}

// Morgue returns ids of the morgue like Waiting, in order of their burials.
func (q *Queue) Morgue(ctx context.Context, from, n int) ([]Due, error) {
	return q.ids(ctx, true, from, n)
}

// Flights are the ids in flight, each with the shards in whose processing hashes it is, in order.
type Flights map[string][]int

func (f Flights) shards(id string) string {
	text := ""
	for _, shard := range f[id] {
		text += "," + strconv.Itoa(shard)
	}
	return text
}

// Flights reads what is in flight, also beyond the shard count.
func (q *Queue) Flights(ctx context.Context) (Flights, error) {
	flights := Flights{}
	err := q.eachShard(ctx, "processing:ids_with_perform_in:", func(shard int, key string) error {
		for cursor := "0"; ; {
			reply, err := q.db.Do(ctx, "read what is in flight", "HSCAN", key, cursor, "COUNT", 500)
			if err != nil {
				return err
			}
			found, next := redisdb.Scanned(reply)
			for i := 0; i+1 < len(found); i += 2 {
				id := found[i]
				if all := flights[id]; len(all) == 0 || all[len(all)-1] != shard { // a scan may tell an id twice
					flights[id] = append(all, shard)
				}
			}
			if cursor = next; cursor == "0" {
				return nil
			}
		}
	})
	return flights, err
}

// Mark marks the shards of flights: [Queue.Take] takes what is in flight only where no worker has come since. It may be repeated, also by
// another process: a mark that is there stays.
func (q *Queue) Mark(ctx context.Context, flights Flights) error {
	shards := map[int]bool{}
	for _, all := range flights {
		for _, shard := range all {
			shards[shard] = true
		}
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(shards)), payloadsPerScript) {
		args := make([]any, len(some))
		for i := range some {
			args[i] = some[i]
		}
		if _, err := q.call(ctx, markScript, args...); err != nil {
			return err
		}
	}
	return nil
}

// eachShard calls fn for every shard that has the key with this name, in order.
func (q *Queue) eachShard(ctx context.Context, name string, fn func(shard int, key string) error) error {
	const step = 5000
	for from := 0; from < q.shards+maxProbe; from += step {
		reply, err := q.call(ctx, shardsScript, name, from, min(from+step, q.shards+maxProbe))
		if err != nil {
			return err
		}
		for _, one := range redisdb.List(reply) {
			shard := int(redisdb.Int(one))
			if err := fn(shard, q.key(name+strconv.Itoa(shard))); err != nil {
				return err
			}
		}
	}
	return nil
}

// sets calls fn with the ids of every shard's set, as many at a time as a script may have.
func (q *Queue) sets(ctx context.Context, fn func(shard int, ids []string) (left int, err error)) error {
	return q.eachShard(ctx, "ids_scored_by_perform_in:", func(shard int, key string) error {
		for from := 0; ; {
			reply, err := q.db.Do(ctx, "read a shard's ids", "ZRANGE", key, from, from+idsPerScript-1)
			ids := redisdb.Texts(reply)
			if err != nil || len(ids) == 0 {
				return err
			}
			left, err := fn(shard, ids)
			if err != nil {
				return err
			}
			from += left
		}
	})
}

// Strays calls fn with each id of a shard's set that belongs to another shard, or of which nothing is left.
func (q *Queue) Strays(ctx context.Context, fn func(id string, shard int)) error {
	return q.sets(ctx, func(shard int, ids []string) (int, error) {
		for _, id := range ids {
			if ShardOf(id, q.shards) != shard {
				fn(id, shard)
			}
		}
		return len(ids), nil
	})
}

// Sweep removes from the sets and hashes of shards the ids of which nothing is left: they were moved, or
// Ruby's pop had failed in the middle.
func (q *Queue) Sweep(ctx context.Context) error {
	flights, err := q.Flights(ctx)
	if err != nil {
		return err
	}
	sweep := func(shard int, ids []string) (int, error) {
		args := []any{q.run, shard}
		for _, id := range ids {
			args = append(args, id)
		}
		left, err := q.call(ctx, sweepScript, args...)
		return int(redisdb.Int(left)), err
	}
	for id, shards := range flights {
		for _, shard := range shards {
			if _, err := sweep(shard, []string{id}); err != nil {
				return err
			}
		}
	}
	return q.sets(ctx, sweep)
}

// Signs are what moves while a worker of Ruby's lives.
type Signs struct {
	Processed, Failed int64
	Lengths           map[string]string // by shard, as the last pop left it
	Flights           int64             // ids in processing hashes
}

// Signs reads them.
func (q *Queue) Signs(ctx context.Context) (s Signs, err error) {
	replies, err := q.db.Pipeline(ctx, "look for a worker",
		redisdb.Cmd{"GET", q.key("processed")}, redisdb.Cmd{"GET", q.key("failed")}, redisdb.Cmd{"HGETALL", q.key("processing_length_by_shard")})
	if err != nil {
		return s, err
	}
	s.Processed, s.Failed, s.Lengths = redisdb.Int(replies[0]), redisdb.Int(replies[1]), redisdb.Map(replies[2])
	err = q.eachShard(ctx, "processing:ids_with_perform_in:", func(_ int, key string) error {
		n, err := q.db.Do(ctx, "count what is in flight", "HLEN", key)
		s.Flights += redisdb.Int(n)
		return err
	})
	return s, err
}
