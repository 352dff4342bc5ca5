package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestShared checks that a shard that is served by the script of many shards cannot tell. The usual scripts serve the
// shards that this script leaves.
func TestShared(t *testing.T) {
	t.Parallel()
	cases := slices.Concat(protocolTests, ruleTests, quarantineTests, lateTests, staleTests, deletedTests, pushAgainTests, repeatTests)
	runCases(t, &backend{url: redistest.Start(t).URL(), shared: true}, tier.Of(protocolTests, protocolTests, except(cases, long)))
}

// many is a queue of many shards, claimed by one instance.
type many struct {
	*rig
	claims []*Claim
}

func newMany(t *testing.T, c *Client, shards int) *many {
	c.SetSharePatience(time.Hour) // tests hold shared requests
	m := &many{rig: &rig{t: t, ctx: t.Context(), c: c, q: newQueue(t, c, shards)}}
	for i := range shards {
		claim, err := m.q.Shard(i).Claim(m.ctx, "n/1", Fresh, Owner{})
		m.noErr(err)
		m.claims = append(m.claims, claim)
	}
	return m
}

// popAll pops from all shards in shared requests. All pops wait before the first request is sent.
func (m *many) popAll(acks map[int][]Acks) ([]Popped, []error) {
	m.t.Helper()
	release := m.q.Shard(0).HoldShared(m.ctx)
	popped, errs := make([]Popped, len(m.claims)), make([]error, len(m.claims))
	var all sync.WaitGroup
	var alone atomic.Int64 // a pop of a shard with much to do waits for no other
	for i, claim := range m.claims {
		all.Go(func() {
			popped[i], errs[i] = claim.Pop(m.ctx, PopRequest{IDs: 100, Bytes: 1 << 20, MaxCrashes: 3, Acks: acks[i]})
			alone.Add(1)
		})
	}
	until(m.t, "all pops wait", func() bool { return m.q.Shard(0).WaitingShared(m.ctx)+int(alone.Load()) == len(m.claims) })
	release()
	all.Wait()
	return popped, errs
}

func (m *many) popAllWell(acks map[int][]Acks) []Popped {
	m.t.Helper()
	popped, errs := m.popAll(acks)
	m.noErr(errors.Join(errs...))
	return popped
}

// TestPopsShareAScript pops and acks many shards together. Each gets its own jobs, in its order.
func TestPopsShareAScript(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 50)
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = fmt.Sprint("id", i)
		m.push(job(ids[i], "1"))
	}
	before := m.calls()["evalsha"]
	popped := m.popAllWell(nil)
	if n := m.calls()["evalsha"] - before; n > 3 {
		t.Errorf("pops of 50 shards: got %d scripts, want one or two", n)
	}
	var got []string
	acks := map[int][]Acks{}
	for i, p := range popped {
		eq(t, "flight", fmt.Sprint(p.Flight, p.Open, p.Ready), fmt.Sprint(1, open(p.Jobs, 1), 0))
		shard, last := m.q.Shard(i), -1
		for _, j := range p.Jobs {
			if lowkiq.ShardOf(j.ID, 50) != i {
				t.Errorf("%s came from %s", j.ID, shard)
			}
			at := slices.Index(ids, j.ID)
			if at < last {
				t.Errorf("%s: %s comes after %s", shard, j.ID, ids[last])
			}
			last = at
			got = append(got, j.ID)
		}
		switch {
		case len(p.Jobs) == 0:
		case i%2 == 0:
			acks[i] = []Acks{{Flight: p.Flight, Rest: true}}
		default:
			acks[i] = []Acks{{Flight: p.Flight, IDs: []string{p.Jobs[len(p.Jobs)-1].ID}}}
		}
	}
	slices.Sort(got)
	eq(t, "popped", got, slices.Sorted(slices.Values(ids)))
	for i, p := range m.popAllWell(acks) {
		left := popped[i].Jobs
		if i%2 == 0 {
			left = nil
		} else if len(left) > 0 {
			left = left[:len(left)-1]
		}
		eq(t, "open after the acks", fmt.Sprint(p.Open), fmt.Sprint(open(left, 1)))
		state, err := readState(m.q.Shard(i), m.ctx)
		m.noErr(err)
		eq(t, "left", len(state.jobs), len(left))
	}
}

// TestAcksShareAScript checks that acks of many shards share a script, and that each shard gets its own count.
func TestAcksShareAScript(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 30)
	for i := range 90 {
		m.push(job(fmt.Sprint("id", i), "1"))
	}
	popped := m.popAllWell(nil)
	m.push(job(popped[0].Jobs[0].ID, "2")) // parked
	before := m.calls()["evalsha"]
	release := m.q.Shard(0).HoldShared(m.ctx)
	var all sync.WaitGroup
	for i, p := range popped {
		all.Go(func() {
			n, err := m.claims[i].Ack(m.ctx, Acks{Flight: p.Flight, Rest: true})
			if err != nil || n != len(p.Jobs) {
				t.Errorf("shard %d: got %d acknowledged, %v, want %d", i, n, err, len(p.Jobs))
			}
		})
	}
	until(t, "all acks wait", func() bool { return m.q.Shard(0).WaitingShared(m.ctx) == len(popped) })
	release()
	all.Wait()
	if n := m.calls()["evalsha"] - before; n > 2 {
		t.Errorf("acks of 30 shards: got %d scripts, want one or two", n)
	}
	n, err := m.claims[0].Ack(m.ctx, Acks{Flight: popped[0].Flight, Rest: true}) // alone, and again
	eq(t, "acknowledged again", fmt.Sprint(n, err), "0 <nil>")
	stats, err := m.q.Stats(m.ctx)
	m.noErr(err)
	eq(t, "processed and ready", fmt.Sprint(stats.Processed, stats.Jobs.Ready), "90 1")
}

func open(jobs []lowkiq.Job, flight int64) []int64 {
	if len(jobs) == 0 {
		return nil
	}
	return []int64{flight}
}

// TestPopsShareNoFault checks that a shard with a lost claim, or with damaged keys, does not affect others.
func TestPopsShareNoFault(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 8)
	for i := range 80 {
		m.push(job(fmt.Sprint("id", i), "1"))
	}
	taken, err := m.q.Shard(2).Claim(m.ctx, "n/2", Seize, Owner{Instance: "n/1", Fence: m.claims[2].Fence})
	m.noErr(err)
	db := m.c.DB().ForTests()
	m.noErr(db.Rename(m.ctx, m.q.Shard(5).Keys().Ready, "elsewhere").Err())
	m.noErr(db.Set(m.ctx, m.q.Shard(5).Keys().Ready, "no list", 0).Err())
	popped, errs := m.popAll(nil)
	for i, p := range popped {
		switch {
		case i == 2:
			if refused := (*FencedError)(nil); !errors.As(errs[i], &refused) || refused.Owner.Fence != taken.Fence {
				t.Errorf("the shard that is another's: got %v, want who has it", errs[i])
			}
		case i == 5:
			if errs[i] == nil || !strings.Contains(errs[i].Error(), "WRONGTYPE") || Transient(errs[i]) {
				t.Errorf("the damaged shard: got %v, want its fault", errs[i])
			}
		case errs[i] != nil || len(p.Jobs) == 0:
			t.Errorf("shard %d: got %d jobs, %v, want some", i, len(p.Jobs), errs[i])
		}
	}
}

// TestSharedPopsAreBounded checks that the cost of a script stays bounded when many shards with many jobs share a
// request.
func TestSharedPopsAreBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ jobs, bytes int }{{2000, 1}, {400, 15000}} {
		m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 40)
		var jobs []lowkiq.Push
		for i := range c.jobs {
			jobs = append(jobs, job(fmt.Sprint("id", i), strings.Repeat("x", c.bytes)))
		}
		m.push(jobs...)
		all := 0
		for all < c.jobs {
			for i, p := range m.popAllWell(nil) {
				if all += len(p.Jobs); len(p.Jobs) == 0 && p.Ready > 0 {
					t.Fatalf("shard %d gives nothing and has %d", i, p.Ready)
				}
			}
		}
		eq(t, "popped", all, c.jobs)
	}
}

// TestSharedPopPassesOverNothing checks that tombstones at the head of a ready list hide no job behind them. No push
// would wake the owner for that job.
func TestSharedPopPassesOverNothing(t *testing.T) {
	t.Parallel()
	c := (&backend{url: redistest.Start(t).URL()}).open(t)
	c.ShareAlways()
	r := rigOn(t, c)
	r.own(Fresh)
	ids := idsOf("id", 300)
	for _, id := range ids {
		r.push(job(id, "1"))
	}
	r.noErr(c.DB().ForTests().HDel(r.ctx, r.s.Keys().Jobs, ids[:200]...).Err())
	p := r.pop(100)
	eq(t, "popped, and left", fmt.Sprint(len(p.Jobs), p.Ready), "100 0")
}

// TestInstancesShareNoScript checks that requests of two instances of one client share no script, and that both are
// answered.
func TestInstancesShareNoScript(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 4)
	for i := 1; i < 4; i += 2 {
		m.push(job(fmt.Sprint("id", i), "1"))
		claim, err := m.q.Shard(i).Claim(m.ctx, "n/2", Seize, Owner{Instance: "n/1", Fence: m.claims[i].Fence})
		m.noErr(err)
		m.claims[i] = claim
	}
	n := 0
	for _, p := range m.popAllWell(nil) {
		n += len(p.Jobs)
	}
	eq(t, "popped", n, 2)
}

// TestPopThatWaitsIsWithdrawn checks that a waiting pop whose caller gives up pops nothing.
func TestPopThatWaitsIsWithdrawn(t *testing.T) {
	t.Parallel()
	m := newMany(t, (&backend{url: redistest.Start(t).URL()}).open(t), 2)
	m.push(job("a", "1"))
	release := m.q.Shard(0).HoldShared(m.ctx)
	ctx, cancel := context.WithCancel(m.ctx)
	ended := make(chan error)
	claim := m.claims[lowkiq.ShardOf("a", 2)]
	go func() {
		_, err := claim.Pop(ctx, PopRequest{IDs: 1, Bytes: 1 << 20})
		ended <- err
	}()
	until(t, "the pop waits", func() bool { return m.q.Shard(0).WaitingShared(m.ctx) == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that its context ended", err)
	}
	eq(t, "waiting", m.q.Shard(0).WaitingShared(m.ctx), 0)
	release()
	p, err := claim.Pop(m.ctx, PopRequest{IDs: 1, Bytes: 1 << 20})
	m.noErr(err)
	eq(t, "then", fmt.Sprint(p.Flight, " ", show(p.Jobs...)), "1 a[1]")
}

// TestLostSharedPop loses the request of many shards, or its answer. Each shard asks again, and no job is lost or
// repeated.
func TestLostSharedPop(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, what := range []string{"request", "reply"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr())
			c := (&backend{url: proxy.URL()}).open(t, func(cfg *Config) { cfg.Cluster = "lost-" + what })
			c.ShareAlways() // also after a pop that was repeated
			m := newMany(t, c, 10)
			m.noErr(c.DB().Load(m.ctx))
			pushed := 0
			done := map[string]bool{}
			acks := map[int][]Acks{}
			for round := range 6 {
				for range 20 {
					m.push(job(fmt.Sprint("id", pushed), fmt.Sprint(rand.IntN(3))))
					pushed++
				}
				if round%2 == 1 {
					cut := map[string]func(func([]string) bool){"request": proxy.CutRequestOf, "reply": proxy.CutReplyOf}[what]
					cuts := 0
					cut(func(words []string) bool {
						if strings.EqualFold(words[0], "evalsha") && words[1] == c.DB().Scripts.PopEach.SHA() {
							cuts++
						}
						return cuts == 1
					})
					_, errs := m.popAll(acks)
					for i, err := range errs {
						if err == nil || !Transient(err) {
							t.Errorf("shard %d: got %v, want a transient error", i, err)
						}
					}
					if proxy.Cuts() != (round+1)/2 {
						t.Errorf("round %d: got %d requests or answers lost, want %d", round, proxy.Cuts(), (round+1)/2)
					}
				}
				for i, p := range m.popAllWell(acks) {
					delete(acks, i)
					for _, j := range p.Jobs {
						if done[j.ID] {
							t.Errorf("%s comes twice", j.ID)
						}
						done[j.ID] = true
					}
					if len(p.Jobs) > 0 {
						acks[i] = []Acks{{Flight: p.Flight, Rest: true}}
					}
				}
			}
			eq(t, "done", len(done), pushed)
			m.popAllWell(acks)
			stats, err := m.q.Stats(m.ctx)
			m.noErr(err)
			eq(t, "processed", stats.Processed, int64(pushed))
		})
	}
}
