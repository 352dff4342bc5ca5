package protocol_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
	"github.com/lowkiq/lowkiq/queue/rules"
)

func upper(name string) Codec {
	return Codec{Name: name, Encode: func(p []byte) ([]byte, error) { return bytes.ToUpper(p), nil }, Decode: func(p []byte) ([]byte, error) { return bytes.ToLower(p), nil }}
}

// TestCodecHoldsForWhoeverPushes checks that a client without the queue's codec, or with another codec, stores nothing.
// Its error says what to do.
func TestCodecHoldsForWhoeverPushes(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	first := b.open(t)
	client := func(codec Codec) *Client {
		c := Rename(t, first, first.Cluster())
		if err := c.SetRules("q", PushRules{Codec: codec}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	good := client(upper("upper"))
	r := &rig{t: t, ctx: t.Context(), c: good, q: newQueue(t, good, 1)}
	r.s = r.q.Shard(0)
	for name, c := range map[string]struct {
		codec Codec
		says  []string
	}{
		"without": {Codec{}, []string{`codec "upper"`, "push --node URL", "SetRules"}},
		"another": {upper("lower"), []string{`codec "upper", not "lower"`}},
	} {
		other := client(c.codec)
		for door, open := range map[string]func() (*Queue, error){
			"Queue":    func() (*Queue, error) { return other.Queue(t.Context(), "q") },
			"Register": func() (*Queue, error) { return other.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 1}) },
		} {
			q, err := open()
			r.noErr(err) // to look at is allowed
			for _, n := range []int{1, FewJobs + 1} {
				jobs := make([]lowkiq.Push, n)
				for i := range jobs {
					jobs[i] = job("a", "plain")
				}
				results, err := q.Push(t.Context(), jobs...)
				if !errors.Is(err, ErrCodec) || len(results) != n || !errors.Is(results[n-1].Err, ErrCodec) || Transient(err) {
					t.Errorf("%s codec, by %s: got %v, %v, want %v for each of %d", name, door, results, err, ErrCodec, n)
				}
				for _, word := range c.says {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("%s codec: got %q, want %q in it", name, err, word)
					}
				}
			}
			if err := q.Pushable(); !errors.Is(err, ErrCodec) {
				t.Errorf("%s codec: pushable: got %v, want %v", name, err, ErrCodec)
			}
		}
		if err := other.Registry().Publish(t.Context(), "q"); !errors.Is(err, ErrCodec) {
			t.Errorf("%s codec: published: got %v, want %v", name, err, ErrCodec)
		}
	}
	stats, err := r.q.Stats(t.Context())
	r.noErr(err)
	eq(t, "jobs stored by those without the codec", stats.Jobs.Total(), 0)
	r.push(job("a", "ab"))
	eq(t, "stored", string(r.find("a", browse.StateReady).Payloads[0].Data), "AB")
}

// TestRulesArePublished checks that a queue without a codec gets the codec of the node that handles it. Programs that
// push to the queue already learn of the codec and of limits.
func TestRulesArePublished(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	r := rigOn(t, b.open(t))
	r.push(job("a", "plain"))
	node := Rename(t, r.c, r.c.Cluster())
	r.noErr(node.SetRules("q", PushRules{Codec: upper("upper"), Push: rules.Push{PayloadBytes: 4, Payloads: 2}}))
	_, err := node.Push(r.ctx, "q", job("b", "ab"))
	if !errors.Is(err, ErrCodec) || !strings.Contains(err.Error(), "Registry.Publish") {
		t.Errorf("push with a codec that the queue has not: got %v, want %v that says how it gets it", err, ErrCodec)
	}
	r.noErr(node.Registry().Publish(r.ctx, "q"))
	r.noErr(node.Registry().Publish(r.ctx, "q")) // again changes nothing
	text, err := r.c.DB().ForTests().HGet(r.ctx, r.c.DB().Keys.Queues(), "q").Result()
	r.noErr(err)
	eq(t, "entry", text, `{"shards":1,"layout":1,"codec":"upper","payload_bytes":4,"id_payloads":2}`)
	// The program that pushed before reads the registry again during its next push.
	r.q.RefreshSoon()
	for deadline := time.Now().Add(time.Minute); r.q.Pushable() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("a client that pushes has not learnt of the codec")
		}
		r.q.Push(r.ctx, job("b", "plain")) //nolint:errcheck // stored or refused: asked above
	}
	if _, err := r.q.Push(r.ctx, job("b", "plain")); !errors.Is(err, ErrCodec) {
		t.Errorf("push without the codec: got %v, want %v", err, ErrCodec)
	}
	// The registry's limits hold for all clients, and a client's own limits where they are stricter.
	push := func(rules PushRules, jobs ...lowkiq.Push) error {
		c := Rename(t, r.c, r.c.Cluster())
		rules.Codec = upper("upper")
		r.noErr(c.SetRules("q", rules))
		_, err := c.Push(r.ctx, "q", jobs...)
		return err
	}
	for name, c := range map[string]struct {
		rules PushRules
		jobs  []lowkiq.Push
		want  error
	}{
		"a long payload":                       {PushRules{}, []lowkiq.Push{job("c", "12345")}, ErrPayloadSize},
		"one that the client itself allows":    {PushRules{Push: rules.Push{PayloadBytes: 5}}, []lowkiq.Push{job("c", "12345")}, ErrPayloadSize},
		"one that the client does not allow":   {PushRules{Push: rules.Push{PayloadBytes: 3}}, []lowkiq.Push{job("c", "1234")}, ErrPayloadSize},
		"more payloads than the registry says": {PushRules{}, []lowkiq.Push{job("d", "1"), job("d", "2"), job("d", "3")}, ErrTooManyPayloads},
		"what is allowed":                      {PushRules{}, []lowkiq.Push{job("e", "1234")}, nil},
	} {
		if err := push(c.rules, c.jobs...); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	for _, bad := range []PushRules{
		{Codec: Codec{Encode: upper("").Encode}}, {Codec: Codec{Name: "no good", Encode: upper("").Encode}}, {Codec: Codec{Name: "x"}},
		{Push: rules.Push{PayloadBytes: 16<<20 + 1}}, {Push: rules.Push{Payloads: 1_000_001}}, {Push: rules.Push{IDPayload: 1<<30 + 1}}, {Push: rules.Push{Payloads: -1}},
	} {
		if err := node.SetRules("q", bad); err == nil {
			t.Errorf("rules %+v: got no error", bad)
		}
	}
}

// TestRegistryHoldsBesideDamagedRules checks that a program that pushes follows the registry even if the rules set at
// run time cannot be read.
func TestRegistryHoldsBesideDamagedRules(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for name, spoil := range map[string][]any{
		"another type": {"SET", "x"}, "no JSON": {"HSET", "q", "["}, "no value": {"HSET", "q", `{"rev":1,"set":{"max_payload_size":{},"journal":{}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rigOn(t, b.open(t))
			r.push(job("a", "plain"))
			_, err := r.c.DB().Do(r.ctx, "spoil", append([]any{spoil[0], r.c.DB().Keys.Rules()}, spoil[1:]...)...)
			r.noErr(err)
			node := Rename(t, r.c, r.c.Cluster())
			r.noErr(node.SetRules("q", PushRules{Push: rules.Push{PayloadBytes: 4}}))
			r.noErr(node.Registry().Publish(r.ctx, "q"))
			r.q.RefreshSoon()
			for deadline := time.Now().Add(time.Minute); ; {
				if _, err := r.q.Push(r.ctx, job("b", "12345")); errors.Is(err, ErrPayloadSize) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatal("a client that pushes has not learnt of the limit")
				}
			}
		})
	}
}

// TestRulesBeforeTheFirstPush checks that a program that pushes once follows limits set at run time as well. It reads
// them before its first push.
func TestRulesBeforeTheFirstPush(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	r := rigOn(t, b.open(t))
	set := func(kind string) {
		change := map[string]json.RawMessage{"max_payload_size": json.RawMessage(`"1KiB"`), "coalesce": json.RawMessage(kind)}
		_, err := rules.In(r.c.DB()).Change(r.ctx, "q", rules.Change{Set: change, If: -1})
		r.noErr(err)
	}
	set(`"once"`)
	for door, open := range map[string]func(*Client) (*Queue, error){
		"Queue":    func(c *Client) (*Queue, error) { return c.Queue(r.ctx, "q") },
		"Register": func(c *Client) (*Queue, error) { return c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1}) },
	} {
		q, err := open(Rename(t, r.c, r.c.Cluster()))
		r.noErr(err)
		if _, err := q.Push(r.ctx, job("large", strings.Repeat("x", 1025))); !errors.Is(err, ErrPayloadSize) {
			t.Errorf("opened by %s: got %v, want %v by the limit set at run time", door, err, ErrPayloadSize)
		}
		results, err := q.Push(r.ctx, job(door, "1"), job(door, "2"))
		r.noErr(err)
		eq(t, "opened by "+door+": merged by the rule set at run time", results[1].Merged, true)
		// So does a program that has not pushed for long.
		set(`"all"`)
		q.MakeStale()
		results, err = q.Push(r.ctx, job(door, "3"))
		r.noErr(err)
		eq(t, "opened by "+door+" long since: merged by the rule before", results[0].Merged, false)
		set(`"once"`)
	}
}

// TestNeedsWaitForLiveProcesses checks that nothing is written that a live process cannot read. An entry gets no need
// while a lease does not list it.
func TestNeedsWaitForLiveProcesses(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	r := rigOn(t, b.open(t))
	take := func(name string, features ...string) *lease.Lease {
		says, err := json.Marshal(map[string]any{"node": name, "features": features})
		r.noErr(err)
		held, err := r.c.Leases().Take(r.ctx, name, []byte("{}"), says, time.Minute)
		r.noErr(err)
		return held
	}
	need := func() error {
		return r.c.RewriteEntry(r.ctx, "q", func(e *RegistryEntry) error { e.Needs = append(e.Needs, "fmt2"); return nil })
	}
	take("new/1", "fmt2", "fmt3")
	old := take("old/1")
	before := r.dump()
	if err := need(); err == nil || !strings.Contains(err.Error(), "old/1 does not read fmt2") {
		t.Errorf("got %v, want an error that names who does not read it", err)
	}
	eq(t, "redis after a refusal", r.dump(), before)
	r.noErr(old.Drop(context.Background()))
	r.noErr(need())
	if err := r.q.Pushable(); err == nil || !strings.Contains(err.Error(), "needs fmt2") {
		t.Errorf("a client of this release: got %v, want that it does not read fmt2", err)
	}
	if _, err := r.q.Push(r.ctx, job("a", "1")); err == nil || !strings.Contains(err.Error(), "needs fmt2") {
		t.Errorf("its push: got %v, want that it does not read fmt2", err)
	}
}
