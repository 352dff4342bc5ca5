package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
)

// Redis hangs: a push returns when its context ends, and says that nobody knows what became of the
// jobs.
func TestPushEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	q := newQueue(t, (&backend{url: server.URL()}).open(t), 4) // its timeout is a minute
	server.Pause()
	defer server.Resume()
	for _, n := range []int{1, FewJobs, 5000} {
		jobs := make([]lowkiq.Push, n)
		for i := range jobs {
			jobs[i] = job(fmt.Sprint("id", i), "1")
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		began := time.Now()
		results, err := q.Push(ctx, jobs...)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%d jobs: got an answer after %s, want one when the context ends", n, took)
		}
		if !errors.Is(err, context.Canceled) || !strings.Contains(fmt.Sprint(err), "unknown whether the job is stored") {
			t.Errorf("%d jobs: got %v, want that the outcome is unknown", n, err)
		}
		if len(results) != n || results[n-1].Err == nil {
			t.Errorf("%d jobs: got %d answers, want an error for each", n, len(results))
		}
	}
}
