package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

var removeTests = []testCase{
	{"Remove_EmptyQueue", testRemoveEmpty},
	{"Remove_RefusesAFilledQueue", testRemoveFilled},
	{"Remove_RefusesAHandledQueue", testRemoveHandled},
	{"Remove_RefusesAnOwnedShard", testRemoveOwned},
	{"Remove_ByForce", testRemoveForce},
	{"Remove_RefusesOldProducers", testRemoveOldProducers},
	{"Remove_GoesOn", testRemoveGoesOn},
	{"Remove_GivenUpRemovesNothing", testRemoveGivenUp},
	{"Remove_StaleMarkGoes", testRemoveStaleMark},
	{"Remove_LateMarkOpensNothing", testRemoveLateMark},
	{"Remove_ClaimsAreRefused", testRemoveClaims},
	{"Remove_LostQueueKeepsItsLayout", testRemoveLayout},
}

// nobody says that no node handles a queue.
func nobody(context.Context) ([]string, error) { return nil, nil }

// removeRig returns a queue of some shards without owner.
func removeRig(t *testing.T, b *backend, shards int) (*Client, *Queue) {
	t.Helper()
	c := b.open(t)
	return c, newQueue(t, c, shards)
}

// keysLeft returns the keys of a queue's shards, except marks.
func keysLeft(t *testing.T, q *Queue) (left []string) {
	t.Helper()
	for _, s := range q.All() {
		for key := range s.Keys().Types() {
			n, err := ClientOf(q).DB().ForTests().Exists(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				left = append(left, fmt.Sprintf("%d:%s", s.Index, strings.TrimPrefix(key, s.Keys().Tag)))
			}
		}
	}
	slices.Sort(left)
	return left
}

func isStored(t *testing.T, c *Client, id string) bool {
	t.Helper()
	q, err := c.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	_, ok, err := browse.Of(q).Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func testRemoveEmpty(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 3)
	if _, err := q.Push(t.Context(), job("a", "1")); err != nil {
		t.Fatal(err)
	}
	if n, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, "a"); n != 1 || err != nil { // its tombstone stays
		t.Fatal(n, err)
	}
	got, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody})
	if err != nil || got != (remove.Deleted{}) {
		t.Fatalf("got %+v, %v; want nothing that was in it", got, err)
	}
	entries, err := c.Registry().Entries(t.Context())
	if err != nil || len(entries) != 0 {
		t.Errorf("registry: got %v, %v; want none", entries, err)
	}
	eq(t, "left in Redis", keysLeft(t, q), []string{"0:count", "1:count", "2:count"})
	if _, err := c.Queue(t.Context(), "q"); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("got %v, want ErrUnknownQueue", err)
	}
	if err := c.Registry().Pause(t.Context(), "q"); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("pause: got %v, want ErrUnknownQueue", err)
	}
	got, err = remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody})
	if err != nil || !got.Before {
		t.Errorf("again: got %+v, %v; want that it was deleted before", got, err)
	}
	if _, err := remove.Delete(t.Context(), c, "other", remove.Deletion{Handled: nobody}); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("another: got %v, want ErrUnknownQueue", err)
	}
	audit, err := audit.Run(t.Context(), c, audit.Config{Orphans: true})
	if err != nil || len(audit.Faults) != 0 {
		t.Errorf("audit: got %+v, %v; want no faults", audit.Faults, err)
	}
}

// fillings has every kind of content that keeps a shard from being empty.
var fillings = map[string]func(r *rig){
	"ready":     func(r *rig) { r.push(job("a", "1")) },
	"scheduled": func(r *rig) { r.push(job("a", "1", in(time.Hour))) },
	"crowd":     func(r *rig) { r.crowds(100, 3, "a") },
	"retry":     func(r *rig) { r.push(job("a", "1")); _, f := r.popOne("a"); r.nack(f, "a", Retry, 0, time.Hour) },
	"blocked":   func(r *rig) { r.push(job("a", "1")); _, f := r.popOne("a"); r.bury(f, "a", Block) },
	"morgue":    func(r *rig) { r.push(job("a", "1")); _, f := r.popOne("a"); r.bury(f, "a", Bury) },
	"states":    func(r *rig) { r.keep("a", "state") },
	"aside":     func(r *rig) { r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Aside, "jobs:a", "?").Err()) },
	"suspect":   func(r *rig) { r.push(job("a", "1")); r.popOne("a"); r.own(Seize) },
	"damaged": func(r *rig) {
		r.noErr(r.c.DB().ForTests().ZAdd(r.ctx, r.s.Keys().Due, redis.Z{Score: 1, Member: "a"}).Err())
	}, // an entry without a record
}

func testRemoveFilled(t *testing.T, b *backend) {
	for name, fill := range fillings {
		t.Run(name, func(t *testing.T) {
			c := b.open(t)
			r := &rig{t: t, ctx: t.Context(), c: c, q: newQueue(t, c, 1)}
			r.s = r.q.Shard(0)
			r.own(Fresh)
			fill(r)
			if _, err := r.claim.Release(r.ctx); err != nil {
				t.Fatal(err)
			}
			before := keysLeft(t, r.q)
			_, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody})
			if !errors.Is(err, remove.ErrNotEmpty) {
				t.Fatalf("got %v, want remove.ErrNotEmpty", err)
			}
			eq(t, "keys", keysLeft(t, r.q), before)
			r.push(job("z", "1")) // the queue is what it was
			if _, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody}); err != nil {
				t.Fatal(err)
			}
			eq(t, "left by force", keysLeft(t, r.q), []string{"0:count"})
		})
	}
}

func testRemoveHandled(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 2)
	for _, force := range []bool{false, true} {
		_, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: force, Handled: func(context.Context) ([]string, error) { return []string{"n2", "n1", "n2"}, nil }})
		if !errors.Is(err, remove.ErrHandled) || !strings.Contains(err.Error(), "handled by n1, n2;") {
			t.Errorf("force %t: got %v, want remove.ErrHandled with the nodes", force, err)
		}
	}
	// A node takes its lease between the first and the second check.
	looks := 0
	_, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: func(context.Context) ([]string, error) {
		if looks++; looks > 1 {
			return []string{"n3"}, nil
		}
		return nil, nil
	}})
	if !errors.Is(err, remove.ErrHandled) {
		t.Errorf("got %v, want remove.ErrHandled", err)
	}
	if _, err := q.Push(t.Context(), job("a", "1"), job("b", "1")); err != nil {
		t.Errorf("push after it was given up: %v", err)
	}
	entries, err := c.Registry().Entries(t.Context())
	eq(t, "entry", entries["q"], RegistryEntry{Shards: 2, Layout: 1})
	if err != nil {
		t.Error(err)
	}
	text, err := c.DB().ForTests().HGet(t.Context(), q.Shard(0).Keys().Count, "last").Result()
	if err == nil && strings.Contains(text, "removed") {
		t.Errorf("got the mark %q, want none", text)
	}
}

func testRemoveOwned(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 5)
	if _, err := q.Shard(3).Claim(t.Context(), "n/1", Fresh, Owner{}); err != nil {
		t.Fatal(err)
	}
	_, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if !errors.Is(err, remove.ErrHandled) || !strings.Contains(err.Error(), "n/1") || !strings.Contains(err.Error(), "q/3") {
		t.Errorf("got %v, want remove.ErrHandled with holder and shard", err)
	}
	// An instance claims a shard between the check and the mark.
	r, err := remove.New(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if err == nil {
		err = r.Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Mark(t.Context()); !errors.Is(err, remove.ErrHandled) || !errors.Is(r.GiveUp(t.Context(), err), remove.ErrHandled) {
		t.Errorf("mark: got %v, want remove.ErrHandled", err)
	}
	for i := range 50 {
		if _, err := q.Push(t.Context(), job(fmt.Sprint(i), "1")); err != nil {
			t.Fatal(err)
		}
	}
}

func testRemoveForce(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 3)
	for i := range 20 {
		if _, err := q.Push(t.Context(), job(fmt.Sprint(i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := browse.Of(q).Bury(t.Context(), browse.Anywhere, "0", "1"); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Of("0")}
	r.noErr(c.DB().ForTests().HSet(r.ctx, r.s.Keys().States, "0", "state").Err())
	want := remove.Deleted{Jobs: 18, Morgue: 2, States: 1}
	got, err := remove.Deletable(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if err != nil || got != want {
		t.Errorf("dry run: got %+v, %v; want %+v", got, err, want)
	}
	if got, err = remove.Deletable(t.Context(), c, "q", remove.Deletion{Handled: nobody}); !errors.Is(err, remove.ErrNotEmpty) || got != want {
		t.Errorf("dry run without force: got %+v, %v; want %+v and remove.ErrNotEmpty", got, err, want)
	}
	if !isStored(t, c, "3") {
		t.Fatal("a dry run has deleted a job")
	}
	got, err = remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	eq(t, "left in Redis", len(keysLeft(t, q)), 3)
}

// testRemoveOldProducers checks that a Queue from before the deletion is refused, by every kind of push.
func testRemoveOldProducers(t *testing.T, b *backend) {
	c, old := removeRig(t, b, 16)
	other := Rename(t, c, c.Cluster()) // another process
	theirs, err := other.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody}); err != nil {
		t.Fatal(err)
	}
	many := func(options ...func(*lowkiq.Push)) (jobs []lowkiq.Push) {
		for i := range 40 { // few for each of many shards: push_each
			jobs = append(jobs, job(fmt.Sprint(i), "1", options...))
		}
		return jobs
	}
	refused := func(when string) {
		t.Helper()
		for _, q := range []*Queue{old, theirs} {
			for name, jobs := range map[string][]lowkiq.Push{
				"one": {job("a", "1")}, "scored": {job("a", "1", score(3))}, "scheduled": {job("a", "1", in(time.Hour))},
				"many": many(), "many scored": many(score(1)), "many scheduled": many(in(time.Hour)),
			} {
				results, err := q.Push(t.Context(), jobs...)
				if !errors.Is(err, lowkiq.ErrUnknownQueue) || !strings.Contains(err.Error(), "deleted") {
					t.Errorf("%s, %s: got %v, want ErrUnknownQueue, as it was deleted", when, name, err)
				}
				for i := range results {
					if !errors.Is(results[i].Err, lowkiq.ErrUnknownQueue) {
						t.Errorf("%s, %s, job %d: got %v, want ErrUnknownQueue", when, name, i, results[i].Err)
					}
				}
			}
		}
		eq(t, when+": left in Redis", len(keysLeft(t, old)), 16)
	}
	refused("deleted")
	anew, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	if anew == old || anew.Shards != 2 {
		t.Fatalf("got %d shards, want a queue of 2", anew.Shards)
	}
	refused("registered anew")
	if _, err := anew.Push(t.Context(), job("a", "1")); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Push(t.Context(), "q", job("b", "1")); err != nil { // by its name, looked up again
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if !isStored(t, c, id) {
			t.Errorf("job %s: not stored in the queue that was registered anew", id)
		}
	}
	audit, err := audit.Run(t.Context(), c, audit.Config{Orphans: true})
	if err != nil || len(audit.Faults) != 0 {
		t.Errorf("audit: got %+v, %v; want no faults", audit.Faults, err)
	}
	if _, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody}); err != nil {
		t.Fatal(err)
	}
	third, err := other.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	eq(t, "layout", LayoutOf(third), 3)
}

// testRemoveGoesOn breaks a deletion off after each step. Repeated, it ends. Until then nobody can register the queue.
func testRemoveGoesOn(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 4)
	if _, err := q.Push(t.Context(), job("a", "1")); err != nil {
		t.Fatal(err)
	}
	r, err := remove.New(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if err == nil {
		err = r.Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Rename(t, c, c.Cluster()).Register(t.Context(), q.Queue); err == nil || !strings.Contains(err.Error(), "queues delete q") {
		t.Errorf("got %v, want an error that says to repeat the deletion", err)
	}
	audit, err := audit.Run(t.Context(), c, audit.Config{})
	if err != nil || len(audit.Faults) != 1 || !strings.Contains(audit.Faults[0].What, "not finished") {
		t.Errorf("audit: got %+v, %v; want one fault", audit.Faults, err)
	}
	if err := r.Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Push(t.Context(), job("b", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("got %v, want ErrUnknownQueue", err)
	}
	got, err := remove.Delete(t.Context(), Rename(t, c, c.Cluster()), "q", remove.Deletion{Force: true, Handled: nobody})
	if err != nil || got.Jobs != 1 {
		t.Fatalf("got %+v, %v; want one job", got, err)
	}
	if _, err := c.Register(t.Context(), q.Queue); err != nil {
		t.Fatal(err)
	}
}

// testRemoveGivenUp runs a slow deletion by force. Another deletion, without force, is refused, and the queue goes on.
// Late requests of the slow deletion must delete nothing that was stored since.
func testRemoveGivenUp(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 2)
	slow, err := remove.New(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
	if err == nil {
		err = slow.Begin(t.Context())
	}
	if err == nil {
		err = slow.Mark(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: func(context.Context) ([]string, error) { return []string{"n1"}, nil }})
	if !errors.Is(err, remove.ErrHandled) {
		t.Fatalf("got %v, want remove.ErrHandled", err)
	}
	if _, err := q.Push(t.Context(), job("a", "1"), job("b", "1"), job("c", "1")); err != nil {
		t.Fatal(err)
	}
	if err := slow.Remove(t.Context()); !errors.Is(err, remove.ErrChanged) {
		t.Errorf("remove: got %v, want that it was given up", err)
	}
	if err := slow.Finish(t.Context()); !errors.Is(err, remove.ErrChanged) {
		t.Errorf("finish: got %v, want that it was given up", err)
	}
	err = slow.Mark(t.Context()) // its marks come late
	if !errors.Is(err, remove.ErrChanged) {
		t.Errorf("mark: got %v, want that it was given up", err)
	}
	for _, s := range q.All() { // so does any claim or push
		if _, err := s.Claim(t.Context(), "n/1", Fresh, Owner{}); err != nil {
			t.Errorf("claim: %v", err)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if !isStored(t, c, id) {
			t.Errorf("job %s was removed", id)
		}
	}
}

// testRemoveStaleMark checks that the mark of a deletion that was given up stops nobody, and changes no order.
func testRemoveStaleMark(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 1)
	if _, err := q.Push(t.Context(), job("a", "1")); err != nil {
		t.Fatal(err)
	}
	last := func() string {
		t.Helper()
		text, err := c.DB().ForTests().HGet(t.Context(), q.Shard(0).Keys().Count, "last").Result()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := last()
	leave := func(token string) {
		t.Helper()
		if _, err := q.Shard(0).Run(t.Context(), c.DB().Scripts.Freeze, "freeze", "removed "+token, "quiet", ""); err != nil {
			t.Fatal(err)
		}
	}
	leave("OLD")
	leave("LATER") // refused: the mark of another deletion is there
	if _, err := q.Shard(0).Run(t.Context(), c.DB().Scripts.Freeze, "thaw", "removed ANOTHER"); err != nil {
		t.Fatal(err)
	}
	eq(t, "mark", strings.HasPrefix(last(), "removed OLD "+before+" "), true)
	if _, err := q.Shard(0).Claim(t.Context(), "n/1", Fresh, Owner{}); err != nil {
		t.Fatalf("claim: %v", err)
	}
	eq(t, "last after the claim", last(), before)
	leave("OLD")
	results, err := q.Push(t.Context(), job("b", "1"), job("c", "1", in(time.Hour)))
	if err != nil || len(results) != 2 || !isStored(t, c, "b") || !isStored(t, c, "c") {
		t.Errorf("push: got %v, %v; want it stored", results, err)
	}
}

// testRemoveLateMark stalls a deletion before it marks shards. Meanwhile it is given up, and the queue gets other shards.
// The marks of the reshard stay.
func testRemoveLateMark(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 2)
	late, err := remove.New(t.Context(), c, "q", remove.Deletion{Handled: nobody, Force: true})
	if err == nil {
		err = late.Begin(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	rdb, s := c.DB().ForTests(), q.Shard(0)
	set := func(entry string) {
		t.Helper()
		if err := rdb.HSet(t.Context(), c.DB().Keys.Queues(), "q", entry).Err(); err != nil {
			t.Fatal(err)
		}
	}
	last := func() string {
		t.Helper()
		text, err := rdb.HGet(t.Context(), s.Keys().Count, "last").Result()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	set(`{"shards":2,"layout":1}`)
	if _, err := s.Run(t.Context(), c.DB().Scripts.Freeze, "freeze", MovedMark(2), "quiet", ""); err != nil {
		t.Fatal(err)
	}
	for name, entry := range map[string]string{
		"before the flip": `{"shards":2,"layout":1,"reshard":{"shards":3,"layout":2,"at":1,"patience_ms":1}}`,
		"after the flip":  `{"shards":3,"layout":2,"was":[{"shards":2,"layout":1,"at":1,"copying":true}]}`,
		"after the end":   `{"shards":3,"layout":2,"was":[{"shards":2,"layout":1,"at":1}]}`,
	} {
		set(entry)
		mark := last()
		err := late.Mark(t.Context())
		if err = late.GiveUp(t.Context(), err); !errors.Is(err, remove.ErrChanged) {
			t.Errorf("%s: got %v, want ErrChanged", name, err)
		}
		eq(t, "mark "+name, last(), mark)
	}
	// A late step of a reshard leaves the mark of a deletion, and replaces that of an earlier deletion.
	set(`{"shards":2,"layout":1,"removing":"NOW"}`)
	for token, want := range map[string]error{"NOW": ErrMarkHolds, "EARLIER": nil} {
		_, err := s.Run(t.Context(), c.DB().Scripts.Freeze, "thaw", MovedMark(2))
		if err == nil {
			_, err = s.Run(t.Context(), c.DB().Scripts.Freeze, "freeze", RemovedMark(token), "unowned", "")
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Refreeze(t.Context(), last(), MovedMark(2), "quiet", ""); !errors.Is(err, want) {
			t.Errorf("the mark of deletion %s: got %v, want %v", token, err, want)
		}
		if _, err := s.Run(t.Context(), c.DB().Scripts.Freeze, "thaw", RemovedMark(token)); err != nil {
			t.Fatal(err)
		}
	}
}

func testRemoveClaims(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 1)
	theirs, err := Rename(t, c, c.Cluster()).Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody}); err != nil {
		t.Fatal(err)
	}
	if claim, err := theirs.All()[0].Claim(t.Context(), "n/1", Fresh, Owner{}); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("got %v, %v; want ErrUnknownQueue", claim, err)
	}
	eq(t, "left in Redis", keysLeft(t, q), []string{"0:count"})
}

// testRemoveLayout makes Redis lose a queue that was registered anew. A process that works on it restores its entry
// with the same layout.
func testRemoveLayout(t *testing.T, b *backend) {
	c, q := removeRig(t, b, 1)
	if _, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Handled: nobody}); err != nil {
		t.Fatal(err)
	}
	anew, err := c.Register(t.Context(), q.Queue)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DB().ForTests().Del(t.Context(), c.DB().Keys.Queues()).Err(); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Registry().Restore(t.Context(), anew); again != anew || err != nil {
		t.Fatalf("got %p, %v; want the same queue %p", again, err, anew)
	}
	entries, err := c.Registry().Entries(t.Context())
	if err != nil || !anew.Serves(entries["q"]) || q.Serves(entries["q"]) {
		t.Errorf("got %+v, %v; want the entry of layout 2", entries["q"], err)
	}
}

// TestRemoveLostReplies loses each request and each reply of a deletion, in turn. Repeated, the deletion
// does the same.
func TestRemoveLostReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	remove := func(t *testing.T, b *backend, cluster string, prepare func()) (repeated int) {
		direct := (&backend{url: server.URL()}).open(t, func(cfg *Config) { cfg.Cluster = cluster })
		q := newQueue(t, direct, 3)
		for i := range 10 {
			if _, err := q.Push(t.Context(), job(fmt.Sprint(i), "1")); err != nil {
				t.Fatal(err)
			}
		}
		c := b.open(t, func(cfg *Config) { cfg.Cluster = cluster })
		if err := c.DB().Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		prepare()
		sum := remove.Deleted{}
		for ; ; repeated++ {
			got, err := remove.Delete(t.Context(), c, "q", remove.Deletion{Force: true, Handled: nobody})
			if err == nil {
				sum = got
				break
			}
			if !Transient(err) || repeated > 2 {
				t.Fatalf("got %v, want a transient error, once", err)
			}
		}
		if repeated == 0 && sum.Jobs != 10 {
			t.Errorf("got %+v, want 10 jobs", sum)
		}
		eq(t, "left in Redis", keysLeft(t, q), []string{"0:count", "1:count", "2:count"})
		if _, err := q.Push(t.Context(), job("a", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
			t.Errorf("push: got %v, want ErrUnknownQueue", err)
		}
		return repeated
	}
	counting := redistest.NewProxy(t, server.Addr())
	commands := 0
	remove(t, &backend{url: counting.URL()}, "counted", func() {
		counting.CutReplyOf(func([]string) bool { commands++; return false })
	})
	if commands < 8 {
		t.Fatalf("got %d commands of a deletion, want more", commands)
	}
	eachLost(t, server, commands, func([]string) bool { return true }, func(t *testing.T, proxy *redistest.Proxy, name string, lose func()) {
		remove(t, &backend{url: proxy.URL()}, name, lose)
		if proxy.Cuts() != 1 {
			t.Errorf("got %d cuts, want one", proxy.Cuts())
		}
	})
}

// TestRemoveAmongPushes deletes and registers a queue again and again while producers push. A job that a
// push has acknowledged was deleted by force with its queue, or is there.
func TestRemoveAmongPushes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := (&backend{url: redistest.Start(t).URL()}).open(t)
	newQueue(t, c, 4)
	ctx, cancel := context.WithCancel(t.Context())
	type acked struct {
		id     string
		layout int
	}
	const producers = 4
	answers := make(chan []acked, producers)
	for p := range producers {
		go func() {
			mine := Rename(t, c, c.Cluster())
			var list []acked
			for i := 0; ctx.Err() == nil; i++ {
				q, err := mine.Queue(t.Context(), "q")
				if err != nil {
					continue
				}
				id := fmt.Sprintf("%d-%d", p, i)
				if _, err := q.Push(t.Context(), job(id, "1")); err == nil {
					list = append(list, acked{id, LayoutOf(q)})
				} else if !errors.Is(err, lowkiq.ErrUnknownQueue) {
					t.Errorf("push: %v", err)
				}
			}
			answers <- list
		}()
	}
	deleter := Rename(t, c, c.Cluster())
	const rounds = 20
	for range rounds {
		if _, err := remove.Delete(t.Context(), deleter, "q", remove.Deletion{Force: true, Handled: nobody}); err != nil {
			t.Fatal(err)
		}
		if _, err := deleter.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 4}); err != nil {
			t.Fatal(err)
		}
	}
	// The deleted layouts have no keys.
	for layout := 1; layout <= rounds; layout++ {
		if left := keysLeft(t, c.NewQueue("q", RegistryEntry{Shards: 4, Layout: layout})); len(left) != 4 {
			t.Errorf("layout %d: got %v, want four marks", layout, left)
		}
	}
	cancel()
	n := 0
	for range producers {
		for _, a := range <-answers {
			n++
			if a.layout == rounds+1 && !isStored(t, deleter, a.id) {
				t.Errorf("job %s: acknowledged, and not there", a.id)
			}
		}
	}
	if n == 0 {
		t.Error("no push was acknowledged, want some")
	}
}
