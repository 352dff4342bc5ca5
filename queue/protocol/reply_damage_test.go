package protocol_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// foreign is a channel that no call may name.
const foreign = "lk:{elsewhere}:to:n/1"

// addresses returns texts in place of a call's address, with their tokens. Replies that can be sent are
// kept, for a limited time.
func addresses(channel string) map[string]string {
	all := map[string]string{}
	for _, nobody := range []string{
		"r", "r ", "x", "rtok", "rtok 5", "rtok 5 ", "rtok x " + channel, "rtok -5 " + channel, "rtok 5.5 " + channel, "rtok 1e5 " + channel, "r 5 " + channel,
		"ftok 5 " + channel, "Rtok 5 " + channel, "r\x00", "\xff\xfe\xfd", strings.Repeat("r", 255), strings.Repeat("9", 255), "\x00L\x00\x00\x00",
	} {
		all[nobody] = ""
	}
	for rest, token := range map[string]string{
		" 0 " + channel: "zero", " 99999999999999999999999999 " + channel: "late", " 604800001 " + channel: "week", " 000000000001 " + channel: "noughts",
		" 60000 a channel with spaces": "spaces", " 60000 " + foreign: "foreign", " 60000 " + channel + "\x00\n": "lines", " 60000 \xff": "bytes",
		" 60000 " + strings.Repeat("c", 200): "long", " 60000 *": "all",
	} {
		all["r"+token+rest] = token
	}
	return all
}

// testReplyDamage puts all kinds of text in place of a call's address. Each script that ends its payload takes all of
// its steps, answers the other calls, and sends nothing to a foreign channel.
func testReplyDamage(t *testing.T, b *backend) {
	r := newRig(t, b)
	keys, rdb := r.s.Keys(), r.c.DB().ForTests().(redis.UniversalClient)
	heard := rdb.Subscribe(r.ctx, foreign, "a channel with spaces", "*")
	if _, err := heard.Receive(r.ctx); err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		r.noErr(heard.Close()) // by its ACL the user has the channels lk:* alone, in scripts, too
		heard = rdb.Subscribe(r.ctx, foreign)
	}
	defer heard.Close()
	channel := r.c.DB().Keys.Replies("test")
	bad, tokens := []string{}, map[string]string{}
	envelopes := map[string]string{"cut": "\x00L\x00\x05{}", "cut address": "\x00L\x00\x00\xffrtok 60000 " + channel}
	for address, token := range addresses(channel) {
		id := fmt.Sprint("bad", len(envelopes))
		envelopes[id], tokens[id] = string(envelope.Wrap("", address, []byte("data"))), token
	}
	for id := range envelopes {
		bad = append(bad, id)
	}
	slices.Sort(bad)
	ids := append(slices.Clone(bad), "good")
	// push writes the record of each id by hand.
	push := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			r.push(job(id, "data", replyTo(r.c, "good")))
			if stored, ok := envelopes[id]; ok {
				r.noErr(rdb.HSet(r.ctx, keys.Jobs, id, "a1234567\x00\x00"+stored).Err())
			}
		}
	}
	whole := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return strings.HasPrefix(id, "cut") })
	n := func(what string, want int, n int, err error) {
		t.Helper()
		eq(t, what, fmt.Sprint(n, err), fmt.Sprint(want, " <nil>"))
	}
	pop := func() (flight int64) {
		t.Helper()
		push(whole...)
		p := r.pop(len(whole))
		if len(p.Jobs) < len(whole) { // of one script that others share
			t.Fatalf("popped %d of %d, %q", len(p.Jobs), len(whole), p.Damaged)
		}
		return p.Flight
	}
	for _, end := range []struct {
		name, want string
		do         func()
	}{
		{"complete", "done\nx", func() {
			acks := Acks{Flight: pop(), IDs: whole}
			for _, id := range whole {
				acks.Answers = append(acks.Answers, Answer{ID: id, Callers: 1, Result: []byte("x"), SetState: true, State: []byte("s")})
			}
			acked, err := r.claim.Ack(r.ctx, acks)
			n("acked", len(whole), acked, err)
			eq(t, "states", rdb.HLen(r.ctx, keys.States).Val(), int64(len(whole)))
		}},
		{"skip", "buried\nexhausted", func() { r.buryAll(pop(), Skip, whole) }},
		{"bury", "buried\nexhausted", func() { r.buryAll(pop(), Bury, whole) }},
		{"kill", "buried\n", func() {
			push(ids...)
			killed, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, ids...)
			n("killed", len(ids), killed, err)
		}},
		{"kill the oldest", "buried\nexhausted", func() {
			r.buryAll(pop(), Block, whole)
			killed, err := browse.Of(r.q).BuryOldest(r.ctx, browse.StateBlocked, whole...)
			n("killed", len(whole), killed, err)
		}},
		{"delete", "deleted", func() {
			push(ids...)
			deleted, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...)
			n("deleted", len(ids), deleted, err)
		}},
		{"crowd", "deleted", func() { r.badCrowd(envelopes, bad, browse.Of(r.q).Delete) }},
		{"crowd that is killed", "buried\n", func() { r.badCrowd(envelopes, bad, browse.Of(r.q).Bury) }},
	} {
		r.noErr(rdb.Del(r.ctx, keys.ReplyTo("good")).Err())
		end.do()
		eq(t, end.name+": left", len(r.drain()), 0) // but the marks of what people have ended
		eq(t, end.name+": the good one", r.reply("good"), end.want)
		for id, token := range tokens {
			if token == "" || token == "zero" || token == "noughts" { // they are kept for a millisecond
				continue
			}
			left := rdb.PTTL(r.ctx, keys.ReplyTo(token)).Val()
			if r.reply(token) != end.want || left <= 0 || left > 7*24*time.Hour {
				t.Errorf("%s: %q: got the reply %q, kept for %v, want %q for a week at most", end.name, envelopes[id], r.reply(token), left, end.want)
			}
		}
		if exists := rdb.Exists(r.ctx, keys.ReplyTo("tok")).Val(); exists > 0 {
			t.Errorf("%s: the reply to what is no address of a call is %q", end.name, r.reply("tok"))
		}
		r.noErr2(browse.Of(r.q).Delete(r.ctx, browse.StateMorgue, append(ids, "crowd")...))
		st, err := readState(r.s, r.ctx)
		if err != nil || len(st.jobs)+len(st.morgue) > 0 {
			t.Fatalf("%s: left %v and %v, %v", end.name, st.jobs, st.morgue, err)
		}
	}
	r.noErr(rdb.Publish(r.ctx, foreign, "end").Err())
	for {
		msg, err := r.receive(heard)
		r.noErr(err)
		if msg.Payload == "end" {
			break
		}
		t.Errorf("%s was told %q", msg.Channel, msg.Payload)
	}
}

func (r *rig) buryAll(flight int64, policy Policy, ids []string) {
	r.t.Helper()
	var burials []Burial
	for _, id := range ids {
		burials = append(burials, Burial{Flight: flight, ID: id, Policy: policy, RetryCount: 25, Error: "exhausted"})
	}
	n, err := r.claim.Bury(r.ctx, burials...)
	eq(r.t, "buried", fmt.Sprint(n, err), fmt.Sprint(len(ids), " <nil>"))
}

// badCrowd puts such payloads into the spill, among others of an id, and ends the id.
func (r *rig) badCrowd(envelopes map[string]string, bad []string, end func(ctx context.Context, state browse.State, ids ...string) (int, error)) {
	r.t.Helper()
	keys, rdb := r.s.Keys(), r.c.DB().ForTests()
	r.push(job("crowd", "data", replyTo(r.c, "good")))
	r.crowds(40, 3, "crowd")
	for i, id := range bad {
		key := "\xbf\xf0\x00\x00\x00\x00\x00\x00" + fmt.Sprintf("%012d", 500000000900+i)
		r.noErr(rdb.ZAdd(r.ctx, keys.Spill, redis.Z{Member: "w5:crowd:" + key + envelopes[id]}).Err())
		r.noErr(rdb.HSet(r.ctx, keys.Spillx, "w5:crowd:"+bareOf(envelopes[id]), key).Err())
	}
	n, err := end(r.ctx, browse.Anywhere, "crowd")
	eq(r.t, "ended", fmt.Sprint(n, err), "1 <nil>")
}
