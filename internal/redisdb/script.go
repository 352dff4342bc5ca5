package redisdb

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/lua"
)

// Script is one transition's text and its name in Redis.
type Script struct {
	Name      string
	text, sha string
	keys      []string // their names, in the order of KEYS
	ofShard   bool     // all of them are a shard's
	mayBeNil  bool     // its answer
}

func newScript(name string) *Script {
	s := &Script{Name: name, keys: lua.Keys(name)}
	s.ofShard = len(s.keys) > 0 && !slices.ContainsFunc(s.keys, func(key string) bool { return !shardKeys[key] })
	s.SetText(lua.Source(name))
	return s
}

// NewScript is a script of a package that speaks to a Redis which is not lowkiq's own. It may answer nil, which those of
// lowkiq do not.
func NewScript(name, text string) *Script {
	s := &Script{Name: name, mayBeNil: true}
	s.SetText(text)
	return s
}

// Text is what Redis runs.
func (s *Script) Text() string { return s.text }

// SHA is what Redis calls it.
func (s *Script) SHA() string { return s.sha }

// SetText makes it another script, for tests that bound or count what it does.
func (s *Script) SetText(text string) {
	sum := sha1.Sum([]byte(text))
	s.text, s.sha = text, hex.EncodeToString(sum[:])
}

// shardKeys are the names of a shard's keys.
var shardKeys = func() map[string]bool {
	names := map[string]bool{}
	var k ShardKeys = Keys{}.Shard("", 0, 0)
	for key := range k.Types() {
		names[strings.TrimPrefix(key, k.Tag)] = true
	}
	names["reply"] = true
	return names
}()

// Scripts are all transitions that Go calls.
type Scripts struct {
	Push, PushEach, Coalesce, Pop, PopEach            *Script
	Deliver, Import, Tick, Ticking, Recur             *Script
	Ack, Complete, Nack, Bury                         *Script
	Reply, Note                                       *Script
	Claim, Resume, Release, Aside                     *Script
	Delete, Kill, RunNow, Requeue, Forget, TrimMorgue *Script
	Register, Swap, Remove, Rules                     *Script
	LeaseNew, Lease, ClusterSwap, Mark                *Script
	Stats, Slice, Line, Scan, Search, Show, Runs      *Script
	Permit, Rate, Group, GroupReset, Regroup          *Script
	Tally, Join                                       *Script
	Audit, AuditSpill, AuditStates                    *Script
	Repair, RepairFlight, RepairClaim                 *Script
	Export, Seal                                      *Script
}

// NewScripts reads them.
func NewScripts() *Scripts {
	return &Scripts{
		Push: newScript("push"), PushEach: newScript("push_each"), Coalesce: newScript("coalesce"), Pop: newScript("pop"), PopEach: newScript("pop_each"),
		Deliver: newScript("deliver"), Import: newScript("import"), Tick: newScript("tick"), Ticking: newScript("ticking"), Recur: newScript("recur"),
		Ack: newScript("ack"), Complete: newScript("complete"), Reply: newScript("reply"), Note: newScript("note"), Nack: newScript("nack"), Bury: newScript("bury"),
		Claim: newScript("claim"), Resume: newScript("resume"), Release: newScript("release"), Aside: newScript("aside"),
		Delete: newScript("delete"), Kill: newScript("kill"), RunNow: newScript("run_now"),
		Requeue: newScript("requeue"), Forget: newScript("morgue_delete"), TrimMorgue: newScript("morgue_trim"),
		Register: newScript("register"), Swap: newScript("swap"), Remove: newScript("remove_shard"), Rules: newScript("rules"),
		LeaseNew: newScript("lease_new"), Lease: newScript("lease"), ClusterSwap: newScript("cluster_swap"), Mark: newScript("mark"),
		Stats: newScript("stats"), Slice: newScript("slice"), Line: newScript("line"), Scan: newScript("scan"), Search: newScript("search"), Show: newScript("show"), Runs: newScript("runs"),
		Permit: newScript("permit"), Rate: newScript("rate"), Group: newScript("group"), GroupReset: newScript("group_reset"), Regroup: newScript("regroup"),
		Tally: newScript("tally"), Join: newScript("join"),
		Audit: newScript("audit"), AuditSpill: newScript("audit_spill"), AuditStates: newScript("audit_states"),
		Repair: newScript("repair"), RepairFlight: newScript("repair_flight"), RepairClaim: newScript("repair_claim"),
		Export: newScript("export"), Seal: newScript("seal"),
	}
}

// All are those that nodes and producers call: not those of audits, and of a move to another system.
func (s *Scripts) All() []*Script {
	return []*Script{s.Push, s.PushEach, s.Coalesce, s.Pop, s.PopEach, s.Deliver, s.Import, s.Tick, s.Ticking, s.Recur, s.Ack, s.Complete, s.Reply, s.Note, s.Nack, s.Bury, s.Claim, s.Resume, s.Release, s.Aside,
		s.Delete, s.Kill, s.RunNow, s.Requeue, s.Forget, s.TrimMorgue, s.Register, s.Swap, s.Remove, s.Rules,
		s.LeaseNew, s.Lease, s.ClusterSwap, s.Mark, s.Stats, s.Slice, s.Line, s.Scan, s.Search, s.Show, s.Runs, s.Permit, s.Rate, s.Group, s.GroupReset, s.Regroup, s.Tally, s.Join}
}

// Load sends the scripts to every master, so that the first jobs need not.
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

// Run calls one script. Redis may have forgotten it (SCRIPT FLUSH, a restart, a
// failover): then nothing was done, and the text is sent along.
func (db *DB) Run(ctx context.Context, s *Script, keys []string, args ...any) (any, error) {
	reply, err := db.rdb.EvalSha(ctx, s.sha, keys, args...).Result()
	if isNoScript(err) {
		reply, err = db.rdb.Eval(ctx, s.text, keys, args...).Result()
	}
	return reply, db.explain(s, err)
}

// explain is Explain of a script's answer.
func (db *DB) explain(s *Script, err error) error {
	if s.mayBeNil && errors.Is(err, redis.Nil) {
		return nil
	}
	return db.Explain(s.Name, err)
}

// Call is one script call of a pipeline.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
	Reply  any
	Err    error
}

// RunAll sends calls in one pipeline and repeats those whose script was unknown.
func (db *DB) RunAll(ctx context.Context, calls []*Call) {
	if len(calls) == 1 {
		calls[0].Reply, calls[0].Err = db.Run(ctx, calls[0].Script, calls[0].Keys, calls[0].Args...)
		return
	}
	for _, unknown := range db.pipeline(ctx, calls) {
		unknown.Reply, unknown.Err = db.Run(ctx, unknown.Script, unknown.Keys, unknown.Args...)
	}
}

// RunInTurn sends two calls in one pipeline, of which the second is to see what the first has done. If the first one's
// script was unknown, both are sent again: the second call must bear to be repeated.
func (db *DB) RunInTurn(ctx context.Context, first, second *Call) {
	unknown := db.pipeline(ctx, []*Call{first, second})
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

func (db *DB) pipeline(ctx context.Context, calls []*Call) (unknown []*Call) {
	pipe := db.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, call := range calls {
		cmds[i] = pipe.EvalSha(ctx, call.Script.sha, call.Keys, call.Args...)
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for i, call := range calls {
		reply, err := cmds[i].Result()
		if isNoScript(err) {
			unknown = append(unknown, call)
			continue
		}
		call.Reply, call.Err = reply, db.explain(call.Script, err)
	}
	return unknown
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }
