package queue

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/lua"
)

// script is one transition's text and its name in Redis.
type script struct{ name, text, sha string }

func newScript(name string) *script {
	text := lua.Source(name)
	sum := sha1.Sum([]byte(text))
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

// scripts are all transitions that Go calls.
type scripts struct {
	push, pop, ack, nack, bury             *script
	claim, resume, release                 *script
	aside, remove                          *script
	delete, kill, runNow, requeue, forget  *script
	stats, leaseNew, lease, register, swap *script
	clusterSwap, mark, pushEach            *script
	slice, line, scan, show                *script
	audit, auditSpill, repair              *script
	repairFlight, repairClaim              *script
}

func newScripts() *scripts {
	return &scripts{
		push: newScript("push"), pop: newScript("pop"), ack: newScript("ack"), nack: newScript("nack"),
		aside: newScript("aside"), remove: newScript("remove_shard"),
		bury: newScript("bury"), claim: newScript("claim"), resume: newScript("resume"), release: newScript("release"),
		delete: newScript("delete"), kill: newScript("kill"), runNow: newScript("run_now"),
		requeue: newScript("requeue"), forget: newScript("morgue_delete"), stats: newScript("stats"),
		leaseNew: newScript("lease_new"), lease: newScript("lease"),
		register: newScript("register"), swap: newScript("swap"),
		clusterSwap: newScript("cluster_swap"), mark: newScript("mark"), pushEach: newScript("push_each"),
		slice: newScript("slice"), line: newScript("line"), scan: newScript("scan"), show: newScript("show"),
		audit: newScript("audit"), auditSpill: newScript("audit_spill"), repair: newScript("repair"),
		repairFlight: newScript("repair_flight"), repairClaim: newScript("repair_claim"),
	}
}

func (s *scripts) all() []*script {
	return []*script{s.push, s.pop, s.ack, s.nack, s.bury, s.aside, s.remove, s.claim, s.resume, s.release, s.delete, s.kill, s.runNow,
		s.requeue, s.forget, s.stats, s.leaseNew, s.lease, s.register, s.swap, s.clusterSwap, s.mark, s.pushEach,
		s.slice, s.line, s.scan, s.show}
}

// Load sends the scripts to every master, so that the first jobs need not.
func (c *Client) Load(ctx context.Context) error {
	return c.eachMaster(ctx, func(ctx context.Context, node redis.UniversalClient) error {
		pipe := node.Pipeline()
		for _, s := range c.scripts.all() {
			pipe.ScriptLoad(ctx, s.text)
		}
		_, err := pipe.Exec(ctx)
		return c.explain("load scripts", err)
	})
}

// run calls one script. Redis may have forgotten it (SCRIPT FLUSH, a restart, a
// failover): then nothing was done, and the text is sent along.
func (c *Client) run(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	reply, err := c.rdb.EvalSha(ctx, s.sha, keys, args...).Result()
	if isNoScript(err) {
		reply, err = c.rdb.Eval(ctx, s.text, keys, args...).Result()
	}
	return reply, c.explain(s.name, err)
}

// call is one script call of a pipeline.
type call struct {
	script *script
	keys   []string
	args   []any
	reply  any
	err    error
}

// runAll sends calls in one pipeline and repeats those whose script was unknown.
func (c *Client) runAll(ctx context.Context, calls []*call) {
	if len(calls) == 1 {
		calls[0].reply, calls[0].err = c.run(ctx, calls[0].script, calls[0].keys, calls[0].args...)
		return
	}
	for _, unknown := range c.pipeline(ctx, calls) {
		unknown.reply, unknown.err = c.run(ctx, unknown.script, unknown.keys, unknown.args...)
	}
}

func (c *Client) pipeline(ctx context.Context, calls []*call) (unknown []*call) {
	pipe := c.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, call := range calls {
		cmds[i] = pipe.EvalSha(ctx, call.script.sha, call.keys, call.args...)
	}
	pipe.Exec(ctx) //nolint:errcheck // every command carries its own error
	for i, call := range calls {
		reply, err := cmds[i].Result()
		if isNoScript(err) {
			unknown = append(unknown, call)
			continue
		}
		call.reply, call.err = reply, c.explain(call.script.name, err)
	}
	return unknown
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// explain says which operation and which Redis an error belongs to.
func (c *Client) explain(op string, err error) error {
	var redisErr redis.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, redis.Nil):
		return nil
	case redis.HasErrorPrefix(err, "FENCED"):
		return fencedError(err)
	case redis.HasErrorPrefix(err, "REMOVED"):
		return removedError(err.Error())
	case says(err, "OOM"):
		return fmt.Errorf("%s: redis %s is out of memory (raise maxmemory or let jobs drain): %w", op, c.address, err)
	case errors.As(err, &redisErr):
		return fmt.Errorf("%s: redis %s answered: %w", op, c.address, err)
	}
	return fmt.Errorf("%s: redis %s: %w", op, c.address, err)
}
