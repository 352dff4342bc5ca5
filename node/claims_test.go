package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/queue"
)

// The first plan of a group needs all claims. Turns that are too short for all of them, as with a slow Redis, come to an
// end together.
func TestClaimsOverManyTurns(t *testing.T) {
	t.Parallel()
	const shards = 20_000
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	p := open(t, proxy.URL(), shards)
	if _, err := p.Shard(shards-1).Claim(t.Context(), "n7/B.1", queue.Fresh, queue.Owner{}); err != nil {
		t.Fatal(err)
	}
	c := &cluster{node: &Node{cfg: Config{TTL: calmTTL}, leases: p.client}}
	proxy.Delay(50 * time.Millisecond)
	turns := 0
	await(t, "all claims read", func() bool {
		turns++
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		all, err := c.Claims(ctx)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) && !queue.Unreachable(err) {
				t.Fatal(err)
			}
			return false
		}
		for i, want := range []string{shards - 1: "n7"} {
			if got := all.Owner(lowkiq.Shard{Queue: "orders", Index: i}); got != want {
				t.Fatalf("shard %d belongs to %q, want %q", i, got, want)
			}
		}
		return true
	})
	if turns < 2 {
		t.Errorf("read in %d turn, want one that is too short before", turns)
	}
}
