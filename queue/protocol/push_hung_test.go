package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestPushEndsWithItsContext freezes Redis. A push returns when its context ends, and its error says that the outcome
// is unknown.
func TestPushEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := (&backend{url: server.URL()}).open(t) // its timeout is a minute
	q := newQueue(t, c, 4)
	sent := make(scriptsSent, 100)
	c.DB().ForTests().AddHook(sent)
	server.Pause()
	defer server.Resume()
	for _, n := range []int{1, FewJobs, 5000} {
		jobs := make([]lowkiq.Push, n)
		for i := range jobs {
			jobs[i] = job(fmt.Sprint("id", i), "1")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-sent
			cancel()
		}()
		results, err := q.Push(ctx, jobs...) // for ever, if it does not end with ctx
		if !errors.Is(err, context.Canceled) || !strings.Contains(fmt.Sprint(err), "unknown whether the job is stored") {
			t.Errorf("%d jobs: got %v, want that the outcome is unknown", n, err)
		}
		if len(results) != n || results[n-1].Err == nil {
			t.Errorf("%d jobs: got %d answers, want an error for each", n, len(results))
		}
	}
}

// scriptsSent receives a value for each script, or pipeline of scripts, that go-redis is about to send.
type scriptsSent chan struct{}

func (s scriptsSent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s scriptsSent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s scriptsSent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.note(cmds[0])
		return next(ctx, cmds)
	}
}

func (s scriptsSent) note(cmd redis.Cmder) {
	if cmd.Name() == "evalsha" {
		s <- struct{}{}
	}
}
