package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
)

// testMiddlewares checks that middlewares see a push from outside in, before it is encoded. A payload that cannot be
// encoded refuses its job and the later jobs of its id.
func testMiddlewares(t *testing.T, b *backend) {
	var seen []string
	note := func(name string) Middleware {
		return func(queue string, next Pusher) Pusher {
			return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
				seen = append(seen, name+" "+string(jobs[0].Payload))
				return next(ctx, jobs)
			}
		}
	}
	odd := errors.New("odd length")
	r := rigOn(t, b.open(t, func(cfg *Config) { cfg.Middlewares = []Middleware{note("client")} }))
	r.noErr(r.c.SetRules("q", PushRules{
		Middlewares: []Middleware{note("outer"), note("inner")},
		Codec: Codec{Name: "upper", Encode: func(p []byte) ([]byte, error) {
			if len(p)%2 == 1 {
				return nil, odd
			}
			return bytes.ToUpper(p), nil
		}},
	}))
	r.noErr(r.c.Registry().Publish(r.ctx, "q"))
	results, err := r.q.Push(r.ctx, job("a", "ab"), job("b", "abc"), job("c", "cd"), job("a", "ab"), job("b", "ab"))
	if !errors.Is(err, odd) || !errors.Is(results[1].Err, odd) || results[0].Err != nil || results[2].Err != nil || !errors.Is(results[4].Err, ErrUnsent) || !errors.Is(results[4].Err, odd) {
		t.Fatalf("push: got %v, %v, want the second one refused, and what follows it of its id", results, err)
	}
	eq(t, "merged", results[3].Merged, true)
	eq(t, "seen", seen, []string{"client ab", "outer ab", "inner ab"})
	r.own(Fresh)
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1 << 20})
	r.noErr(err)
	eq(t, "stored", show(p.Jobs...), "a[AB] c[CD]")
}
