//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

// TestSIGTERM sends SIGTERM to a worker under load, with a function and with an endpoint as its handler. The worker
// exits with 0 at once. In-flight payloads are finished or put back, nothing is handled twice, no retry is spent, and
// the next worker goes on.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	random := randomly(t)
	r := newRig(t, 16)
	const rounds = 6
	feed := r.feed(realEvents(4000))
	function := settings{TTL: calmTTL, Work: 5 * time.Millisecond}
	endpoint := settings{TTL: calmTTL, Handler: "http", URL: r.endpoint()}
	var slowestEnd, slowestStart time.Duration
	for i := range rounds {
		feed.share(i+1, rounds)
		w := r.start([]settings{function, endpoint}[i%2])
		slowestStart = max(slowestStart, r.works(w)-w.started)
		<-time.After(upTo(random, 200*time.Millisecond))
		slowestEnd = max(slowestEnd, w.terminate(patience))
	}
	w := r.start(function)
	r.leased(w, 1)
	feed.finish()
	r.drained()
	w.terminate(patience)
	t.Logf("slowest end %s, slowest start %s", slowestEnd, slowestStart)
	if limit := servesAgain + slack; slowestEnd > limit || slowestStart > limit {
		t.Errorf("got %s from SIGTERM to the exit and %s from a start to the first job, want at most %s each", slowestEnd, slowestStart, limit)
	}
	r.verdict(judge.Config{ShardConcurrency: 1})
	r.noneFailed()
}
