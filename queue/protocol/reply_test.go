package protocol_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Replies to calls, results and states, as Redis stores them. The model (property_calls_test.go) tests
// random ones.
var replyTests = []testCase{
	{"Reply_OfEachEnd", testReplyOfEachEnd},
	{"Reply_LongIsKeptOnce", testReplyLong},
	{"Reply_SaysHowItsPayloadEnded", testReplyOfItsPayload},
	{"Answer_CountsForItsFlight", testAnswerOfItsFlight},
	{"States_Expire", testStatesExpire},
	{"Answers_InParts", testAnswersInParts},
	{"Reply_IsPublishedOnEachMaster", testReplyOnEachMaster},
	{"Reply_BadAddressStopsNoScript", testReplyDamage},
}

// replyTo makes a push a call.
func replyTo(c *Client, token string) func(*lowkiq.Push) {
	return func(p *lowkiq.Push) {
		p.ReplyTo = envelope.Address(token, time.Hour, c.DB().Keys.Replies("test"))
	}
}

// called returns jobs with calls, one for each token.
func (r *rig) called(id string, tokens ...string) (jobs []lowkiq.Push) {
	for _, token := range tokens {
		jobs = append(jobs, job(id, "same", replyTo(r.c, token)))
	}
	return jobs
}

// answered returns the ack of an id with text as its result and its state.
func (r *rig) answered(flight int64, id, text string) Acks {
	return Acks{Flight: flight, IDs: []string{id}, Answers: []Answer{{ID: id, Callers: 1, Result: []byte(text), State: []byte(text), SetState: true}}}
}

// reply returns the reply stored under a token, "" if there is none.
func (r *rig) reply(token string) string {
	r.t.Helper()
	rdb, keys := r.c.DB().ForTests(), r.s.Keys()
	text, err := rdb.Get(r.ctx, keys.ReplyTo(token)).Result()
	if name, ok := strings.CutPrefix(text, "see "); ok {
		text, err = rdb.Get(r.ctx, keys.ReplyTo(name)).Result()
	}
	if err == redis.Nil {
		return ""
	}
	r.noErr(err)
	return text
}

func testReplyOfEachEnd(t *testing.T, b *backend) {
	r := newRig(t, b)
	end := func(token, want string, end func()) {
		t.Helper()
		eq(t, token+" before", r.reply(token), "")
		end()
		eq(t, token, r.reply(token), want)
		left := r.c.DB().ForTests().PTTL(r.ctx, r.s.Keys().ReplyTo(token)).Val()
		if left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s: it is kept for %v, want an hour", token, left)
		}
	}
	flying := func(token string) int64 {
		t.Helper()
		r.push(r.called("a", token)...)
		_, flight := r.popOne("a")
		return flight
	}
	end("done", "done", func() {
		r.ackAll(Acks{Flight: flying("done"), IDs: []string{"a"}, Answers: []Answer{{ID: "a", Callers: 1}}})
	})
	end("empty", "done\n", func() {
		r.ackAll(Acks{Flight: flying("empty"), IDs: []string{"a"}, Answers: []Answer{{ID: "a", Callers: 1, Result: []byte{}}}})
	})
	end("result", "done\n42\x00", func() { r.ackAll(r.answered(flying("result"), "a", "42\x00")) })
	for _, policy := range []Policy{Skip, Bury} {
		end(string(policy), "buried\nexhausted", func() { r.bury(flying(string(policy)), "a", policy) })
	}
	end("crash", "buried\ncrash: its worker died 1 times while it ran alone", func() {
		flying("crash")
		r.own(Seize)
		_, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 1, Slot: true})
		r.noErr(err)
		r.own(Seize)
	})
	one := func(n int, err error) { t.Helper(); eq(t, "changed", fmt.Sprint(n, err), "1 <nil>") }
	end("killed", "buried\n", func() {
		r.push(r.called("a", "killed")...)
		one(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a"))
	})
	end("oldest", "buried\n", func() {
		r.push(job("a", "1", replyTo(r.c, "oldest"), in(time.Hour)), job("a", "2", replyTo(r.c, "deleted")))
		one(browse.Of(r.q).BuryOldest(r.ctx, browse.Anywhere, "a"))
	})
	end("deleted", "deleted", func() { one(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a")) })
	end("parked", "deleted", func() {
		flight := flying("flies")
		r.push(r.called("a", "parked")...)
		one(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a"))
		eq(t, "of the flight", r.reply("flies"), "")
		r.ack(flight, "a")
	})
	end("crowd-0", "deleted", func() {
		r.push(r.called("a", tokens("crowd", 2500)...)...)
		one(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a"))
	})
	eq(t, "the last of a crowd", r.reply("crowd-2499"), "deleted")
	end("blocked", "buried\nexhausted", func() {
		r.bury(flying("blocked"), "a", Block)
		eq(t, "of what is blocked", r.reply("blocked"), "")
		one(browse.Of(r.q).Bury(r.ctx, browse.StateBlocked, "a"))
	})
	end("again", "done\nat last", func() {
		r.bury(flying("again"), "a", Bury)
		one(browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a"))
		eq(t, "while it waits again", r.reply("again"), "buried\nexhausted")
		p := r.pop(1)
		r.ackAll(r.answered(p.Flight, "a", "at last"))
	})
}

func tokens(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", name, i))
	}
	return all
}

// ackAll acks a job.
func (r *rig) ackAll(acks Acks) {
	r.t.Helper()
	n, err := r.claim.Ack(r.ctx, acks)
	eq(r.t, "acked", fmt.Sprint(n, err), "1 <nil>")
}

// testReplyLong checks that a result of 256 KiB for 2,000 calls is stored once.
func testReplyLong(t *testing.T, b *backend) {
	r := newRig(t, b)
	all := tokens("t", map[bool]int{false: 2000, true: 200}[b.mini]) // the embedded Redis joins no more texts at once
	r.push(r.called("a", all...)...)
	got, flight := r.popOne("a")
	eq(t, "callers", got.Callers, len(all))
	result := strings.Repeat("x", lowkiq.MaxResultBytes)
	r.ackAll(r.answered(flight, "a", result))
	stored, err := r.c.DB().ForTests().Pipelined(r.ctx, func(p redis.Pipeliner) error {
		for _, token := range all {
			p.Get(r.ctx, r.s.Keys().ReplyTo(token))
		}
		return nil
	})
	r.noErr(err)
	bytes, kinds := 0, map[string]bool{}
	for i, one := range stored {
		text := one.(*redis.StringCmd).Val()
		bytes += len(text)
		if i%100 == 0 || !kinds[text] { // each reading has the whole result
			kinds[text] = true
			eq(t, all[i]+" has the result", r.reply(all[i]) == "done\n"+result, true)
		}
	}
	if most := len(all) * 64; bytes > most {
		t.Errorf("replies have %d bytes beside the result, want at most %d", bytes, most)
	}
}

// testReplyOfItsPayload checks that calls that were buried together end separately when they come back. A reply says
// how its own payload ended.
func testReplyOfItsPayload(t *testing.T, b *backend) {
	r := newRig(t, b)
	half := strings.Repeat("x", 600<<10)
	r.push(job("a", "1", score(1), replyTo(r.c, "one")), job("a", "2", score(2), replyTo(r.c, "two")), job("a", half, score(4), replyTo(r.c, "last")))
	bury := func(why string, payloads int) {
		t.Helper()
		got, flight := r.popOne("a")
		eq(t, "payloads", len(got.Payloads), payloads)
		n, err := r.claim.Bury(r.ctx, Burial{Flight: flight, ID: "a", Policy: Bury, Error: why})
		eq(t, "buried", fmt.Sprint(n, err), "1 <nil>")
	}
	first, second := strings.Repeat("first ", 100), strings.Repeat("second ", 100)
	bury(first, 3)
	_, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	r.push(job("a", half, score(3))) // the last one is for the next flight
	bury(second, 3)
	for token, want := range map[string]string{"one": second, "two": second, "last": first} {
		eq(t, token, r.reply(token), "buried\n"+want)
	}
	_, flight := r.popOne("a")
	r.ack(flight, "a")
	eq(t, "an ack that does not know of the call", r.reply("last"), "buried\n"+first)
}

// testAnswerOfItsFlight sends a late ack together with the ack of a newer flight of its id.
func testAnswerOfItsFlight(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.push(r.called("a", "first")...)
	_, first := r.popOne("a")
	r.ackAll(r.answered(first, "a", "first"))
	r.push(r.called("a", "second")...)
	_, second := r.popOne("a")
	late := r.answered(first, "a", "late")
	n, err := r.claim.Ack(r.ctx, r.answered(second, "a", "second"), late)
	eq(t, "acked", fmt.Sprint(n, err), "1 <nil>")
	eq(t, "first", r.reply("first"), "done\nfirst")
	eq(t, "second", r.reply("second"), "done\nsecond")
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(t, "states", st.states, map[string]string{"a": "second"})
	late.Rest = true
	n, err = r.claim.Ack(r.ctx, late)
	eq(t, "acked of a flight that is over", fmt.Sprint(n, err), "0 <nil>")
	eq(t, "second, later", r.reply("second"), "done\nsecond")
}

// testStatesExpire checks that an answer deletes up to 100 of the oldest states that have expired.
func testStatesExpire(t *testing.T, b *backend) {
	r := newRig(t, b)
	write := func(keep time.Duration, ids ...string) {
		t.Helper()
		for _, id := range ids {
			r.push(job(id, "1"))
		}
		for done := 0; done < len(ids); {
			p := r.pop(len(ids))
			acks := Acks{Flight: p.Flight, Rest: true}
			for _, job := range p.Jobs {
				acks.IDs = append(acks.IDs, job.ID)
				acks.Answers = append(acks.Answers, Answer{ID: job.ID, State: []byte(job.ID), SetState: true, StateFor: keep})
			}
			n, err := r.claim.Ack(r.ctx, acks)
			r.noErr(err)
			done += n
		}
	}
	left := func() int {
		t.Helper()
		st, err := readState(r.s, r.ctx)
		r.noErr(err)
		return len(st.states)
	}
	write(0, idsOf("old", 150)...)
	r.noErr(pass(r.s, r.ctx, time.Now().UnixMicro(), (2 * time.Hour).Microseconds()))
	write(0, "young")
	eq(t, "states that are kept for ever", left(), 151)
	write(time.Hour, "young")
	eq(t, "after an answer", left(), 51)
	write(time.Hour, "old3")
	eq(t, "after another", left(), 2)
	write(time.Hour, "young")
	eq(t, "after a third", left(), 2)
	r.push(job("young", "1"))
	_, flight := r.popOne("young")
	r.ackAll(Acks{Flight: flight, IDs: []string{"young"}, Answers: []Answer{{ID: "young", SetState: true}}})
	eq(t, "after one was deleted", left(), 1)
}

// testAnswersInParts checks that several scripts send answers that are too heavy for one, each with its own acks.
func testAnswersInParts(t *testing.T, b *backend) {
	r := newRig(t, b)
	ids := idsOf("id", 12)
	var jobs []lowkiq.Push
	for _, id := range ids {
		jobs = append(jobs, r.called(id, "t-"+id)...)
	}
	r.push(append(jobs, job("quiet", "1"), job("last", "1"))...)
	p := r.pop(13)
	rest := Acks{Flight: p.Flight, IDs: append([]string{"quiet"}, ids...), Rest: true}
	for i, id := range ids {
		answer := Answer{ID: id, Callers: 1, Result: []byte(strings.Repeat(id[len(id)-1:], lowkiq.MaxResultBytes)), SetState: i%2 == 0, State: []byte(id)}
		rest.Answers = append(rest.Answers, answer)
	}
	_, last := r.popOne("last")
	n, err := r.claim.Ack(r.ctx, rest, Acks{Flight: last, IDs: []string{"last"}, Answers: []Answer{{ID: "last", SetState: true, State: []byte("s")}}})
	eq(t, "acked", fmt.Sprint(n, err), "14 <nil>")
	for i, id := range ids {
		eq(t, "reply to "+id, r.reply("t-"+id), "done\n"+string(rest.Answers[i].Result))
	}
	st, err := readState(r.s, r.ctx)
	r.noErr(err)
	eq(t, "states", len(st.states), 7)
	eq(t, "left", len(st.jobs), 0)
}

// testReplyOnEachMaster checks that a caller may listen at another server of a Redis Cluster than the server of the
// shard.
func testReplyOnEachMaster(t *testing.T, b *backend) {
	r := newRig(t, b)
	var mu sync.Mutex // guards listening
	var listening []*redis.PubSub
	r.noErr(r.c.DB().EachMaster(r.ctx, func(ctx context.Context, master *redisdb.DB) error {
		sub := master.ForTests().(redis.UniversalClient).Subscribe(r.ctx, r.c.DB().Keys.Replies("test"))
		mu.Lock()
		defer mu.Unlock()
		listening = append(listening, sub)
		_, err := sub.Receive(ctx) // the confirmation
		return err
	}))
	r.push(r.called("a", "token")...)
	_, flight := r.popOne("a")
	r.ackAll(r.answered(flight, "a", "42"))
	for _, sub := range listening {
		defer sub.Close()
		msg, err := r.receive(sub)
		r.noErr(err)
		eq(t, "told", msg.Payload, "token\ndone\n42")
	}
}
