package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/pause"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
)

// Calls: push a job and wait for what its handler answers.
const (
	callShards = 16
	callers    = 1000        // at once, in one process
	callsTime  = time.Second // of them
)

// calls measures a caller by itself on an idle node, then many at once, at batch 1 with a handler that
// answers without doing anything. Each id is called once.
func (b *bench) calls(ctx context.Context, _ *Server, note func(string, float64)) (err error) {
	client, _, err := b.producer(ctx, callShards)
	if err != nil {
		return err
	}
	defer client.Close()
	w, err := b.work(ctx, node.QueueConfig{Shards: callShards}, func(batch *lowkiq.Batch) error {
		for i := range batch.Jobs {
			batch.Answer(batch.Jobs[i].ID).Result([]byte(payload))
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("after 2 minutes"))
	defer cancel()
	var ids atomic.Int64
	var took []float64
	for i := range warmUp + b.cfg.samples {
		begun := time.Now()
		if err := call(ctx, client, ids.Add(1)); err != nil {
			return err
		}
		if i >= warmUp {
			took = append(took, ms(time.Since(begun)))
		}
		if err := pause.For(ctx, ackPause); err != nil {
			return err
		}
	}
	slices.Sort(took)
	note("call_p50_ms", took[len(took)/2])
	n := ids.Load()
	begun := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range callers {
		group.Go(func() error {
			for time.Since(begun) < callsTime {
				if err := call(ctx, client, ids.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	note("calls_per_s", float64(ids.Load()-n)/time.Since(begun).Seconds())
	return nil
}

func call(ctx context.Context, client *queue.Client, n int64) error {
	reply, err := client.Call(ctx, queueName, lowkiq.Push{ID: fmt.Sprintf("job-%d", n), Payload: []byte(payload)})
	if err == nil && string(reply.Result) != payload {
		err = fmt.Errorf("got the reply %+v, want what the handler answered", reply)
	}
	return err
}
