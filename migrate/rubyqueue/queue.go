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

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Bounds of a script, so that none blocks Redis for more than a few milliseconds.
const (
	idsPerScript      = 100
	bytesPerScript    = 512 << 10 // more only for a single larger payload
	payloadsPerScript = 500
	maxProbe          = 1024 // shards beyond the configured count that may have data from a larger count
)

// ErrTakenOver means that another migration of the same queue has begun, which ends this run.
var ErrTakenOver = errors.New("another migration of this queue has begun since")

// ErrFlight means that a worker of Ruby's Lowkiq has taken an id that this migration was to take or to put back.
var ErrFlight = errors.New("a worker of Ruby's Lowkiq works on the queue")

// Queue is a queue of Ruby's Lowkiq. It has one run at a time, from [Queue.BeginRun] to [Queue.EndRun]. A later run ends an
// earlier run.
type Queue struct {
	db     *redisdb.DB
	prefix string
	shards int
	run    string
}

// Config names a queue and its Redis.
type Config struct {
	URL     string
	Timeout time.Duration // of a command
	Name    string        // queue_name: by default the name of the worker's class
	Shards  int           // shards_count
}

// keyPrefix begins the names of all keys, before the name of the queue.
const keyPrefix = "lowkiq:A:v1:"

// Open parses the URL. It does not connect.
func Open(cfg Config) (*Queue, error) {
	db, err := redisdb.Open(redisdb.Config{URL: cfg.URL, Timeout: cfg.Timeout, PoolSize: 4})
	if err != nil {
		return nil, err
	}
	if db.Sharded {
		return nil, errors.Join(errors.New("the URL must be redis:// or redis+sentinel://, because Ruby's Lowkiq does not run on a Redis "+
			"Cluster"), db.Close())
	}
	return &Queue{db: db, prefix: keyPrefix + cfg.Name, shards: cfg.Shards}, nil
}

// Close closes the connections.
func (q *Queue) Close() error { return q.db.Close() }

// Time returns the time of the old Redis.
func (q *Queue) Time(ctx context.Context) (time.Time, error) { return q.db.Time(ctx) }

func (q *Queue) key(name string) string { return q.prefix + ":" + name }

// ShardOf returns the shard of an id under a shard count.
func ShardOf(id string, shards int) int {
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(shards))
}

//go:embed scripts
var files embed.FS

// loadScript loads a script. The common parts, "shown" or "unite", go before its text.
func loadScript(name string, common ...string) *redisdb.Script {
	text := ""
	for _, one := range common {
		text += readSource(one)
	}
	return redisdb.NewScript("ruby queue: "+name, text+readSource(name))
}

func readSource(name string) string {
	text, err := files.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // a name without an embedded file
	}
	return string(text)
}

var (
	shardsScript  = loadScript("shards")
	lookScript    = loadScript("look", "shown")
	takeScript    = loadScript("take", "shown")
	markScript    = loadScript("mark")
	takenScript   = loadScript("taken", "shown")
	piecesScript  = loadScript("pieces")
	forgetScript  = loadScript("forget")
	putBackScript = loadScript("put_back", "unite")
	sweepScript   = loadScript("sweep")
	closeScript   = loadScript("close")
	rotateScript  = loadScript("rotate")
	sealedScript  = loadScript("sealed")
	keepScript    = loadScript("keep")
	keptScript    = loadScript("kept", "shown")
	stageScript   = loadScript("stage")
	stagedScript  = loadScript("staged")
	unstageScript = loadScript("unstage")
	publishScript = loadScript("publish", "unite")

	unlistedScript = loadScript("unlisted")
)

// scripts lists all scripts, for tests.
var scripts = []*redisdb.Script{
	shardsScript, lookScript, markScript, takeScript, takenScript, piecesScript, forgetScript, putBackScript, sweepScript, closeScript, rotateScript, sealedScript,
	keepScript, keptScript, stageScript, stagedScript, unstageScript, publishScript, unlistedScript,
}

// runScript runs a script and translates its errors.
func (q *Queue) runScript(ctx context.Context, s *redisdb.Script, args ...any) (any, error) {
	reply, err := q.db.Run(ctx, s, []string{q.prefix}, args...)
	switch {
	case redisdb.Says(err, "TAKENOVER"):
		err = ErrTakenOver
	case redisdb.Says(err, "FLIGHT"):
		err = ErrFlight
	}
	return reply, err
}

// Run is a migration. The numbers of entries are unique within a Source.
type Run struct {
	Source string
	Fresh  bool // no earlier run has used Source
	// Sealing is an earlier source that must still be sealed, "" for none. Its numbers up to Bound must not be imported any
	// more. It stays until [Queue.MarkSealed].
	Sealing string
	Bound   int64
}

// BeginRun starts a run with the source of the run before, which it ends. No entry gets the number 1.
func (q *Queue) BeginRun(ctx context.Context) (run Run, err error) {
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
	return run, run.parseSealing(redisdb.Text(replies[5]))
}

// Way says how a queue was moved: the form of its payloads, and the queue they went to. The zero value stands for a queue
// that was not moved.
type Way struct{ Form, To string }

// wayKept is for how long a Way is stored. That is longer than the old Redis keeps moved jobs.
const wayKept = 365 * 24 * time.Hour

// ReadWay returns how the queue was moved before.
func (q *Queue) ReadWay(ctx context.Context) (w Way, err error) {
	reply, err := q.db.Do(ctx, "see how the queue was moved", "GET", q.key("migrate:way"))
	w.Form, w.To, _ = strings.Cut(redisdb.Text(reply), " ")
	return w, err
}

// SetWay stores how the queue is moved, unless another way is stored, and returns the stored way. The zero value deletes it,
// because all jobs are back.
func (q *Queue) SetWay(ctx context.Context, w Way) (Way, error) {
	const op = "note how the queue is moved"
	key, kept := q.key("migrate:way"), int64(wayKept/time.Second)
	if w == (Way{}) {
		_, err := q.db.Do(ctx, op, "DEL", key)
		return w, err
	}
	if _, err := q.db.Do(ctx, op, "SET", key, w.Form+" "+w.To, "NX", "EX", kept); err != nil {
		return Way{}, err
	}
	if _, err := q.db.Do(ctx, op, "EXPIRE", key, kept); err != nil {
		return Way{}, err
	}
	return q.ReadWay(ctx)
}

// traces are keys that show that a queue was there. Its counters stay when all jobs are done, and the way of a move when all
// jobs are gone.
var traces = []string{"processed", "failed", "all_ids_lex", "morgue:all_ids_lex", "processing_length_by_shard", "migrate:way",
	"migrate:kept", "migrate:run", "migrate:backs"}

// IsKnown reports whether the old Redis has a trace of the queue.
func (q *Queue) IsKnown(ctx context.Context) (bool, error) {
	cmd := redisdb.Cmd{"EXISTS"}
	for _, name := range traces {
		cmd = append(cmd, q.key(name))
	}
	n, err := q.db.Do(ctx, "look for the queue", cmd...)
	if err != nil || redisdb.Int(n) > 0 {
		return err == nil, err
	}
	flights, err := q.ReadFlights(ctx)
	return len(flights) > 0, err
}

// mostNames is how many queues [Queue.DescribeOthers] names.
const mostNames = 20

// DescribeOthers says in a few words what the old Redis has in place of the queue. It scans the names of all keys of the
// database.
func (q *Queue) DescribeOthers(ctx context.Context) (string, error) {
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
	return "this Redis has no queue of Ruby's Lowkiq", nil // or the user may not call INFO
}

var databaseRule = regexp.MustCompile(`\bdb[0-9]+\b`)

// Name returns the name of the run.
func (q *Queue) Name() string { return q.run }

// parseSealing reads a source to be sealed and the bound of its numbers. An empty text means that there is no such source.
func (r *Run) parseSealing(text string) error {
	if text == "" {
		return nil
	}
	source, bound, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(bound, 10, 64)
	if err != nil {
		return fmt.Errorf("migrate:sealing of the old Redis is %q; it must be a source and a number", text)
	}
	r.Sealing, r.Bound = source, n
	return nil
}

// RotateSource gives the run a new source. The old source must be sealed.
func (q *Queue) RotateSource(ctx context.Context) (run Run, err error) {
	run.Source, run.Fresh = rand.Text(), true
	reply, err := q.runScript(ctx, rotateScript, q.run, run.Source)
	if err != nil {
		return run, err
	}
	return run, run.parseSealing(redisdb.Text(reply))
}

// MarkSealed records that the source is sealed.
func (q *Queue) MarkSealed(ctx context.Context, run Run) error {
	_, err := q.runScript(ctx, sealedScript, run.Sealing+" "+strconv.FormatInt(run.Bound, 10))
	return err
}

// EndRun removes the keys of the run. It fails if an entry is still taken.
func (q *Queue) EndRun(ctx context.Context) error {
	_, err := q.endRun(ctx, 0)
	return err
}

// EndSealing ends the run as EndRun does, and leaves its source to be sealed.
func (q *Queue) EndSealing(ctx context.Context) (run Run, err error) {
	text, err := q.endRun(ctx, 1)
	if err != nil {
		return run, err
	}
	return run, run.parseSealing(text)
}

// endRun ends the run. If seal is 1, it returns the text of the source to be sealed. It fails while entries are taken.
func (q *Queue) endRun(ctx context.Context, seal int) (sealing string, err error) {
	flights, err := q.ReadFlights(ctx)
	if err != nil {
		return "", err
	}
	reply, err := q.runScript(ctx, closeScript, q.run, len(flights), seal)
	if err != nil {
		return "", err
	}
	answer := redisdb.List(reply)
	if len(answer) != 2 {
		return "", fmt.Errorf("ruby queue: Redis answered %v at the end of a run", reply)
	}
	if n := redisdb.Int(answer[0]); n > 0 {
		return "", fmt.Errorf("%d entries are still taken and not forgotten", n)
	}
	return redisdb.Text(answer[1]), nil
}

// readIDs returns the next waiting ids with their due times, in order of the due time, then of the id. In the morgue the
// time is that of the burial.
func (q *Queue) readIDs(ctx context.Context, morgue bool, from, n int) ([]Due, error) {
	name := "all_ids_scored_by_perfrom_in" // Ruby's spelling
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

// Due is an id with the time when it is due or was buried, in seconds since 1970.
type Due struct {
	ID string
	At float64
}

// ReadWaiting returns n ids after the first from ids, in order of their due time, then of the id.
func (q *Queue) ReadWaiting(ctx context.Context, from, n int) ([]Due, error) {
	return q.readIDs(ctx, false, from, n)
}

// ReadMorgue returns ids of the morgue as ReadWaiting does, in order of their burials.
func (q *Queue) ReadMorgue(ctx context.Context, from, n int) ([]Due, error) {
	return q.readIDs(ctx, true, from, n)
}

// Flights are the ids in flight. Each has the shards whose processing hashes contain it, in order.
type Flights map[string][]int

// shardList returns the shards of an id as a script takes them, with a comma before each.
func (f Flights) shardList(id string) string {
	text := ""
	for _, shard := range f[id] {
		text += "," + strconv.Itoa(shard)
	}
	return text
}

// ReadFlights reads all flights, also those of shards beyond the shard count.
func (q *Queue) ReadFlights(ctx context.Context) (Flights, error) {
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
				if all := flights[id]; len(all) == 0 || all[len(all)-1] != shard { // a scan may return an id twice
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

// MarkFlights marks the shards of flights. [Queue.Take] takes ids in flight only from shards whose mark shows that no worker
// has come since. MarkFlights may be repeated, also by another process. It leaves a mark that is there.
func (q *Queue) MarkFlights(ctx context.Context, flights Flights) error {
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
		if _, err := q.runScript(ctx, markScript, args...); err != nil {
			return err
		}
	}
	return nil
}

// eachShard calls fn for every shard that has the key with this name, in order.
func (q *Queue) eachShard(ctx context.Context, name string, fn func(shard int, key string) error) error {
	const step = 5000
	for from := 0; from < q.shards+maxProbe; from += step {
		reply, err := q.runScript(ctx, shardsScript, name, from, min(from+step, q.shards+maxProbe))
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

// eachSet calls fn with the ids of the set of every shard, as many at a time as a script takes. fn returns how many of them
// it has left in the set.
func (q *Queue) eachSet(ctx context.Context, fn func(shard int, ids []string) (left int, err error)) error {
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

// FindStrays calls fn with each id in the set of a shard that the shard count does not give it.
func (q *Queue) FindStrays(ctx context.Context, fn func(id string, shard int)) error {
	return q.eachSet(ctx, func(shard int, ids []string) (int, error) {
		for _, id := range ids {
			if ShardOf(id, q.shards) != shard {
				fn(id, shard)
			}
		}
		return len(ids), nil
	})
}

// SweepSets removes ids without data from the sets and hashes of shards. They were moved, or Ruby's pop has failed in the
// middle.
func (q *Queue) SweepSets(ctx context.Context) error {
	flights, err := q.ReadFlights(ctx)
	if err != nil {
		return err
	}
	sweep := func(shard int, ids []string) (int, error) {
		args := []any{q.run, shard}
		for _, id := range ids {
			args = append(args, id)
		}
		left, err := q.runScript(ctx, sweepScript, args...)
		return int(redisdb.Int(left)), err
	}
	for id, shards := range flights {
		for _, shard := range shards {
			if _, err := sweep(shard, []string{id}); err != nil {
				return err
			}
		}
	}
	return q.eachSet(ctx, sweep)
}

// Signs are values that change while a worker of Ruby's lives.
type Signs struct {
	Processed, Failed int64
	Lengths           map[string]string // by shard, as the last pop has set it
	Flights           int64             // the number of ids in processing hashes
}

// ReadSigns reads the signs of a worker.
func (q *Queue) ReadSigns(ctx context.Context) (s Signs, err error) {
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
