// Package redisdb sends commands and scripts to Redis. It has the connections, the keys, the scripts,
// and the checks of servers and their permissions.
//
// It brings a command or a script to the right server, and explains the answer. It is the only
// package that calls go-redis, and keys.go is the only Go file that spells keys. Scripts name their
// keys in their heads. The package knows nothing about jobs.
//
// [DB] sends commands ([DB.Do], [DB.Pipeline], [DB.Atomic]) and scripts ([DB.Run], [DB.RunAll]). A
// [Subscription] listens to channels. The package repeats a script only if Redis has forgotten it.
// Callers repeat other operations by the rules of each script.
package redisdb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/process/sleep"
)

// Config describes the Redis server and the cluster.
type Config struct {
	URL      string
	Cluster  string // part of every key
	TLS      *tls.Config
	Timeout  time.Duration // of a command, and of dialling
	PoolSize int           // connections per Redis node; 0 means 10 per CPU, or 5 with redis+cluster
}

// Client is the part of a [redis.UniversalClient] that names no client type of go-redis. The fields and methods of exported
// types name no client type either. Otherwise the compiler would compile some 1,500 methods of go-redis again in every package
// that imports this one, and in users' packages.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	AddHook(redis.Hook)
	Close() error
}

// DB is a client of a Redis: single, Sentinel or Cluster. It is safe for concurrent use.
type DB struct {
	rdb            Client
	address        string // for people: hosts without credentials
	timeout        time.Duration
	tls            bool
	checkSentinels func(context.Context) error // nil without Sentinel
	replicas       *replicas
	lookout        *lookout // nil without a Redis Cluster
	links          *links

	Keys    Keys
	Scripts *Scripts
	Sharded bool         // a Redis Cluster
	Slow    *sleep.Tenth // for large reads, which together take at most a tenth of Redis's time
}

// Open parses the URL. It does not connect.
func Open(cfg Config) (*DB, error) {
	opts, err := parseOptions(cfg)
	if err != nil {
		return nil, fmt.Errorf("redis address %q: %w", MaskURL(cfg.URL), err)
	}
	rdb := redis.NewUniversalClient(opts)
	db := &DB{
		rdb: rdb, address: strings.Join(opts.Addrs, ","), timeout: cfg.Timeout, tls: opts.TLSConfig != nil,
		links:    &links{open: map[*link]struct{}{}},
		replicas: &replicas{seen: map[string]replicaCount{}},
		Keys:     Keys{cfg.Cluster}, Scripts: NewScripts(), Sharded: opts.IsClusterMode, Slow: sleep.NewTenth(),
	}
	if opts.MasterName != "" {
		db.checkSentinels = (&sentinels{opts}).checkUser
		db.rdb.AddHook(knownMaster{opts.MasterName})
	}
	db.lookout = newLookout(rdb, db.links, cfg.Timeout)
	return db, nil
}

// Close closes the connections. It may be called twice.
func (db *DB) Close() error {
	db.lookout.close()
	if err := db.rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close redis %s: %w", db.address, err)
	}
	return nil
}

// Address returns the hosts without credentials, for people.
func (db *DB) Address() string { return db.address }

// ForTests returns go-redis's client, a [redis.UniversalClient], for tests that read keys or damage them.
func (db *DB) ForTests() Client { return db.rdb }

// With returns db for the keys of another cluster.
func (db *DB) With(cluster string) *DB {
	other := *db
	other.Keys = Keys{cluster}
	return &other
}

// go-redis would write to stderr and wait for its reader. Everything that matters is returned as an
// error. A program may set another logger for go-redis in its main.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Cmd is a command and its arguments.
type Cmd []any

// Do sends a command. what names its purpose for errors.
func (db *DB) Do(ctx context.Context, what string, args ...any) (any, error) {
	reply, err := answerOf(args, db.rdb.Do(ctx, args...))
	return reply, db.Explain(what, err)
}

// answerOf returns the answer to a command, which is nil for a missing value.
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

// Pipeline sends commands together. The reply of a failed command is its error. Pipeline also
// returns the first of these errors.
func (db *DB) Pipeline(ctx context.Context, what string, cmds ...Cmd) ([]any, error) {
	return db.execPipeline(ctx, db.rdb.Pipeline(), what, cmds)
}

// Atomic does the same as Pipeline, and no command of another client comes in between. All keys must be
// in one slot.
func (db *DB) Atomic(ctx context.Context, what string, cmds ...Cmd) ([]any, error) {
	return db.execPipeline(ctx, db.rdb.TxPipeline(), what, cmds)
}

// ReadAtomic does the same as Atomic for commands that read, and a full Redis does not refuse them. The first word after the
// name of each command is its key. If a command fails, there are no replies.
func (db *DB) ReadAtomic(ctx context.Context, what string, cmds ...Cmd) ([]any, error) {
	var keys []string
	var args []any
	for _, cmd := range cmds {
		keys = append(keys, cmd[1].(string))
		args = append(append(args, len(cmd)), cmd...)
	}
	reply, err := db.Run(ctx, db.Scripts.Read, keys, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	replies := List(reply)
	if len(replies) != len(cmds) {
		return nil, db.Explain(what, wrongKind("read", reply))
	}
	for i, cmd := range cmds {
		if err := checkKind(cmd, replies[i]); err != nil {
			return nil, db.Explain(what, err)
		}
	}
	return replies, nil
}

func (db *DB) execPipeline(ctx context.Context, pipe redis.Pipeliner, what string, cmds []Cmd) ([]any, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	answers := make([]*redis.Cmd, len(cmds))
	for i, cmd := range cmds {
		answers[i] = redis.NewCmd(ctx, cmd...)
		_ = pipe.Process(ctx, once{answers[i]}) // the command carries its error
	}
	_, first := pipe.Exec(ctx)
	if errors.Is(first, redis.Nil) {
		first = nil // a later command may have failed
	}
	replies := make([]any, len(cmds))
	for i, answer := range answers {
		reply, err := answerOf(cmds[i], answer)
		if replies[i] = reply; err != nil {
			replies[i] = err
			if first == nil || Says(first, "EXECABORT") { // EXECABORT says only that some command was refused
				first = err
			}
		}
	}
	return replies, db.Explain(what, first)
}

// once is a command of a pipeline that go-redis sends again only if its slot has moved. In a Redis Cluster go-redis would send all
// commands of a pipeline again if the first is told to try again, or if the connection breaks. If some of them were redirected
// before, it would send these to two servers at once, and both answers would be stored in one Cmd at the same time.
type once struct{ *redis.Cmd }

// NoRetry overrides the answer of Cmd.
func (once) NoRetry() bool { return true }

// IfUnchanged calls read, and sends the commands that it returns atomically. If the key has changed
// since before read began, it sends nothing and unchanged is false. read gets a function that sends
// commands in the meantime. If read returns no commands, a full Redis does not refuse the rest either.
func (db *DB) IfUnchanged(ctx context.Context, what, key string, read func(do func(args ...any) (any, error)) ([]Cmd, error)) (replies []any, unchanged bool, err error) {
	err = db.rdb.(redis.UniversalClient).Watch(ctx, func(tx *redis.Tx) error {
		cmds, err := read(func(args ...any) (any, error) {
			cmd := redis.NewCmd(ctx, args...)
			_ = tx.Process(ctx, cmd) // the command carries its error
			return answerOf(args, cmd)
		})
		switch {
		case err != nil:
		case len(cmds) > 0:
			replies, err = db.execPipeline(ctx, tx.TxPipeline(), what, cmds)
		default: // go-redis sends no transaction without commands
			_, err = tx.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Do(ctx, "MULTI")
				pipe.Do(ctx, "EXEC")
				return nil
			})
			if errors.Is(err, redis.Nil) {
				err = redis.TxFailedErr
			}
		}
		return err
	}, key)
	if errors.Is(err, redis.TxFailedErr) {
		return nil, false, nil
	}
	return replies, err == nil, db.Explain(what, err)
}

// EachMaster calls fn for all masters concurrently. A single Redis is its own master.
func (db *DB) EachMaster(ctx context.Context, fn func(ctx context.Context, master *DB) error) error {
	cluster, ok := db.rdb.(*redis.ClusterClient)
	if !ok {
		return fn(ctx, db)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		return fn(ctx, db.onNode(node, node.Options().Addr))
	})
}

// MasterOf returns the master that has a key.
func (db *DB) MasterOf(ctx context.Context, key string) (*DB, error) {
	cluster, ok := db.rdb.(*redis.ClusterClient)
	if !ok {
		return db, nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return db.onNode(node, node.Options().Addr), nil
}

// onNode returns db for a node of its cluster.
func (db *DB) onNode(node Client, address string) *DB {
	one := *db
	one.rdb, one.address = node, address
	return &one
}

// Time returns the time of Redis's clock.
func (db *DB) Time(ctx context.Context) (time.Time, error) {
	reply, err := db.Do(ctx, "read the time", "TIME")
	if err != nil {
		return time.Time{}, err
	}
	return Clock(reply)
}

// Clock decodes the answer to TIME.
func Clock(reply any) (time.Time, error) {
	parts := List(reply)
	if len(parts) != 2 {
		return time.Time{}, fmt.Errorf("read the time: redis answered %v instead of seconds and microseconds", reply)
	}
	return time.Unix(Int(parts[0]), Int(parts[1])*int64(time.Microsecond)), nil
}
