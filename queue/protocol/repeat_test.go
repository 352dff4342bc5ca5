package protocol_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
)

// Requests that come twice. In a Redis Cluster go-redis repeats a request without an answer, whatever
// MaxRetries says. The model (property_test.go) holds for queues whose scripts all come twice.

// twice sends each script a second time if the context comes from repeated. The first answer counts.
type twice struct{}

type twiceKey struct{}

func repeated(ctx context.Context) context.Context { return context.WithValue(ctx, twiceKey{}, true) }

// again returns the same script call, nil for a command that failed or is no script. A script that Redis did not know is
// not sent again, because another client may have loaded it meanwhile, and the answer would be lost.
func again(ctx context.Context, cmd redis.Cmder, err error) redis.Cmder {
	if ctx.Value(twiceKey{}) == nil || err != nil || !strings.HasPrefix(cmd.Name(), "eval") {
		return nil
	}
	return redis.NewCmd(ctx, cmd.Args()...)
}

func (twice) DialHook(next redis.DialHook) redis.DialHook { return next }

func (twice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if repeat := again(ctx, cmd, err); repeat != nil {
			next(ctx, repeat) //nolint:errcheck // a release that comes twice is refused
		}
		return err
	}
}

func (twice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		var repeats []redis.Cmder
		for _, cmd := range cmds {
			if repeat := again(ctx, cmd, cmd.Err()); repeat != nil {
				repeats = append(repeats, repeat)
			}
		}
		if len(repeats) > 0 {
			next(ctx, repeats) //nolint:errcheck // as above
		}
		return err
	}
}

var repeatTests = []testCase{
	{"Repeat_ClusterKeys", testRepeatClusterKeys},
	{"Repeat_SkipsOnePayload", testRepeatSkip},
	{"Repeat_CrashesCountOnce", testRepeatCrashes},
}

// testRepeatClusterKeys repeats scripts on keys of the cluster.
func testRepeatClusterKeys(t *testing.T, b *backend) {
	c := b.open(t)
	c.DB().ForTests().AddHook(twice{})
	ctx := repeated(t.Context())
	swap := func(old, next string, want bool) {
		t.Helper()
		got, err := c.Leases().Record().CompareAndSet(ctx, []byte(old), []byte(next))
		eq(t, fmt.Sprintf("record %q to %q", old, next), fmt.Sprint(got, err), fmt.Sprint(want, nil))
	}
	swap("", "one", true)
	swap("one", "two", true)
	swap("one", "three", false)
	marked, err := c.Leases().Mark(time.Hour).Renew(ctx, []byte("two"), []byte("mark"))
	eq(t, "mark", fmt.Sprint(marked, err), "true <nil>")
	swap("two", "", true)
	if _, err := c.Leases().Take(ctx, "n/1", []byte("id"), []byte("v"), time.Hour); err != nil {
		t.Error(err)
	}
	if _, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 1}); err != nil {
		t.Fatal(err)
	}
	for _, paused := range []bool{true, false} {
		err := map[bool]func(context.Context, string) error{true: c.Registry().Pause, false: c.Registry().Resume}[paused](ctx, "q")
		entries, err2 := c.Registry().Entries(ctx)
		eq(t, "paused", fmt.Sprint(entries["q"].Paused, err, err2), fmt.Sprint(paused, nil, nil))
	}
}

// testRepeatSkip checks that a repeated request buries one payload, and none of an id whose turn comes anyhow.
func testRepeatSkip(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.c.DB().ForTests().AddHook(twice{})
	r.ctx = repeated(r.ctx)
	r.push(job("a", "1"), job("a", "2"), job("a", "3"))
	_, flight := r.popOne("a")
	r.bury(flight, "a", Block)
	n, err := browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, "a")
	eq(t, "skipped", fmt.Sprint(n, err), "1 <nil>")
	eq(t, "left", fmt.Sprintf("%s", dataOf(r.find("a", browse.StateReady).Payloads)), "[2 3]")
	n, err = browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, "a")
	eq(t, "skipped of a job that is due", fmt.Sprint(n, err), "0 <nil>")
	a, flight := r.popOne("a")
	r.push(job("a", "4"), job("a", "5"))
	n, err = browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, "a")
	eq(t, "skipped of a flight", fmt.Sprint(n, err), "0 <nil>")
	eq(t, "popped", show(a), "a[2 3]")
	r.ack(flight, "a")
	eq(t, "then", show(r.drain()...), "a[4 5]")
}

// testRepeatCrashes checks that seizures that are each sent twice count one crash each.
func testRepeatCrashes(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.c.DB().ForTests().AddHook(twice{})
	r.ctx = repeated(r.ctx)
	r.push(job("a", "1"))
	for want := range 4 {
		p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, Slot: true})
		r.noErr(err)
		eq(t, "popped", show(p.Jobs...), "a[1]")
		r.own(Seize)
		_, crashes := r.quarantine()
		eq(t, "crashes", crashes["a"], want)
	}
}
