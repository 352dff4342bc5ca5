package protocol_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/lease"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// An audit that finds faults in a queue that merely moves would be of no use.

// testAuditBusy repeats an audit while everything happens to the queue. It must find no fault.
func testAuditBusy(t *testing.T, b *backend) {
	if b.mini {
		return // it is too slow to be busy
	}
	c := b.open(t, func(cfg *Config) { cfg.PoolSize = 40 })
	q := newQueue(t, c, 2)
	for i := range 3000 {
		if _, err := q.Push(t.Context(), job(fmt.Sprint("backlog", i), "x")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { busyOwner(ctx, t, q.Shard(i)) })
		wg.Go(func() { busyPusher(ctx, q) })
	}
	wg.Go(func() { busyPerson(ctx, q) })
	for audits, begun := 0, time.Now(); audits < 3 || time.Since(begun) < busyTime; audits++ {
		got, err := audit.Run(t.Context(), c, audit.Config{Orphans: true})
		if err != nil || len(got.Faults) > 0 {
			t.Fatalf("audit %d: %v\n%s", audits, err, linesOf(got))
		}
	}
	stop()
	wg.Wait()
	left, err := audit.Run(t.Context(), c, audit.Config{})
	if err != nil || len(left.Faults)+len(left.Unsettled) > 0 {
		t.Errorf("at the end: %v, %v\n%s", err, left.Unsettled, linesOf(left))
	}
}

const busyTime = 3 * time.Second

var busyIDs = func() (ids []string) {
	for i := range 60 {
		ids = append(ids, fmt.Sprint("hot", i))
	}
	return ids
}()

func busyID() string { return busyIDs[rand.N(len(busyIDs))] }

// busyOwner claims, pops, fails, buries, and loses the shard to a seizure, again and again.
func busyOwner(ctx context.Context, t *testing.T, s *Shard) {
	io := context.WithoutCancel(ctx) // calls end by themselves
	for n := 1; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("busy%d/%d", s.Index, n)
		if _, err := lease.In(s.DB()).Take(io, name, []byte("{}"), []byte("{}"), time.Minute); err != nil {
			return
		}
		seen, err := s.Owner(io)
		if err != nil {
			return
		}
		cause := Seize
		if seen.Instance == "" {
			cause = Fresh
		}
		claim, err := s.Claim(io, name, cause, seen)
		if err != nil {
			return
		}
		for range rand.N(30) {
			busyPop(io, t, claim)
		}
		if n%2 == 0 {
			claim.Release(io) //nolint:errcheck // another one may have it
		}
	}
}

func busyPop(ctx context.Context, t *testing.T, claim *Claim) {
	p, err := claim.Pop(ctx, PopRequest{IDs: 1 + rand.N(20), Bytes: 1 << 20, MaxCrashes: 2, Slot: rand.N(2) == 0})
	if err != nil {
		t.Error(err)
		return
	}
	for _, j := range p.Jobs {
		noted := rand.N(4) == 0
		if noted {
			note := Note{Flight: p.Flight, ID: j.ID, Note: lowkiq.Note{Progress: 0.5, State: []byte("noted")}}
			claim.Note(ctx, note) //nolint:errcheck // the audit is what is tested
		}
		switch rand.N(8) {
		case 0:
			claim.Nack(ctx, Nack{Flight: p.Flight, ID: j.ID, Kind: Retry, RetryCount: 0, Delay: time.Duration(rand.N(50)) * time.Millisecond, Error: "boom"}) //nolint:errcheck // the audit is what is tested
		case 1:
			claim.Nack(ctx, Nack{Flight: p.Flight, ID: j.ID, Kind: Return}) //nolint:errcheck // the audit is what is tested
		case 2:
			policy := []Policy{Skip, Bury, Block}[rand.N(3)]
			claim.Bury(ctx, Burial{Flight: p.Flight, ID: j.ID, Policy: policy, RetryCount: 25, Error: "exhausted"}) //nolint:errcheck // the audit is what is tested
		case 3: // stays in flight until the shard changes hands
		default:
			acks := Acks{Flight: p.Flight, IDs: []string{j.ID}}
			if noted || j.Callers > 0 || rand.N(2) == 0 {
				answer := Answer{ID: j.ID, Callers: j.Callers, HasNotes: noted, Result: []byte("r"), SetState: rand.N(2) == 0, StateFor: 20 * time.Millisecond}
				if rand.N(3) > 0 {
					answer.State = []byte("state")
				}
				acks.Answers = []Answer{answer}
			}
			claim.Ack(ctx, acks) //nolint:errcheck // the audit is what is tested
		}
	}
}

func busyPusher(ctx context.Context, q *Queue) {
	io := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		jobs := []lowkiq.Push{job(busyID(), fmt.Sprint(n)), job(fmt.Sprint("cold", rand.N(1000)), "x")}
		if n%10 == 0 {
			jobs[0].PerformAt = time.Now().Add(time.Duration(rand.N(60)) * time.Millisecond)
		}
		if n%3 == 0 {
			jobs[0].ReplyTo = envelope.Address(fmt.Sprint("t", n), time.Second, ClientOf(q).DB().Keys.Replies("busy"))
		}
		if n%50 == 0 {
			for i := range 40 {
				jobs = append(jobs, job(busyIDs[0], fmt.Sprint("crowd", i)))
			}
		}
		q.Push(io, jobs...) //nolint:errcheck // the audit is what is tested
	}
}

func busyPerson(ctx context.Context, q *Queue) {
	io, jobs := context.WithoutCancel(ctx), browse.Of(q)
	for ctx.Err() == nil {
		for _, do := range []func(context.Context, ...string) (int, error){jobs.RunNow,
			func(ctx context.Context, ids ...string) (int, error) {
				return jobs.Requeue(ctx, browse.StateMorgue, ids...)
			},
			func(ctx context.Context, ids ...string) (int, error) {
				return jobs.Requeue(ctx, browse.StateBlocked, ids...)
			},
			func(ctx context.Context, ids ...string) (int, error) {
				return jobs.Delete(ctx, browse.StateMorgue, ids...)
			}} {
			do(io, busyID(), busyID()) //nolint:errcheck // the audit is what is tested
		}
		browse.Of(q).Delete(io, browse.Anywhere, busyID()) //nolint:errcheck // the audit is what is tested
		browse.Of(q).Bury(io, browse.StateRetry, busyID()) //nolint:errcheck // the audit is what is tested
	}
}
