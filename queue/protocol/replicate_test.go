package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// newReplicaRig returns a rig on a master, and a client of its replica. servers are the master and the replica.
func newReplicaRig(t *testing.T) (r *rig, replica *redis.Client, servers []*redistest.Server) {
	t.Helper()
	servers = redistest.StartSentinel(t).Data
	r = newRig(t, &backend{url: servers[0].URL()})
	replica = redis.NewClient(&redis.Options{Addr: servers[1].Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { replica.Close() })
	return r, replica, servers
}

// TestClaimWaitsForReplica checks that a claim is on a replica when it is answered. If no replica answers, the claim
// says so.
func TestClaimWaitsForReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r, replica, servers := newReplicaRig(t)
	for i := range 20 {
		claim := r.own(Seize)
		holder, err := replica.HGet(r.ctx, r.s.Keys().Claim, "fence").Int64()
		if err != nil || holder != claim.Fence || claim.Unreplicated {
			t.Fatalf("claim %d: the replica has fence %d, %v, want %d; unreplicated: %v", i, holder, err, claim.Fence, claim.Unreplicated)
		}
	}
	servers[1].Pause()
	defer servers[1].Resume()
	if !r.own(Seize).Unreplicated {
		t.Error("with a silent replica a claim says that one has it")
	}
}

// TestClaimWithoutReplicas checks that without replicas a claim does not wait, and asks Redis about them once.
func TestClaimWithoutReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := newRig(t, &backend{url: server.URL()})
	for range 3 {
		if r.own(Seize).Unreplicated {
			t.Error("a Redis without replicas has not replicated a claim")
		}
	}
	if stats := r.c.DB().ForTests().Info(r.ctx, "commandstats").Val(); strings.Contains(stats, "cmdstat_wait:") {
		t.Errorf("got %s, want no WAIT", stats)
	}
}

// TestImportWaitsForReplica checks that an import is on a replica when it is answered. A silent replica is not waited
// for long.
func TestImportWaitsForReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r, replica, servers := newReplicaRig(t)
	for i := range 20 {
		id := fmt.Sprint("id", i)
		if _, err := transfer.Import(r.ctx, r.q, "old", entry(int64(i+1), id, strings.Repeat("x", 1<<20))); err != nil {
			t.Fatal(err)
		}
		if !replica.HExists(r.ctx, r.s.Keys().Jobs, id).Val() {
			t.Fatalf("the replica has no %s", id)
		}
	}
	servers[1].Pause()
	defer servers[1].Resume()
	if _, err := transfer.Import(r.ctx, r.q, "old", entry(21, "last", "x")); err != nil {
		t.Errorf("with a silent replica: %v", err)
	}
}

// TestSwapWaitsForReplica checks that a changed entry of a queue, such as the flip of a reshard, is on a replica when
// Swap returns.
func TestSwapWaitsForReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r, replica, _ := newReplicaRig(t)
	for i := range 20 {
		text, entry, err := r.c.Registry().Stored(r.ctx, "q")
		if err != nil {
			t.Fatal(err)
		}
		entry.Tried = i + 5
		fresh, swapped, err := r.c.Registry().Swap(r.ctx, "q", text, entry)
		if err != nil || !swapped {
			t.Fatalf("swap %d: %t, %v", i, swapped, err)
		}
		if got := replica.HGet(r.ctx, r.c.DB().Keys.Queues(), "q").Val(); got != fresh {
			t.Fatalf("swap %d: the replica has %s, want %s", i, got, fresh)
		}
	}
	if stats := r.c.DB().ForTests().Info(r.ctx, "commandstats").Val(); !strings.Contains(stats, "cmdstat_wait:calls=") {
		t.Errorf("got %s, want WAITs", stats)
	}
}

// TestFollowUpWaitsForReplica checks that a follow-up is on a replica before it counts as delivered. Until then it
// stays with its source, and is delivered again, once.
func TestFollowUpWaitsForReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r, replica, servers := newReplicaRig(t)
	mail := r.otherQueue("mail", 2)
	relay := r.c
	deliver := func(number int64) (all []*Shipment) {
		for _, id := range []string{"a", "b", "c"} {
			to := mail.Of(id)
			all = append(all, &Shipment{From: r.s, Queue: mail, To: to, All: []Outgoing{{Number: number, FollowUp: FollowUp{Queue: "mail", ID: fmt.Sprint(id, number), Payload: []byte("1")}}}})
			number++
		}
		relay.DeliverOutgoing(r.ctx, all)
		return all
	}
	for i := range int64(20) {
		for _, s := range deliver(10*i + 1) {
			if s.Err != nil || !replica.HExists(r.ctx, s.To.Keys().Jobs, s.All[0].ID).Val() {
				t.Fatalf("follow-up %d: the replica does not have it, %v", s.All[0].Number, s.Err)
			}
		}
	}
	servers[1].Pause()
	for _, by := range []string{"the relay", "another relay"} { // whose connections have written nothing
		for _, s := range deliver(1001) {
			if s.Delivered != 0 || !Transient(s.Err) || !strings.Contains(s.Err.Error(), "no replica") {
				t.Errorf("with a silent replica, by %s: got %d delivered, %v, want an error that passes", by, s.Delivered, s.Err)
			}
		}
		relay = (&backend{url: servers[0].URL()}).open(t)
	}
	servers[1].Resume()
	all := deliver(1001)
	for _, s := range all {
		if s.Delivered != 1 || s.Err != nil || !replica.HExists(r.ctx, s.To.Keys().Jobs, s.All[0].ID).Val() {
			t.Errorf("when the replica is back: got %d delivered, %v", s.Delivered, s.Err)
		}
	}
	stats, err := mail.Stats(r.ctx)
	r.noErr(err)
	eq(t, "ids", stats.Jobs.Ready, 63)
}

// writes returns how many writes Redis has counted.
func (r *rig) writes() (n int) {
	r.t.Helper()
	_, text, _ := strings.Cut(r.c.DB().ForTests().Info(r.ctx, "persistence").Val(), "rdb_changes_since_last_save:")
	_, err := fmt.Sscan(text, &n)
	r.noErr(err)
	return n
}

// TestRepeatedDeliveryWrites checks that a repeated delivery stores nothing and writes nevertheless, also to a full Redis. From
// Redis 7.2 on, a WAIT behind a script that has written nothing is answered at once.
func TestRepeatedDeliveryWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t, "--maxmemory-policy", "noeviction").URL()})
	_, err := r.q.Deliver(r.ctx, Delivery{Source: "s", Number: 7}, job("a", "1"))
	r.noErr(err)
	for _, full := range []bool{false, true} {
		if full {
			defer r.fill()()
		}
		before := r.writes()
		if _, err := r.q.Deliver(r.ctx, Delivery{Source: "s", Number: 7}, job("a", "1")); !errors.Is(err, ErrDelivered) || r.writes() == before {
			t.Errorf("full %t: got %v and %d writes, want %v and some", full, err, r.writes()-before, ErrDelivered)
		}
	}
}

// TestReadingNumbersWrites checks that a relay's reading of follow-ups writes, also to a full Redis, so that a WAIT covers
// their numbers. The reading for people writes nothing.
func TestReadingNumbersWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t, "--maxmemory-policy", "noeviction").URL()})
	r.otherQueue("mail", 2)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	_, err := r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "x"))}}})
	r.noErr(err)
	for _, full := range []bool{false, true} {
		if full {
			defer r.fill()()
		}
		before := r.writes()
		_, _, err := r.q.Outgoing(r.ctx, 10)
		r.noErr(err)
		eq(t, "writes for people", r.writes(), before)
		page := &OutgoingPage{Shard: r.s}
		r.c.ReadOutgoing(r.ctx, 10, 1<<20, page)
		if page.Err != nil || len(page.All) != 1 || r.writes() == before {
			t.Errorf("full %t: got %d follow-ups, %v and %d writes, want 1 and some", full, len(page.All), page.Err, r.writes()-before)
		}
	}
}

// TestNumbersWaitForReplica checks that a relay reads no follow-up whose number no replica has, and that people read all.
func TestNumbersWaitForReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r, replica, servers := newReplicaRig(t)
	r.otherQueue("mail", 2)
	r.push(job("a", "1"))
	r.own(Seize)
	flight := r.pop(1).Flight
	servers[1].Pause()
	_, err := r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "x"))}}})
	r.noErr(err)
	page := &OutgoingPage{Shard: r.s}
	r.c.ReadOutgoing(r.ctx, 10, 1<<20, page)
	if len(page.All) > 0 || !Transient(page.Err) || !strings.Contains(page.Err.Error(), "no replica") {
		t.Errorf("with a silent replica: got %v, %v, want an error that passes", page.All, page.Err)
	}
	first, waiting, err := r.q.Outgoing(r.ctx, 10)
	r.noErr(err)
	eq(t, "follow-ups that people see", [2]int{len(first), waiting}, [2]int{1, 1})
	servers[1].Resume()
	all := r.outgoing()
	eq(t, "follow-ups", len(all), 1)
	eq(t, "the replica's last number", replica.HGet(r.ctx, r.s.Keys().Count, "out").Val(), fmt.Sprint(all[0].Number))
}

// answersLate returns an address that leads to a master and delays what its replica says by d.
func answersLate(t *testing.T, addr string, d time.Duration) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	t.Cleanup(func() { listener.Close() })
	work.Go(func() {
		for {
			replica, err := listener.Accept()
			if err != nil {
				return
			}
			master, err := net.Dial("tcp", addr)
			if err != nil {
				replica.Close()
				continue
			}
			context.AfterFunc(t.Context(), func() { replica.Close(); master.Close() })
			work.Go(func() { io.Copy(replica, master); replica.Close() })
			work.Go(func() {
				defer master.Close()
				said := make([]byte, 4096)
				for {
					n, err := replica.Read(said)
					time.Sleep(d) // the distance of the replica
					if _, failed := master.Write(said[:n]); err != nil || failed != nil {
						return
					}
				}
			})
		}
	})
	return listener.Addr().String()
}

// TestFollowUpsOfSlowReplica checks that follow-ups reach their queue if the replica always answers later than a claim waits.
func TestFollowUpsOfSlowReplica(t *testing.T) {
	tier.All(t)
	t.Parallel()
	server, replica := redistest.Start(t), redistest.Start(t)
	client := func(s *redistest.Server) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { c.Close() })
		return c
	}
	host, port, _ := strings.Cut(answersLate(t, server.Addr(), 250*time.Millisecond), ":")
	if err := client(replica).ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	master := client(server)
	until(t, "the replica follows", func() bool { return strings.Contains(master.Info(t.Context(), "replication").Val(), "state=online") })
	r := newRig(t, &backend{url: server.URL()})
	mail := r.otherQueue("mail", 2)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	_, err := r.claim.Ack(r.ctx, Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "x"))}}})
	r.noErr(err)
	page := &OutgoingPage{Shard: r.s}
	until(t, "the numbers are on the replica", func() bool {
		*page = OutgoingPage{Shard: r.s}
		r.c.ReadOutgoing(r.ctx, 10, 1<<20, page)
		return page.Err == nil
	})
	until(t, "the follow-up is on the replica", func() bool {
		s := &Shipment{From: r.s, Queue: mail, To: mail.Of("u"), All: page.All}
		r.c.DeliverOutgoing(r.ctx, []*Shipment{s})
		return s.Err == nil && s.Delivered == 1
	})
}
