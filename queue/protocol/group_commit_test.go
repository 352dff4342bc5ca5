package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"
)

var commitTests = []testCase{
	{"PushEach", testPushEach},
	{"Middlewares", testMiddlewares},
	{"Commit_EachAcknowledgedPushIsStoredOnce", testCommitMany},
	{"Commit_RefusesOnlyTheBadJob", testCommitBadJob},
	{"Commit_CancelledFirstCallerFailsNoOther", testCommitCancelledLeader},
	{"Commit_CancelledBefore", testCommitCancelledBefore},
}

func testCommitMany(t *testing.T, b *backend) {
	r := newRig(t, b)
	workers, each := 50, 20
	if b.mini {
		workers, each = 20, 5
	}
	var mu sync.Mutex
	acknowledged, unknown := map[string]bool{}, map[string]bool{}
	var work sync.WaitGroup
	for w := range workers {
		work.Go(func() {
			for i := range each {
				id := fmt.Sprintf("w%d-%d", w, i)
				ctx, cancel := context.WithCancel(r.ctx)
				if i%3 == 0 { // some give up, before, meanwhile or after
					timer := time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
					defer timer.Stop()
				}
				_, err := r.q.Push(ctx, job(id, "1"))
				cancel()
				mu.Lock()
				if err == nil {
					acknowledged[id] = true
				} else if unknown[id] = true; !errors.Is(err, context.Canceled) {
					t.Errorf("push: got %v, want nil or %v", err, context.Canceled)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	stored := map[string]int{}
	for _, j := range r.drain() {
		stored[j.ID] += len(j.Payloads)
		if !acknowledged[j.ID] && !unknown[j.ID] {
			t.Errorf("%s: stored, nobody pushed it", j.ID)
		}
	}
	for id := range acknowledged {
		eq(t, "payloads stored of "+id, stored[id], 1)
	}
	if len(acknowledged) < workers*each/2 {
		t.Errorf("acknowledged: got %d of %d, want most", len(acknowledged), workers*each)
	}
	for deadline := time.Now().Add(patience); ; {
		active, waiting := r.q.CountCommits() // a commit ends after its callers have been answered
		if active == 0 && waiting == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("at the end: %d commits under way, %d callers waiting, want none", active, waiting)
		}
		time.Sleep(time.Millisecond)
	}
}

func queued(q *Queue) int {
	_, waiting := q.CountCommits()
	return waiting
}

func testCommitBadJob(t *testing.T, b *backend) {
	r := newRig(t, b)
	release := r.q.HoldCommits()
	errs := map[string]error{}
	var mu sync.Mutex
	var work sync.WaitGroup
	for _, id := range []string{"a", "", "b"} {
		work.Go(func() {
			_, err := r.q.Push(r.ctx, job(id, "1"))
			mu.Lock()
			defer mu.Unlock()
			errs[id] = err
		})
	}
	until(t, "three wait", func() bool { return queued(r.q) == 3 })
	release()
	work.Wait()
	if errs["a"] != nil || errs["b"] != nil || !errors.Is(errs[""], ErrID) {
		t.Errorf("got %v, want one refused", errs)
	}
	eq(t, "stored", len(r.drain()), 2)
}

func testCommitCancelledLeader(t *testing.T, b *backend) {
	r := newRig(t, b)
	release := r.q.HoldCommits()
	first, cancel := context.WithCancel(r.ctx)
	var work sync.WaitGroup
	push := func(ctx context.Context, id string, want error) {
		before := queued(r.q)
		work.Go(func() {
			if _, err := r.q.Push(ctx, job(id, "1")); err != nil && !errors.Is(err, want) {
				t.Errorf("push %s: got %v, want nil or %v", id, err, want)
			}
		})
		until(t, id+" waits", func() bool { return queued(r.q) == before+1 })
	}
	// Whether the first push is withdrawn or is in a commit already, the others succeed.
	push(first, "first", context.Canceled)
	for i := range 10 {
		push(r.ctx, fmt.Sprint("other", i), nil)
	}
	cancel()
	release()
	work.Wait()
	n := len(r.drain())
	if n != 10 && n != 11 {
		t.Errorf("stored: got %d, want the ten others, with or without the first", n)
	}
}

func testCommitCancelledBefore(t *testing.T, b *backend) {
	r := newRig(t, b)
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.q.Push(ctx, job("a", "1")); !errors.Is(err, context.Canceled) {
		t.Errorf("push: got %v, want %v", err, context.Canceled)
	}
	r.gone("a")
	results, err := r.q.Push(r.ctx)
	r.noErr(err)
	eq(t, "results of an empty push", len(results), 0)
}
