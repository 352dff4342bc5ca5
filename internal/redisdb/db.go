// Package redisdb is the way to Redis: connections, keys, scripts, and what a server
// must be and permit.
//
// It answers one question: how is a command or a script of lowkiq brought to the right
// server, and what does its answer mean. It is the only package that calls go-redis, and
// keys.go the only Go file that spells a key; scripts name theirs in
// their heads. What a job is, it does not know.
//
// [DB] sends commands ([DB.Do], [DB.Pipeline], [DB.Atomic]) and scripts ([DB.Run],
// [DB.RunAll]); a [Subscription] listens to channels. Nothing is repeated by itself but a
// script that Redis has forgotten: callers repeat by the rules of each script.
package redisdb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/pause"
)

// Config says which Redis, and whose keys.
type Config struct {
	URL      string
	Cluster  string // part of every key
	TLS      *tls.Config
	Timeout  time.Duration // of one command, also of dialling
	PoolSize int           // connections per Redis node; 0 = 10 per CPU
}

// DB is a connection to one Redis: single, Sentinel or Cluster. It is safe for concurrent
// use.
type DB struct {
	rdb       redis.UniversalClient
	address   string // for people: hosts without credentials
	timeout   time.Duration
	sentinels *sentinels // how to reach them; nil without Sentinel
	replicas  *replicas
	lookout   *lookout // nil without a Redis Cluster

	Keys    Keys
	Scripts *Scripts
	Sharded bool         // a Redis Cluster
	Slow    *pause.Tenth // for what reads much: all of it together takes a tenth of Redis's time at most
}

// Open reads the URL. It does not connect.
func Open(cfg Config) (*DB, error) {
	opts, err := options(cfg)
	if err != nil {
		return nil, fmt.Errorf("redis address %q: %w", MaskURL(cfg.URL), err)
	}
	db := &DB{
		rdb: redis.NewUniversalClient(opts), address: strings.Join(opts.Addrs, ","), timeout: cfg.Timeout,
		replicas: &replicas{seen: map[string]replicaCount{}},
		Keys:     Keys{cfg.Cluster}, Scripts: NewScripts(), Sharded: opts.IsClusterMode, Slow: pause.NewTenth(),
	}
	if opts.MasterName != "" {
		db.sentinels = &sentinels{opts}
		db.rdb.AddHook(knownMaster{opts.MasterName})
	}
	db.lookout = watch(db.rdb, &links{open: map[*link]struct{}{}}, cfg.Timeout)
	return db, nil
}

// Close gives the connections back. It may be called twice.
func (db *DB) Close() error {
	db.lookout.close()
	if err := db.rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close redis %s: %w", db.address, err)
	}
	return nil
}

// Address is for people: hosts, no credentials.
func (db *DB) Address() string { return db.address }

// ForTests is go-redis's client, for tests that look at keys or damage them.
func (db *DB) ForTests() redis.UniversalClient { return db.rdb }

// With is db for the keys of another cluster.
func (db *DB) With(cluster string) *DB {
	other := *db
	other.Keys = Keys{cluster}
	return &other
}

// go-redis would write to stderr, and wait for who reads it: what matters comes back as an error. A
// program may set another logger of go-redis in its main.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Cmd is a command and its arguments.
type Cmd []any

// Do sends one command. what says what it is for, in the words of an error.
func (db *DB) Do(ctx context.Context, what string, args ...any) (any, error) {
	reply, err := answerOf(args, db.rdb.Do(ctx, args...))
	return reply, db.Explain(what, err)
}

// answerOf is what Redis has answered to a command, which may be nil where something is missing.
func answerOf(args []any, cmd *redis.Cmd) (any, error) {
	reply, err := cmd.Result()
	if err == nil || errors.Is(err, redis.Nil) {
		err = checkKind(args, reply)
	}
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// Pipeline sends commands together. A reply is an error where its command failed; the first
// of them is returned, too.
func (db *DB) Pipeline(ctx context.Context, what string, cmds ...Cmd) ([]any, error) {
	return db.exec(ctx, db.rdb.Pipeline(), what, cmds)
}

// Atomic is Pipeline with nothing in between: the commands' keys lie in one slot.
func (db *DB) Atomic(ctx context.Context, what string, cmds ...Cmd) ([]any, error) {
	return db.exec(ctx, db.rdb.TxPipeline(), what, cmds)
}

func (db *DB) exec(ctx context.Context, pipe redis.Pipeliner, what string, cmds []Cmd) ([]any, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	answers := make([]*redis.Cmd, len(cmds))
	for i, cmd := range cmds {
		answers[i] = pipe.Do(ctx, cmd...)
	}
	_, first := pipe.Exec(ctx)
	if errors.Is(first, redis.Nil) {
		first = nil // there may be another one behind it
	}
	replies := make([]any, len(cmds))
	for i, answer := range answers {
		reply, err := answerOf(cmds[i], answer)
		if replies[i] = reply; err != nil {
			replies[i] = err
			if first == nil || Says(first, "EXECABORT") { // that says only that a command was refused
				first = err
			}
		}
	}
	return replies, db.Explain(what, first)
}

// IfUnchanged calls read, and sends at once the commands that it returns, unless the key has
// changed since before read began: then unchanged is false. read has a way to send commands
// meanwhile.
func (db *DB) IfUnchanged(ctx context.Context, what, key string, read func(do func(args ...any) (any, error)) ([]Cmd, error)) (replies []any, unchanged bool, err error) {
	err = db.rdb.Watch(ctx, func(tx *redis.Tx) error {
		cmds, err := read(func(args ...any) (any, error) {
			cmd := redis.NewCmd(ctx, args...)
			_ = tx.Process(ctx, cmd) // the command carries its error
			return answerOf(args, cmd)
		})
		if err == nil {
			replies, err = db.exec(ctx, tx.TxPipeline(), what, cmds)
		}
		return err
	}, key)
	if errors.Is(err, redis.TxFailedErr) {
		return nil, false, nil
	}
	return replies, err == nil, db.Explain(what, err)
}

// EachMaster calls fn for every master, side by side; for a single Redis, for that one.
func (db *DB) EachMaster(ctx context.Context, fn func(ctx context.Context, master *DB) error) error {
	cluster, ok := db.rdb.(*redis.ClusterClient)
	if !ok {
		return fn(ctx, db)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return fn(ctx, db.at(node)) })
}

// MasterOf is the master that has a key.
func (db *DB) MasterOf(ctx context.Context, key string) (*DB, error) {
	cluster, ok := db.rdb.(*redis.ClusterClient)
	if !ok {
		return db, nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return db.at(node), nil
}

// at is db on one node of its cluster.
func (db *DB) at(node *redis.Client) *DB {
	one := *db
	one.rdb, one.address = node, node.Options().Addr
	return &one
}

// Time is Redis's clock.
func (db *DB) Time(ctx context.Context) (time.Time, error) {
	reply, err := db.Do(ctx, "read the time", "TIME")
	if err != nil {
		return time.Time{}, err
	}
	return Clock(reply)
}

// Clock reads the answer to TIME.
func Clock(reply any) (time.Time, error) {
	parts := List(reply)
	if len(parts) != 2 {
		return time.Time{}, fmt.Errorf("read the time: redis answered %v, want seconds and microseconds", reply)
	}
	return time.Unix(Int(parts[0]), Int(parts[1])*int64(time.Microsecond)), nil
}
