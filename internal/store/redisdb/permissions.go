package redisdb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/lua"
)

// Redis must permit the client's user everything that the client does, on keys lk:* and channels lk:*.
// docs/security.md has the rules for its ACL.

// checkPermissions returns an error that names everything that Redis does not permit the client's
// user. It ignores failures with other reasons, because a later caller of the command gets them.
func (db *DB) checkPermissions(ctx context.Context) error {
	if err := db.checkSentinelUser(ctx); err != nil {
		return err
	}
	keys, err := db.probeKeys(ctx)
	if err != nil {
		return db.Explain("find the masters", err)
	}
	return db.EachMaster(ctx, func(ctx context.Context, master *DB) error {
		// A new master of the cluster has no slots yet, and so no jobs.
		if key := keys[master.address]; key != "" {
			return master.checkNode(ctx, key, db.Sharded)
		}
		return nil
	})
}

// refusedToConnect returns the error of a client that can send nothing at all. It names the missing
// permission if that is the reason.
func (db *DB) refusedToConnect(ctx context.Context, err error) error {
	if !strings.Contains(err.Error(), "NOPERM") {
		return db.Explain("connect", err)
	}
	first := "PING"
	if db.Sharded {
		first = "CLUSTER SLOTS"
	}
	refused := refusals{}
	refused.addError(first, err)
	return cmp.Or(db.checkSentinelUser(ctx), refused.asError(db.address), db.Explain("connect", err))
}

// probeKeys returns a key for each master on which to try commands, by the address of the master.
// Each server has users of its own, and runs a script only on keys of its slots.
func (db *DB) probeKeys(ctx context.Context) (map[string]string, error) {
	keys := map[string]string{}
	var masters atomic.Int64
	err := db.EachMaster(ctx, func(context.Context, *DB) error { masters.Add(1); return nil })
	for n := 0; err == nil && n < maxProbes && len(keys) < int(masters.Load()); n++ {
		var master *DB
		if master, err = db.MasterOf(ctx, db.Keys.probeKey(n)); err == nil && keys[master.address] == "" {
			keys[master.address] = db.Keys.probeKey(n)
		}
	}
	return keys, err
}

// maxProbes is enough to find every master, unless the master has next to no slots.
const maxProbes = 100_000

// checkNode does the same as checkPermissions for a single server. key is in a slot of the server.
func (db *DB) checkNode(ctx context.Context, key string, sharded bool) error {
	text := lua.Source("permissions")
	refused := refusals{}
	pipe := db.rdb.Pipeline()
	inScripts := pipe.Eval(ctx, text, []string{key})
	byName := map[string]redis.Cmder{
		"EVAL": inScripts, "EVALSHA": pipe.EvalSha(ctx, strings.Repeat("0", 40), []string{key}),
		"SCRIPT LOAD": pipe.ScriptLoad(ctx, text), "INFO": pipe.Info(ctx, "server"), "WAIT": pipe.Do(ctx, "WAIT", 0, 1),
	}
	if sharded { // go-redis asks for slots and for the keys of commands, and follows a slot that moves
		byName["ASKING"] = pipe.Do(ctx, "ASKING") // it applies to the next command only
		byName["CLUSTER SLOTS"] = pipe.Do(ctx, "CLUSTER", "SLOTS")
		byName["COMMAND"] = pipe.Do(ctx, "COMMAND")
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for command, answer := range Map(inScripts.Val()) {
		refused.addAnswer(command, answer)
	}
	for name, cmd := range byName {
		refused.addError(name, cmd.Err())
	}
	refused.addError("PING", db.rdb.Ping(ctx).Err())
	refused.addError("SUBSCRIBE", db.trySubscribe(ctx, key))
	_, _, err := db.IfUnchanged(ctx, "watch", key, func(do func(args ...any) (any, error)) ([]Cmd, error) {
		_, err := do("UNWATCH")
		return []Cmd{{"GET", key}}, err
	})
	refused.addError("WATCH", err)
	return refused.asError(db.address)
}

func (db *DB) trySubscribe(ctx context.Context, channel string) error {
	s := db.Subscribe(ctx)
	defer s.Close()
	if err := s.Listen(ctx, channel, db.timeout); err != nil {
		return err
	}
	if err := s.Remove(ctx, channel); err != nil {
		return err
	}
	_, err := s.Receive(ctx, db.timeout)
	return err
}

// refusals has the ACL rules for what Redis does not permit: commands, keys or channels.
type refusals map[string]bool

func (r refusals) addError(command string, err error) {
	var answer redis.Error
	if errors.As(err, &answer) {
		r.addAnswer(command, answer.Error())
	}
}

// addSubscribe is addError for a SUBSCRIBE to a channel of a sentinel.
func (r refusals) addSubscribe(channel string, err error) {
	one := refusals{}
	one.addError("SUBSCRIBE", err)
	for rule := range one {
		r[strings.Replace(rule, "&lk:*", "&"+channel, 1)] = true
	}
}

// isRefusal reports whether an answer says that the user may not do something. Redis 6.2 to 7.0 have other words inside scripts.
func isRefusal(answer string) bool {
	return strings.Contains(answer, "NOPERM") || strings.Contains(answer, "executing the script can't")
}

// addAnswer parses an answer. Redis 6.2 to 7.0 word refusals inside scripts differently from 7.2.
// Both differ from refusals outside scripts, which name the command. Outside scripts, Redis 6.2
// leaves out the subcommand.
func (r refusals) addAnswer(command, answer string) {
	tried := strings.ToLower(strings.ReplaceAll(command, " ", "|"))
	_, named, ok := strings.Cut(answer, "to run the '")
	switch {
	case !isRefusal(answer):
	case strings.Contains(answer, "channel"):
		r["&lk:*"] = true
	case strings.Contains(answer, "access"):
		r["~lk:*"] = true
	case ok:
		name, _, _ := strings.Cut(named, "'")
		if name = strings.ToLower(name); strings.HasPrefix(tried, name+"|") {
			name = tried
		}
		r["+"+name] = true
	default:
		r["+"+tried] = true
	}
}

func (r refusals) asError(address string) error {
	if len(r) == 0 {
		return nil
	}
	var rules []string
	for rule := range r {
		rules = append(rules, rule)
	}
	slices.Sort(rules)
	return unfit("redis %s does not permit its user everything that lowkiq does; add to its ACL rules: %s", address, strings.Join(rules, " "))
}
