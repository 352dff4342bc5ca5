//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/history"
	"github.com/lowkiq/lowkiq/queue"
)

// Negative tests of the judge: fencing is broken on purpose, with real processes and a
// real Redis, and the checker must object.

// steal takes the only shard away from a living owner, which no node does, and leaves
// it to whoever comes.
func (r *rig) steal() {
	r.t.Helper()
	shard := r.queue.Shard(0)
	owner, err := shard.Owner(r.t.Context())
	if err != nil || owner.Instance == "" {
		r.t.Fatalf("got owner %v, %v, want one to steal from", owner, err)
	}
	claim, err := shard.Claim(r.t.Context(), "thief/0.1", queue.Seize, owner)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := claim.Release(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) objects(want ...history.Kind) {
	r.t.Helper()
	v := r.judge(history.Config{ShardConcurrency: 1, MaxDuplicates: -1, MaxUncaused: -1}, r.history)
	if v.OK() {
		r.t.Errorf("got a good verdict, want objections:\n%s", v.Words())
	}
	for _, kind := range want {
		if v.Counts[kind] == 0 {
			r.t.Errorf("got no fault %q, want one:\n%s", kind, v.Words())
		}
	}
}

// A handler runs on while another node has its id, because the claim was stolen.
func TestCheckerSeesAnOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	a := r.start(settings{Name: "a", Handler: "gate"})
	r.push(plainJob("contested"))
	r.works(a)
	b := r.start(settings{Name: "b"})
	r.leased(b, 1)
	r.steal()
	r.works(b)
	r.drained()
	if _, err := io.WriteString(a.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	a.terminate(patience)
	b.terminate(patience)
	r.objects(history.Overlap)
}

// A worker of its own making works on what it popped, whatever became of its claim.
func TestCheckerSeesAStaleFence(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.push(plainJobs("job", 10)...)
	rogue := r.launch("rogue", settings{Name: "rogue", Redis: r.redis.URL(), Cluster: r.cluster, History: r.history})
	r.works(rogue)
	b := r.start(settings{Name: "b"})
	r.leased(b, 1)
	r.steal()
	r.drained()
	if _, err := io.WriteString(rogue.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	if got := rogue.exits(patience); got != "exit status 0" {
		t.Fatalf("rogue: got %s, want exit status 0", got)
	}
	b.terminate(patience)
	r.objects(history.StaleFence)
	if v := r.judge(history.Config{MaxDuplicates: -1}, r.history); v.Counts[history.Repeated] == 0 {
		t.Errorf("got no objection to duplicates without a death, want one:\n%s", v.Words())
	}
}

// goRogue is a worker that pops ten jobs and handles one; when a line comes on stdin it
// handles the others without a look at lease or claim.
func goRogue() error {
	s, writer, err := told()
	if err != nil {
		return err
	}
	defer writer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	batches, err := popped(ctx, s)
	if err != nil {
		return err
	}
	handler := history.Wrap(writer, lowkiq.HandlerFunc(func(context.Context, *lowkiq.Batch) error { return nil }))
	for i, batch := range batches {
		if i == 1 {
			fmt.Printf("first %d\n", history.Now())
			if err := gate(ctx, nil); err != nil {
				return err
			}
		}
		if err := handler.Handle(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// popped claims the only shard and pops ten jobs.
func popped(ctx context.Context, s settings) ([]*lowkiq.Batch, error) {
	client, err := queue.Open(queue.Config{Redis: s.Redis, Cluster: s.Cluster})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	q, err := client.Queue(ctx, queueName)
	if err != nil {
		return nil, err
	}
	const instance = "rogue/0.1"
	if _, err := client.TakeLease(ctx, instance, nil, []byte("{}"), time.Minute); err != nil {
		return nil, err
	}
	claim, err := q.Shard(0).Claim(ctx, instance, queue.Fresh, queue.Owner{})
	if err != nil {
		return nil, err
	}
	pop, err := claim.Pop(ctx, queue.PopRequest{IDs: 10, Bytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	var batches []*lowkiq.Batch
	for _, job := range pop.Jobs {
		batches = append(batches, &lowkiq.Batch{Shard: claim.Shard.Shard, Fence: claim.Fence, Flight: pop.Flight, Jobs: []lowkiq.Job{job}})
	}
	return batches, nil
}
