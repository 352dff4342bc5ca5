package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis must let its user do what the client does, on keys lk:* and channels lk:*.
// docs/security.md has the rules for its ACL.

// tryScript calls one command as a transition would, and answers what Redis says to it.
const tryScript = `local r = redis.pcall(unpack(ARGV)) if type(r) == 'table' and r.err then return r.err end return ''`

// tries are the commands that scripts and clients call, in a form that leaves no
// trace: SET makes the key a string, most of the others then find the wrong type, and
// DEL ends it.
func tries(key string) [][]any {
	on := func(command string, args ...any) []any { return append([]any{command, key}, args...) }
	return [][]any{
		on("SET", "1", "PX", time.Minute.Milliseconds()), on("GET"), on("MGET"), on("EXISTS"), on("PEXPIRE", time.Minute.Milliseconds()),
		on("HGET", "f"), on("HMGET", "f"), on("HGETALL"), on("HEXISTS", "f"), on("HSTRLEN", "f"), on("HLEN"), on("HSCAN", "0"),
		on("HSET", "f", "v"), on("HSETNX", "f", "v"), on("HINCRBY", "f", 1), on("HDEL", "f"),
		on("LINDEX", 0), on("LLEN"), on("LPOS", "v"), on("LRANGE", 0, 0), on("LPOP"), on("LPUSH", "v"), on("RPUSH", "v"), on("LREM", 0, "v"), on("LSET", 0, "v"), on("LTRIM", 0, 0),
		on("ZADD", 1, "v"), on("ZCARD"), on("ZCOUNT", 0, 0), on("ZLEXCOUNT", "-", "+"), on("ZRANGE", 0, 0), on("ZREVRANGE", 0, 0), on("ZRANGEBYLEX", "-", "+"),
		on("ZRANGEBYSCORE", 0, 0), on("ZREM", "v"), on("ZREMRANGEBYLEX", "-", "+"), on("ZSCAN", "0"), on("ZSCORE", "v"),
		on("TYPE"), on("UNLINK"), on("PTTL"), {"SCAN", "0"}, {"TIME"}, on("PUBLISH", ""), on("DEL"),
	}
}

// checkPermissions names all that Redis does not let its user do. What goes wrong for
// another reason is not its business: whoever needs the command hears of it.
func (c *Client) checkPermissions(ctx context.Context) error {
	if err := c.sentinels.check(ctx); err != nil {
		return err
	}
	keys, err := c.probeKeys(ctx)
	if err != nil {
		return c.explain("find the masters", err)
	}
	return c.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		// A master that the cluster has only just got has no key yet: it has no jobs either.
		if key := keys[c.addressOf(node)]; key != "" {
			return c.checkNode(ctx, node, key)
		}
		return nil
	})
}

// refusedToConnect names what is not permitted, if that is why nothing can be asked at all.
func (c *Client) refusedToConnect(ctx context.Context, err error) error {
	if !strings.Contains(err.Error(), "NOPERM") {
		return c.explain("connect", err)
	}
	first := "PING"
	if _, ok := c.rdb.(*redis.ClusterClient); ok {
		first = "CLUSTER SLOTS"
	}
	refused := refusals{}
	refused.addError(first, err)
	return cmp.Or(c.sentinels.check(ctx), refused.err(c.address), c.explain("connect", err))
}

// probeKeys are keys to try commands on, by the address of the master that has them: users
// are a server's own, and a server runs a script only on keys of its slots.
func (c *Client) probeKeys(ctx context.Context) (map[string]string, error) {
	keys := map[string]string{}
	var masters atomic.Int64
	err := c.eachMaster(ctx, func(context.Context, redis.UniversalClient) error { masters.Add(1); return nil })
	for n := 0; err == nil && n < mostProbes && len(keys) < int(masters.Load()); n++ {
		var address string
		key := probeKey(c.cfg.Cluster, n)
		if _, address, err = c.master(ctx, key); keys[address] == "" {
			keys[address] = key
		}
	}
	return keys, err
}

// mostProbes find every master but one with next to no slots.
const mostProbes = 100_000

// checkNode is checkPermissions for one server. key is one of its own.
func (c *Client) checkNode(ctx context.Context, node redis.UniversalClient, key string) error {
	refused := refusals{}
	pipe := node.Pipeline()
	all := tries(key)
	answers := make([]*redis.Cmd, len(all))
	for i, try := range all {
		answers[i] = pipe.Eval(ctx, tryScript, []string{key}, try...)
	}
	byName := map[string]redis.Cmder{
		"EVALSHA": pipe.EvalSha(ctx, strings.Repeat("0", 40), []string{key}), "INFO": pipe.Info(ctx, "server"),
		"SCRIPT LOAD": pipe.ScriptLoad(ctx, tryScript), "WAIT": pipe.Do(ctx, "WAIT", 0, 1),
	}
	if _, ok := c.rdb.(*redis.ClusterClient); ok {
		maps.Copy(byName, tryCluster(ctx, pipe))
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for i, answer := range answers {
		text, err := answer.Text()
		if err != nil && !says(err, "NOPERM") {
			continue
		}
		if err != nil {
			refused.add("EVAL", err.Error())
		} else {
			refused.add(all[i][0].(string), text)
		}
	}
	for name, cmd := range byName {
		refused.addError(name, cmd.Err())
	}
	refused.addError("PING", node.Ping(ctx).Err())
	refused.addError("SUBSCRIBE", c.trySubscribe(ctx, node, key))
	refused.addError("WATCH", tryWatch(ctx, node, key))
	return refused.err(c.addressOf(node))
}

// tryCluster is what go-redis does in a cluster by itself: it asks where slots and the keys of
// commands are, and follows a slot that moves.
func tryCluster(ctx context.Context, pipe redis.Pipeliner) map[string]redis.Cmder {
	return map[string]redis.Cmder{
		"ASKING":        pipe.Do(ctx, "ASKING"), // good for one command, which the next one is
		"CLUSTER SLOTS": pipe.Do(ctx, "CLUSTER", "SLOTS"),
		"COMMAND":       pipe.Do(ctx, "COMMAND"),
	}
}

func (c *Client) trySubscribe(ctx context.Context, node redis.UniversalClient, channel string) error {
	pubsub := node.Subscribe(ctx)
	defer pubsub.Close()
	if err := subscribe(ctx, pubsub, channel, c.cfg.Timeout); err != nil {
		return err
	}
	if err := pubsub.Unsubscribe(ctx, channel); err != nil {
		return err
	}
	_, err := pubsub.ReceiveTimeout(ctx, c.cfg.Timeout)
	return err
}

// subscribe waits for the answer.
func subscribe(ctx context.Context, pubsub *redis.PubSub, channel string, timeout time.Duration) error {
	if err := pubsub.Subscribe(ctx, channel); err != nil {
		return err
	}
	_, err := pubsub.ReceiveTimeout(ctx, timeout)
	return err
}

func tryWatch(ctx context.Context, node redis.UniversalClient, key string) error {
	return node.Watch(ctx, func(tx *redis.Tx) error {
		if err := tx.Unwatch(ctx).Err(); err != nil {
			return err
		}
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Get(ctx, key).Err() })
		return err
	}, key)
}

// refusals are what Redis does not permit: commands, keys or channels.
type refusals map[string]bool

func (r refusals) addError(command string, err error) {
	var answer redis.Error
	if errors.As(err, &answer) {
		r.add(command, answer.Error())
	}
}

// addSubscribe is addError of a SUBSCRIBE to a channel that is not a cluster's.
func (r refusals) addSubscribe(channel string, err error) {
	one := refusals{}
	one.addError("SUBSCRIBE", err)
	for rule := range one {
		r[strings.Replace(rule, "&lk:*", "&"+channel, 1)] = true
	}
}

// add reads an answer. Redis 6.2 to 7.0 word refusals inside scripts differently from
// 7.2, and both differently from those outside, where the command is named; 6.2 then leaves
// out its subcommand.
func (r refusals) add(command, answer string) {
	tried := strings.ToLower(strings.ReplaceAll(command, " ", "|"))
	_, named, ok := strings.Cut(answer, "to run the '")
	switch {
	case !strings.Contains(answer, "NOPERM") && !strings.Contains(answer, "executing the script can't"):
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

func (r refusals) err(address string) error {
	if len(r) == 0 {
		return nil
	}
	var rules []string
	for rule := range r {
		rules = append(rules, rule)
	}
	slices.Sort(rules)
	return fmt.Errorf("redis %s does not permit its user all that lowkiq does: add to its ACL rules: %s", address, strings.Join(rules, " "))
}
