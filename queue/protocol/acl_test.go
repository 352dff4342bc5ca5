package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// aclRule returns the rule of docs/security.md for a user.
func aclRule(t *testing.T, user string) []string {
	t.Helper()
	return documented(t, "redis-cli ACL SETUSER "+user+" ")
}

// documented returns the words of the rule in docs/security.md that begins so.
func documented(t *testing.T, begin string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+begin)
	command, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatalf("docs/security.md has no rule that begins with %s", begin)
	}
	return strings.Fields(strings.NewReplacer("'", "", `\|`, "|", "\\\n", " ").Replace(command))
}

// ofTests returns the permissions that only tests need, to inspect Redis and to damage it.
func ofTests() []string {
	return []string{"+config|set", "+hkeys", "+hvals", "+script|flush", "+ttl", "+zincrby"}
}

// setUser creates a user of a Redis that lets everybody in, and returns its URL.
func setUser(t *testing.T, s *redistest.Server, user string, rule ...string) string {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true})
	defer admin.Close()
	args := []any{"ACL", "SETUSER", user, "reset"}
	for _, word := range rule {
		args = append(args, word)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return "redis://" + user + ":PASSWORD@" + s.Addr() + "/0"
}

// TestACL runs the suite as the user of docs/security.md.
func TestACL(t *testing.T) {
	tier.All(t)
	t.Parallel()
	rule := aclRule(t, "lowkiq")
	for _, word := range ofTests() {
		if slices.Contains(rule, word) {
			t.Errorf("%s is for the tests only, but in the rule", word)
		}
	}
	runCases(t, &backend{url: setUser(t, redistest.Start(t), "lowkiq", append(rule, ofTests()...)...), second: true, shared: true}, eachScript())
}

// TestCheckNamesMissingPermissions checks that the check at the start passes with the whole rule, and names each
// missing permission.
func TestCheckNamesMissingPermissions(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server, rule := redistest.Start(t), aclRule(t, "lowkiq")
	check := func(rule []string) error {
		c, err := Open(Config{Redis: setUser(t, server, "lowkiq", rule...), Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Check(t.Context(), false)
		return err
	}
	if err := check(rule); err != nil {
		t.Fatalf("with the whole rule: %v", err)
	}
	for i, word := range rule {
		switch {
		case strings.HasPrefix(word, "+"), strings.HasPrefix(word, "~"), strings.HasPrefix(word, "&"):
		default:
			continue
		}
		err := check(slices.Concat(rule[:i], rule[i+1:]))
		named := strings.TrimPrefix(word, "+")
		if err == nil || !strings.Contains(err.Error(), word) && !strings.Contains(err.Error(), "'"+named+"'") {
			t.Errorf("without %s: got %v, want it named", word, err)
		}
		if Transient(err) {
			t.Errorf("without %s: %v is transient, want final", word, err)
		}
	}
	if err := check([]string{"on", ">PASSWORD", "~lk:*", "&lk:*", "+@all", "-zadd", "-hget"}); err == nil || !strings.HasSuffix(err.Error(), "ACL rules: +hget +zadd") {
		t.Errorf("without two: got %v, want both named", err)
	}
}

// TestACLRuleMatchesTheSources checks that the rule has the commands that the sources use, and no others.
func TestACLRuleMatchesTheSources(t *testing.T) {
	t.Parallel()
	var granted []string
	for _, word := range aclRule(t, "lowkiq") {
		if name, ok := strings.CutPrefix(word, "+"); ok {
			granted = append(granted, name)
		}
	}
	slices.Sort(granted)
	if got, want := strings.Join(granted, " "), strings.Join(called(t), " "); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

var (
	inScript = regexp.MustCompile(`redis\.p?call\(\s*['"]([A-Za-z]+)['"]`)
	inGo     = regexp.MustCompile(`"([A-Z]+)"`)
	tried    = regexp.MustCompile(`\{'([A-Z]+)'`)
)

// called returns the commands in scripts and in Go, and those that package redisdb sends by methods of
// go-redis. A word in Go counts as a command if the check tries it.
func called(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, command := range strings.Fields("ping info eval evalsha script|load publish subscribe unsubscribe watch unwatch multi exec wait") {
		found[command] = true
	}
	check, commands := sources(t, "../../lua/permissions.lua")[0], map[string]bool{}
	for _, m := range tried.FindAllStringSubmatch(check, -1) {
		commands[m[1]] = true
	}
	for _, text := range sources(t, "../../lua/*.lua", "../../lua/lib/*.lua") {
		for _, m := range inScript.FindAllStringSubmatch(text, -1) {
			found[strings.ToLower(m[1])] = true
		}
	}
	for _, text := range sources(t, "*.go", "../*/*.go", "../../internal/store/redisdb/*.go") {
		for _, m := range inGo.FindAllStringSubmatch(text, -1) {
			if commands[m[1]] {
				found[strings.ToLower(m[1])] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func sources(t *testing.T, patterns ...string) (texts []string) {
	t.Helper()
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: got %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// TestACLOfProducers checks that a producer may push, and nothing else.
func TestACLOfProducers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	owner := newRig(t, b)
	asProducer := &backend{url: setUser(t, server, "producer", aclRule(t, "producer")...)}
	tryProducer(t, asProducer, owner)
	tryCalls(t, &backend{url: setUser(t, server, "caller", slices.Concat(aclRule(t, "producer"), callerWords(t))...)}, asProducer, owner)
}

// callerWords returns the permissions that a producer needs in addition for calls.
func callerWords(t *testing.T) []string {
	t.Helper()
	const keys = "'~lk:{*}:reply*'"
	return append(documented(t, "redis-cli ACL SETUSER producer "+keys), strings.Trim(keys, "'"))
}

// tryCalls makes calls as a producer that may, and as a producer that may not.
func tryCalls(t *testing.T, caller, producer *backend, owner *rig) {
	t.Helper()
	owner.serve()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	open := func(b *backend) *Client {
		return b.open(t, func(cfg *Config) { cfg.Cluster = owner.c.Cluster() })
	}
	c := open(caller)
	got, err := c.Call(ctx, "q", job("called", "say 1"))
	wantReply(t, "a call", got, err, lowkiq.ReplyDone, "1")
	got, err = c.Reply(ctx, "q", "called", got.Token)
	wantReply(t, "its reply, again", got, err, lowkiq.ReplyDone, "1")
	until(t, "it hears", c.RepliesConnected)
	waits := make(chan error, 1)
	ending, end := context.WithCancelCause(ctx)
	go func() { _, err := c.Call(ending, "q", job("held", "hold")); waits <- err }()
	until(t, "it has looked", func() bool { return c.ReplyChecks() > 0 })
	enough := errors.New("enough")
	end(enough)
	if err := <-waits; !errors.Is(err, enough) {
		t.Errorf("a call that may look for its reply: got %v", err)
	}
	for name, try := range map[string]func() error{
		"read a state": func() error { return c.DB().ForTests().HGet(ctx, owner.s.Keys().States, "called").Err() },
		"forge a reply": func() error {
			return c.DB().ForTests().Set(ctx, owner.s.Keys().ReplyTo(got.Token), "done\n2", time.Hour).Err()
		},
		"wait for what others are told": func() error {
			sub := c.DB().ForTests().(redis.UniversalClient).PSubscribe(ctx, "lk:*")
			defer sub.Close()
			_, err := sub.Receive(ctx)
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%s: got %v, want it not permitted", name, err)
		}
	}
	if got, err := open(producer).Call(ctx, "q", job("not permitted", "hold")); got.State != lowkiq.ReplyPending || !strings.Contains(fmt.Sprint(err), "NOPERM") {
		t.Errorf("a call of who may push alone: got %+v, %v, want it pending, and what Redis says", got, err)
	}
}

// tryProducer pushes to the owner's queue in all ways, and tries steps that a producer may not take.
func tryProducer(t *testing.T, producer *backend, owner *rig) {
	t.Helper()
	c := producer.open(t, func(cfg *Config) { cfg.Cluster = owner.c.Cluster() })
	q, err := c.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	everyKindOfPush(t, q, owner)
	coalescing(t, producer, owner)
	claim := q.Shard(0).Adopt(owner.claim.Instance, owner.claim.Fence) // as if a producer pretended to be the owner
	for name, try := range map[string]func() error{
		"pop":     func() error { _, err := claim.Pop(t.Context(), PopRequest{IDs: 1, Bytes: 1}); return err },
		"claim":   func() error { _, err := q.Shard(0).Claim(t.Context(), "m/1", Fresh, Owner{}); return err },
		"release": func() error { _, err := claim.Release(t.Context()); return err },
		"delete":  func() error { _, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, "a"); return err },
		"lease":   func() error { _, err := c.Leases().Take(t.Context(), "m/1", nil, []byte("x"), 1e9); return err },
		"leases":  func() error { _, err := c.Leases().All(t.Context()); return err },
		"keys":    func() error { return c.DB().ForTests().Keys(t.Context(), "*").Err() },
		"flush":   func() error { return c.DB().ForTests().FlushAll(t.Context()).Err() },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "can't") {
			t.Errorf("%s: got %v, want it not permitted", name, err)
		}
	}
	eq(t, "jobs afterwards", len(owner.drain()) > 0, true)
}

// everyKindOfPush goes through all branches of the scripts that push: single, in bulk, merged, scheduled,
// in flight, and to an id whose payloads spill.
func everyKindOfPush(t *testing.T, q *Queue, owner *rig) {
	t.Helper()
	push := func(jobs ...lowkiq.Push) {
		t.Helper()
		results, err := q.Push(t.Context(), jobs...)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	push(job("a", "1"))
	push(job("deleted", "1"))
	if _, err := browse.Of(owner.q).Delete(t.Context(), browse.Anywhere, "deleted"); err != nil {
		t.Fatal(err)
	}
	push(job("deleted", "1", in(1e12)))
	push(job("a", "1"))
	push(job("a", "2", score(1)))
	push(job("b", "1", in(1e12)), job("c", "1"))
	push(job("b", "2"))
	flight := owner.pop(1).Flight
	push(job("a", "3"))
	var many []lowkiq.Push
	for i := range 3000 {
		many = append(many, job("crowd", strings.Repeat("x", i%100)+string(rune('a'+i%26)), score(float64(3000-i))))
	}
	push(many...)
	push(many...)
	owner.ack(flight, "a")
}

// coalescing goes through the branches of lua/coalesce.lua. The rules are set at run time, and a new
// producer reads them.
func coalescing(t *testing.T, producer *backend, owner *rig) {
	t.Helper()
	large := func(c string) lowkiq.Push { return job("large", strings.Repeat(c, 9000)) }
	call := job("asked", "call")
	call.ReplyTo = envelope.Address("token_1", time.Minute, owner.c.DB().Keys.Replies("c"))
	for _, kind := range []string{rules.CoalesceAll, rules.CoalesceLatest, rules.CoalesceOnce} {
		set := map[string]json.RawMessage{"coalesce": json.RawMessage(`"` + kind + `"`), "debounce": json.RawMessage(`{"quiet":"1h"}`)}
		_, err := rules.In(owner.c.DB()).Change(t.Context(), owner.q.Name, rules.Change{Set: set, If: -1})
		owner.noErr(err)
		q, err := producer.open(t, func(cfg *Config) { cfg.Cluster = owner.c.Cluster() }).Queue(t.Context(), owner.q.Name)
		owner.noErr(err)
		owner.noErr(owner.c.DB().ForTests().ZAdd(t.Context(), owner.s.Keys().Since, redis.Z{Score: 1, Member: "forgotten"}).Err())
		for range 2 {
			_, err = q.Push(t.Context(), job("new "+kind, "1"), job("new "+kind, "2"), job("timed "+kind, "1", in(time.Hour)), large("a"), large("b"), call, job("asked", "1"))
			owner.noErr(err)
		}
		near(t, "put off by a producer, "+kind, owner.find("new "+kind, browse.StateScheduled).PerformAt, time.Hour)
		flight := owner.pop(1)
		for _, one := range flight.Jobs {
			_, err = q.Push(t.Context(), job(one.ID, "meanwhile"))
			owner.noErr(err)
		}
		owner.ack(flight.Flight)
		_, err = q.Push(t.Context(), job("crowd", "1"), job("crowd", "2"))
		owner.noErr(err)
	}
	_, err := rules.In(owner.c.DB()).Change(t.Context(), owner.q.Name, rules.Change{Unset: []string{"coalesce", "debounce"}, If: -1})
	owner.noErr(err)
	owner.push(job("crowd", "3"), job("afterwards", "1"))
}
