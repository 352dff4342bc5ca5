//go:build linux

package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/lab/demodata"
	"github.com/lowkiq/lowkiq/lab/judge"
)

// servesAgain is the promise for a crashed process that is restarted on its host, from
// its start to its first handled job (docs/design.md, "Claim"). Without the proof of the
// death it would take a ttl at least, which calmTTL makes longer than this and slack.
const servesAgain = 2 * time.Second

// randomly returns a source whose seed the log tells.
func randomly(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestKillNine kills the worker at random instants while the real event stream is pushed and handled. Every payload is
// handled, in order, and no id runs twice at once (I1, I2, I3). Each restarted process serves within 2 s (I4).
func TestKillNine(t *testing.T) {
	t.Parallel()
	kills := tier.Of(0, 6, 20)
	random := randomly(t)
	r := newRig(t, 16)
	feed := r.feed(realEvents(demodata.Count))
	s := settings{TTL: calmTTL, MaxCrashes: -1, Work: time.Second} // the first death cuts a call off
	early := 0
	var slowest time.Duration
	for i := range kills {
		feed.share(2*i+1, 2*kills+1)
		if random.IntN(4) == 0 { // one more death, on the way up
			early++
			w := r.start(s)
			<-time.After(upTo(random, 200*time.Millisecond))
			r.kill(w)
		}
		feed.share(2*i+2, 2*kills+1)
		w := r.start(s)
		slowest = max(slowest, r.works(w)-w.started)
		<-time.After(upTo(random, 250*time.Millisecond)) // the random instant
		r.kill(w)
		s.Work = 2 * time.Millisecond
	}
	feed.share(1, 1)
	w := r.start(s)
	slowest = max(slowest, r.works(w)-w.started)
	feed.finish()
	r.drained()
	w.terminate(patience)
	t.Logf("slowest restart: %s; %d deaths at the start besides", slowest, early)
	if limit := servesAgain + slack; slowest > limit {
		t.Errorf("got %s from a process's start to its first job, want at most %s", slowest, limit)
	}
	v := r.verdict(judge.Config{ShardConcurrency: 1, MaxDuplicates: -1})
	if v.Deaths != kills+early || v.Interrupted == 0 {
		t.Errorf("got %d deaths that cut off %d calls, want %d and some: the test would show little", v.Deaths, v.Interrupted, kills+early)
	}
	r.noneFailed()
}

// upTo is a random time.
func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}
