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
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A call pushes a job and waits for the answer of its handler.
const (
	callShards = 16
	callers    = 1000        // concurrent callers in a process
	callsTime  = time.Second // how long they call
)

// measureCalls measures a single caller on an idle node, then many callers at once, at batch 1. The handler answers at once.
// Each id is called once.
func (b *bench) measureCalls(ctx context.Context, _ *Server, note func(string, float64)) (err error) {
	client, _, err := b.openProducer(ctx, callShards)
	if err != nil {
		return err
	}
	defer client.Close()
	w, err := b.startWorker(ctx, node.QueueConfig{Shards: callShards}, func(batch *lowkiq.Batch) error {
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
		if err := callOnce(ctx, client, ids.Add(1)); err != nil {
			return err
		}
		if i >= warmUp {
			took = append(took, toMilliseconds(time.Since(begun)))
		}
		if err := sleep.For(ctx, ackPause); err != nil {
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
				if err := callOnce(ctx, client, ids.Add(1)); err != nil {
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

func callOnce(ctx context.Context, client *protocol.Client, n int64) error {
	reply, err := client.Call(ctx, queueName, lowkiq.Push{ID: fmt.Sprintf("job-%d", n), Payload: []byte(payload)})
	if err == nil && string(reply.Result) != payload {
		err = fmt.Errorf("got the reply %+v, want the answer of the handler", reply)
	}
	return err
}
