package redisdb

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/lua"
)

// Script is the text of a script and its name in Redis.
type Script struct {
	Name      string
	text, sha string
	keys      []string // names in the order of KEYS
	ofShard   bool     // all keys belong to a shard
	mayBeNil  bool     // the answer may be nil
}

func newScript(name string) *Script {
	s := &Script{Name: name, keys: lua.Keys(name)}
	s.ofShard = len(s.keys) > 0 && !slices.ContainsFunc(s.keys, func(key string) bool { return !shardKeys[key] })
	s.SetText(lua.Source(name))
	return s
}

// NewScript returns a script for a Redis that is not lowkiq's own. Unlike the scripts of lowkiq it
// may answer nil.
func NewScript(name, text string) *Script {
	s := &Script{Name: name, mayBeNil: true}
	s.SetText(text)
	return s
}

// Text returns the text that Redis runs.
func (s *Script) Text() string { return s.text }

// SHA returns the script's name in Redis.
func (s *Script) SHA() string { return s.sha }

// SetText replaces the text, for tests that bound or count what a script does.
func (s *Script) SetText(text string) {
	sum := sha1.Sum([]byte(text))
	s.text, s.sha = text, hex.EncodeToString(sum[:])
}

// shardKeys has the names of a shard's keys in the heads of scripts.
var shardKeys = func() map[string]bool {
	names := map[string]bool{}
	for _, key := range new(ShardKeys).List() {
		names[key.Name] = true
		names["old:"+key.Name] = key.Freeze == Moves
	}
	return names
}()

// Scripts has all scripts that Go calls. A field has the name of its file: RunNow is
// lua/run_now.lua.
type Scripts struct {
	Push, PushEach, PushUrgent, Coalesce, Pop, PopEach      *Script
	Deliver, Import, Tick, Ticking, Recur                   *Script
	Ack, Complete, Nack, Bury                               *Script
	Reply, Note                                             *Script
	Claim, Resume, Release, Aside, DeadTo                   *Script
	Outgoing, OutgoingTrim                                  *Script
	Delete, Kill, RunNow, Requeue, MorgueDelete, MorgueTrim *Script
	Register, Swap, Freeze, Take, Rules                     *Script
	LeaseNew, Lease, ClusterSwap, Mark                      *Script
	Stats, Slice, Line, Scan, Search, Show, Runs            *Script
	Permit, Rate, Group, GroupReset, Regroup                *Script
	Tally                                                   *Script

	rareScripts
}

// rareScripts are the scripts of audits, of moves to another system and of reads of a whole id. Work and pushes do not call
// them.
type rareScripts struct {
	Read                              *Script
	Audit, AuditSpill, AuditStates    *Script
	Repair, RepairFlight, RepairClaim *Script
	Export, Seal                      *Script
}

// NewScripts loads the scripts. It panics if a field has no file.
func NewScripts() *Scripts {
	s := &Scripts{}
	for _, field := range scriptFields {
		*s.scriptField(field) = newScript(fileOf(field.Name))
	}
	return s
}

// scriptFields are the fields of Scripts with a script.
var scriptFields = slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[Scripts]()), func(f reflect.StructField) bool { return f.Anonymous })

func (s *Scripts) scriptField(f reflect.StructField) **Script {
	return reflect.ValueOf(s).Elem().FieldByIndex(f.Index).Addr().Interface().(**Script)
}

var capital = regexp.MustCompile("[A-Z]")

// fileOf returns the name of a field's file, run_now for RunNow.
func fileOf(field string) string {
	return strings.ToLower(capital.ReplaceAllString(field, "_$0")[1:])
}

// All returns the scripts that nodes and producers call.
func (s *Scripts) All() (all []*Script) {
	for _, f := range scriptFields {
		if len(f.Index) == 1 {
			all = append(all, *s.scriptField(f))
		}
	}
	return all
}

// Load sends the scripts to every master, so that the first jobs do not wait for that.
func (db *DB) Load(ctx context.Context) error {
	return db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		pipe := master.rdb.Pipeline()
		for _, s := range db.Scripts.All() {
			pipe.ScriptLoad(ctx, s.text)
		}
		_, err := pipe.Exec(ctx)
		return db.Explain("load scripts", err)
	})
}

// Run calls a script. If Redis has forgotten it (SCRIPT FLUSH, a restart, a failover), nothing was
// done, and Run sends its text.
func (db *DB) Run(ctx context.Context, s *Script, keys []string, args ...any) (any, error) {
	reply, err := db.rdb.EvalSha(ctx, s.sha, keys, args...).Result()
	if isNoScript(err) {
		reply, err = db.rdb.Eval(ctx, s.text, keys, args...).Result()
	}
	return reply, db.explainScript(s, err)
}

// explainScript is Explain for the answer of a script.
func (db *DB) explainScript(s *Script, err error) error {
	if s.mayBeNil && errors.Is(err, redis.Nil) {
		return nil
	}
	return db.Explain(s.Name, err)
}

// Call is a script call in a pipeline.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
	Reply  any
	Err    error
}

// RunAll sends calls in a pipeline and repeats those with an unknown script.
func (db *DB) RunAll(ctx context.Context, calls []*Call) {
	if len(calls) == 1 {
		calls[0].Reply, calls[0].Err = db.Run(ctx, calls[0].Script, calls[0].Keys, calls[0].Args...)
		return
	}
	for _, unknown := range db.sendCalls(ctx, calls) {
		unknown.Reply, unknown.Err = db.Run(ctx, unknown.Script, unknown.Keys, unknown.Args...)
	}
}

// RunInTurn sends two calls in a pipeline. The second call sees the result of the first. If the
// first script was unknown, both calls are sent again, so it must be safe to repeat the second
// call.
func (db *DB) RunInTurn(ctx context.Context, first, second *Call) {
	unknown := db.sendCalls(ctx, []*Call{first, second})
	if len(unknown) == 0 {
		return
	}
	if unknown[0] == first {
		first.Reply, first.Err = db.Run(ctx, first.Script, first.Keys, first.Args...)
	}
	if first.Err == nil {
		second.Reply, second.Err = db.Run(ctx, second.Script, second.Keys, second.Args...)
	}
}

func (db *DB) sendCalls(ctx context.Context, calls []*Call) (unknown []*Call) {
	pipe := db.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, call := range calls {
		cmds[i] = redis.NewCmd(ctx, evalSHA(call)...)
		_ = pipe.Process(ctx, once{cmds[i]}) // the command carries its error
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for i, call := range calls {
		reply, err := cmds[i].Result()
		if isNoScript(err) {
			unknown = append(unknown, call)
			continue
		}
		call.Reply, call.Err = reply, db.explainScript(call.Script, err)
	}
	return unknown
}

func evalSHA(call *Call) []any {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	args = append(args, "EVALSHA", call.Script.sha, len(call.Keys))
	for _, key := range call.Keys {
		args = append(args, key)
	}
	return append(args, call.Args...)
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }
