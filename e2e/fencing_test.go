//go:build linux

package e2e

import (
	"io"
	"testing"

	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// TestJudgeSeesAnOverlap is a negative test of the judge, with real processes and a real Redis:
// a claim is stolen from a living owner, which no node does, and while its handler runs on
// another node has the id.
func TestJudgeSeesAnOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	a := r.start(settings{Name: "a", TTL: 2 * ttl, Handler: "gate"})
	r.push(plainJob("contested"))
	r.works(a)
	b := r.start(settings{Name: "b", TTL: 2 * ttl})
	r.leased(b, 1)
	shard := r.queue.Shard(0)
	owner, err := shard.Owner(t.Context())
	if err != nil || owner.Instance == "" {
		t.Fatalf("got owner %v, %v, want one to steal from", owner, err)
	}
	claim, err := shard.Claim(t.Context(), "thief/0.1", protocol.Seize, owner)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.works(b)
	r.drained()
	if _, err := io.WriteString(a.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	a.terminate(patience)
	b.terminate(patience)
	v := r.judge(judge.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1}, r.history)
	if v.OK() || v.Counts[judge.Overlap] == 0 {
		t.Errorf("got no fault %q, want one:\n%s", judge.Overlap, v.Words())
	}
}
