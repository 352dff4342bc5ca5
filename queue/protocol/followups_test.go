package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// Follow-ups: what the end of a payload pushes to other queues.
var followUpTests = []testCase{
	{"FollowUp_UserErrors", testFollowUpUserErrors},
	{"FollowUp_GoesWithTheAck", testFollowUpAck},
	{"FollowUp_OfTheRule", testFollowUpRule},
	{"FollowUp_OfAMember", testFollowUpMember},
	{"FollowUp_ArrivesOnce", testFollowUpOnce},
	{"FollowUp_WaitsForAFullID", testFollowUpFull},
	{"FollowUp_IsLargerThanANewLimit", testFollowUpOverLimit},
	{"FollowUp_OldestAreDropped", testFollowUpDrop},
	{"FollowUp_HasABoundedError", testFollowUpError},
	{"FollowUp_IsRefused", testFollowUpRefused},
	{"Reserved_NamesBelongToLowkiq", testReserved},
	{"FollowUp_OfAQueueWithOtherShards", testFollowUpMoved},
	{"FollowUp_StopsADeletion", testFollowUpDeletion},
	{"FollowUp_NumbersRise", testFollowUpNumbers},
}

// otherQueue registers a further queue.
func (r *rig) otherQueue(name string, shards int) *Queue {
	r.t.Helper()
	q, err := r.c.Register(r.ctx, lowkiq.Queue{Name: name, Shards: shards})
	r.noErr(err)
	return q
}

// outgoing returns the follow-ups that wait in a shard.
func (r *rig) outgoing() []Outgoing {
	r.t.Helper()
	page := &OutgoingPage{Shard: r.s}
	r.c.ReadOutgoing(r.ctx, 10_000, 1<<30, page)
	r.noErr(page.Err)
	eq(r.t, "waiting", page.Waiting, len(page.All))
	stats, err := r.c.Stats(r.ctx, r.s)
	r.noErr(err)
	eq(r.t, "figure", stats[0].Outgoing, len(page.All))
	return page.All
}

// texts returns follow-ups as "queue/id payload", with the end of each that the rule made.
func texts(all []Outgoing) (list []string) {
	for _, o := range all {
		text := fmt.Sprintf("%s/%s %s", o.Queue, o.ID, o.Payload)
		if o.End != "" {
			text += " " + strings.ReplaceAll(o.End, "\n", ":")
		}
		list = append(list, text)
	}
	return list
}

// encode returns follow-ups as their queues store them.
func (r *rig) encode(all ...lowkiq.FollowUp) []FollowUp {
	r.t.Helper()
	stored, err := r.c.EncodeFollowUps(r.ctx, r.q.Name, 0, all)
	r.noErr(err)
	return stored
}

func then(queue, id, payload string, options ...func(*lowkiq.Push)) lowkiq.FollowUp {
	return lowkiq.FollowUp{Queue: queue, Push: job(id, payload, options...)}
}

// ship delivers all follow-ups that wait in the shard, as a relay does, each request twice.
func (r *rig) ship(q *Queue) (shipments []*Shipment) {
	r.t.Helper()
	by := map[*Shard]*Shipment{}
	for _, o := range r.outgoing() {
		to := q.Of(o.ID)
		if by[to] == nil {
			by[to] = &Shipment{From: r.s, Queue: q, To: to}
			shipments = append(shipments, by[to])
		}
		by[to].All = append(by[to].All, o)
	}
	r.c.DeliverOutgoing(repeated(r.ctx), shipments)
	return shipments
}

// testFollowUpAck checks that follow-ups are stored with the ack of their job, in their order, once.
func testFollowUpAck(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.c.DB().ForTests().AddHook(twice{})
	r.otherQueue("mail", 4)
	r.push(job("a", "1"), job("b", "2"))
	p := r.pop(2)
	due := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	acks := Acks{Flight: p.Flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(
		then("mail", "u2", "x"), then("mail", "u1", "y", score(7), func(p *lowkiq.Push) { p.PerformAt = due }), then("q", "a", "again"))}}}
	late := acks
	late.Flight, late.Answers = p.Flight+1, slices.Clone(acks.Answers)
	for _, ack := range []Acks{late, acks, acks} {
		_, err := r.claim.Ack(repeated(r.ctx), ack)
		r.noErr(err)
	}
	all := r.outgoing()
	const hops = "\x00L\x00\x0c{\"hops\":\"1\"}\x00"
	eq(t, "follow-ups", texts(all), []string{"mail/u2 " + hops + "x", "mail/u1 " + hops + "y", "q/a " + hops + "again"})
	eq(t, "score and due time", fmt.Sprint(all[1].Score, " ", all[1].At), fmt.Sprint(7, " ", due.UnixMicro()))
	if !(all[0].Number < all[1].Number && all[1].Number < all[2].Number) || time.Since(all[0].Since()).Abs() > time.Minute {
		t.Errorf("got the numbers %d, %d, %d, want rising microseconds of now", all[0].Number, all[1].Number, all[2].Number)
	}
	// A nack stores none, and the wrong owner stores none.
	r.nack(p.Flight, "b", Postpone, 0, time.Hour)
	acks.IDs, acks.Answers[0].ID = []string{"b"}, "b"
	_, err := r.claim.Ack(r.ctx, acks)
	r.noErr(err)
	eq(t, "after a late ack", len(r.outgoing()), 3)
	old := r.claim
	r.own(Seize)
	if !r.claim.Outgoing {
		t.Error("a claim of a shard with follow-ups does not say so")
	}
	if _, err := old.Ack(r.ctx, acks); !errors.Is(err, lowkiq.ErrFenced) {
		t.Errorf("a former owner: got %v, want it fenced", err)
	}
	eq(t, "after a fenced ack", len(r.outgoing()), 3)
}

// plain returns the payloads of a job without their headers.
func plain(j lowkiq.Job) (list []string) {
	for _, p := range j.Payloads {
		list = append(list, string(p.Data))
	}
	return list
}

// ends ends a payload of id a in each way, and calls see with the end that callers would hear.
func (r *rig) ends(push func(payload string), see func(payload, end string)) {
	r.t.Helper()
	flying := func(name string) int64 {
		push(name)
		_, flight := r.popOne("a")
		return flight
	}
	one := func(n int, err error) { r.t.Helper(); eq(r.t, "changed", fmt.Sprint(n, err), "1 <nil>") }
	r.ackAll(Acks{Flight: flying("done"), IDs: []string{"a"}, Answers: []Answer{{ID: "a", Callers: 1}}})
	see("done", "done")
	for _, policy := range []Policy{Skip, Bury} {
		r.bury(flying(string(policy)), "a", policy)
		see(string(policy), "buried\nexhausted")
	}
	n, err := r.claim.Bury(r.ctx, Burial{Flight: flying("some"), ID: "a", Policy: Bury, Places: []int{0}, Error: "never"})
	one(n, err)
	see("some", "buried\nnever")
	n, err = r.claim.Bury(r.ctx, Burial{Flight: flying("expired"), ID: "a", Policy: Drop, Expired: 1})
	one(n, err)
	see("expired", "expired")
	n, err = r.claim.Bury(r.ctx, Burial{Flight: flying("late"), ID: "a", Policy: Bury, Expired: 1, Error: "expired"})
	one(n, err)
	see("late", "buried\nexpired")
	n, err = r.claim.Bury(r.ctx, Burial{Flight: flying("cancelled"), ID: "a", Policy: Drop, Cancelled: true})
	one(n, err)
	see("cancelled", "deleted")
	flying("crash")
	r.own(Seize)
	_, err = r.claim.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1, MaxCrashes: 1, Slot: true})
	r.noErr(err)
	r.own(Seize)
	see("crash", "buried\ncrash: its worker died 1 times while it ran alone")
	push("killed")
	one(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a"))
	see("killed", "buried\n")
	r.bury(flying("blocked"), "a", Block)
	one(browse.Of(r.q).Bury(r.ctx, browse.StateBlocked, "a"))
	see("blocked", "buried\nexhausted")
	push("deleted")
	one(browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a"))
	see("deleted", "deleted")
	for i := range 2500 {
		push(fmt.Sprint("crowd", i))
	}
	one(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a"))
	for i := range 2500 {
		see(fmt.Sprint("crowd", i), "buried\n")
	}
}

// testFollowUpRule checks that each dead payload is a follow-up by the rule, in the form in which its queue stores it.
func testFollowUpRule(t *testing.T, b *backend) {
	r := newRig(t, b)
	var want []string
	push := func(payload string) { r.push(job("a", payload)) }
	r.ends(push, func(string, string) {})
	eq(t, "without the rule", len(r.outgoing()), 0)
	_, err := browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "a")
	r.noErr(err)
	_, err = browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "a")
	r.noErr(err)
	r.noErr(r.claim.StoreDeadTo(r.ctx, "alerts"))
	r.c.SetDeadTo("q", "alerts")
	r.ends(push, func(payload, end string) {
		if word, _, _ := strings.Cut(end, "\n"); word == "buried" || word == "expired" {
			want = append(want, "alerts/a "+payload+" "+strings.ReplaceAll(end, "\n", ":"))
		}
	})
	got := texts(r.outgoing())
	slices.Sort(got)
	slices.Sort(want)
	eq(t, "follow-ups", got, want)
	r.c.SetDeadTo("q", "")
	r.own(Seize)
	push("no rule any more")
	_, err = browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "a")
	r.noErr(err)
	eq(t, "after the rule", len(r.outgoing()), len(want))
}

// testFollowUpMember checks that each end of a workflow's member is a follow-up to its workflow.
func testFollowUpMember(t *testing.T, b *backend) {
	r := newRig(t, b)
	number := int64(0)
	push := func(payload string) {
		t.Helper()
		push := job("a", payload)
		push.ReplyTo = envelope.MemberAddress("import-42", payload, "")
		if strings.HasPrefix(payload, "crowd") {
			push.ReplyTo = envelope.MemberAddress("import-42", payload, envelope.Address(payload, time.Hour, "c"))
		}
		stored, err := r.c.EncodeMembers(r.ctx, []lowkiq.FollowUp{{Queue: "q", Push: push}})
		r.noErr(err)
		number++
		s := &Shipment{From: r.s, Queue: r.q, To: r.s, All: []Outgoing{{FollowUp: stored[0], Number: number}}}
		r.c.DeliverOutgoing(r.ctx, []*Shipment{s})
		r.noErr(s.Err)
	}
	var want []string
	r.ends(push, func(payload, end string) {
		word, _, _ := strings.Cut(end, "\n")
		want = append(want, "lowkiq.workflows/import-42 "+word+" "+payload)
	})
	got := texts(r.outgoing())
	slices.Sort(got)
	slices.Sort(want)
	eq(t, "follow-ups", got, want)
	eq(t, "the reply to a call of the same payload", r.reply("crowd7"), "buried\n")
}

// testFollowUpOnce checks that a follow-up arrives once, however often relays send it, and follow-ups of a shard for a
// shard arrive in order.
func testFollowUpOnce(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.c.DB().ForTests().AddHook(twice{})
	mail := r.otherQueue("mail", 4)
	var want []string
	for i := range 300 {
		r.push(job("a", fmt.Sprint(i)))
		_, flight := r.popOne("a")
		r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", fmt.Sprint(i)), then("mail", fmt.Sprint("u", i), "x"))}}})
		want = append(want, fmt.Sprint(i))
	}
	before := r.outgoing()
	for range 2 { // the first relay dies before it removes what it has delivered
		for _, s := range r.ship(mail) {
			r.noErr(s.Err)
			eq(t, "delivered", s.Delivered, len(s.All))
		}
	}
	for i, o := range before { // one that is late comes with a part
		gone, left, err := r.s.TrimOutgoing(repeated(r.ctx), o.Number)
		r.noErr(err)
		eq(t, "trimmed", fmt.Sprint(gone, left), fmt.Sprint(1, len(before)-i-1))
	}
	if n := r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Out).Val(); n != 0 {
		t.Error("the key out is there without follow-ups")
	}
	late := &Shipment{From: r.s, Queue: mail, To: mail.Of("u"), All: before[:1]}
	r.c.DeliverOutgoing(r.ctx, []*Shipment{late})
	eq(t, "a late relay", fmt.Sprint(late.Delivered, late.Err), "1 <nil>")
	stats, err := mail.Stats(r.ctx)
	r.noErr(err)
	eq(t, "ids", stats.Jobs.Ready, 301)
	owner, err := mail.Of("u").Claim(r.ctx, "n/1", Fresh, Owner{})
	r.noErr(err)
	popped, err := owner.Pop(r.ctx, PopRequest{IDs: 1000, Bytes: 1 << 30})
	r.noErr(err)
	for _, j := range popped.Jobs {
		if j.ID == "u" {
			eq(t, "payloads", plain(j), want)
		}
	}
}

// testFollowUpFull checks that no follow-up overtakes a refused follow-up of its source on the way to a shard.
func testFollowUpFull(t *testing.T, b *backend) {
	r := newRig(t, b)
	mail := r.otherQueue("mail", 1)
	r.noErr(r.c.SetRules("mail", PushRules{Push: rules.Push{Payloads: 2}}))
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(
		then("mail", "u", "1"), then("mail", "u", "2"), then("mail", "u", "3"), then("mail", "v", "4"), then("mail", "u", "5"))}}})
	for range 2 {
		s := r.ship(mail)[0]
		if s.Delivered != 2 || !errors.Is(s.Err, ErrTooManyPayloads) {
			t.Fatalf("got %d delivered, %v, want 2 and %v", s.Delivered, s.Err, ErrTooManyPayloads)
		}
	}
	owner, err := mail.Shard(0).Claim(r.ctx, "n/1", Fresh, Owner{})
	r.noErr(err)
	for _, want := range []string{"[1 2]", "[3 5]"} {
		popped, err := owner.Pop(r.ctx, PopRequest{IDs: 1, Bytes: 1 << 30})
		r.noErr(err)
		eq(t, "popped", fmt.Sprint(popped.Jobs[0].ID, plain(popped.Jobs[0])), "u"+want)
		_, err = owner.Ack(r.ctx, Acks{Flight: popped.Flight, IDs: []string{"u"}})
		r.noErr(err)
		s := r.ship(mail)[0]
		eq(t, "then", fmt.Sprint(s.Delivered, s.Err), "5 <nil>")
	}
}

// testFollowUpMoved checks that a follow-up that was delivered before its queue got another number of shards is not
// delivered again.
func testFollowUpMoved(t *testing.T, b *backend) {
	r := newRig(t, b)
	mail := r.otherQueue("mail", 1)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "1"), then("mail", "v", "2"))}}})
	all := r.outgoing()
	first := &Shipment{From: r.s, Queue: mail, To: mail.Of("u"), All: all[:1]}
	r.c.DeliverOutgoing(r.ctx, []*Shipment{first})
	r.noErr(first.Err)
	anew, err := r.c.Registry().Adopt("mail", fmt.Sprintf(`{"shards":1,"layout":2,"was":[{"shards":1,"layout":1,"at":%d}]}`, time.Now().UnixMilli()))
	r.noErr(err)
	s := &Shipment{From: r.s, Queue: anew, To: anew.Of("u"), All: all}
	r.c.DeliverOutgoing(r.ctx, []*Shipment{s})
	eq(t, "delivered", fmt.Sprint(s.Before, s.Delivered, len(s.All), s.Err), fmt.Sprint([]int64{all[0].Number}, 1, 1, nil))
}

// testFollowUpOverLimit checks that a follow-up beyond a limit that was lowered since goes into its id once that is
// empty, and the follow-ups behind it follow.
func testFollowUpOverLimit(t *testing.T, b *backend) {
	r := newRig(t, b)
	mail := r.otherQueue("mail", 1)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(
		then("mail", "u", strings.Repeat("x", 100)), then("mail", "u", strings.Repeat("y", 5000)), then("mail", "v", "z"))}}})
	r.c.Registry().SetLimits("mail", rules.Push{IDPayload: 1024, PayloadBytes: 1024})
	all := r.ship(mail)
	if all[0].Delivered != 1 || !errors.Is(all[0].Err, ErrTooManyBytes) {
		t.Errorf("to an id with a payload: got %d delivered, %v, want 1, %v", all[0].Delivered, all[0].Err, ErrTooManyBytes)
	}
	_, err := browse.Of(mail).Delete(r.ctx, browse.Anywhere, "u")
	r.noErr(err)
	all = r.ship(mail)
	if all[0].Delivered != 3 || all[0].Err != nil {
		t.Errorf("to an empty id: got %d delivered, %v, want 3", all[0].Delivered, all[0].Err)
	}
	if _, err := mail.Push(r.ctx, job("u", "more")); !errors.Is(err, ErrTooManyBytes) {
		t.Errorf("a push: got %v, want %v", err, ErrTooManyBytes)
	}
}

// testFollowUpDrop checks that the oldest follow-ups of all shards are listed and dropped, however large they are.
func testFollowUpDrop(t *testing.T, b *backend) {
	r := newRig(t, b)
	q, number := r.otherQueue("wide", 2), 0
	add := func(shard, bytes int) {
		t.Helper()
		number++
		r.noErr(r.c.DB().ForTests().XAdd(r.ctx, &redis.XAddArgs{Stream: q.Shard(shard).Keys().Out, ID: fmt.Sprint(number, "-0"),
			Values: []any{"q", "mail", "i", "u", "p", strings.Repeat("x", bytes), "s", "", "a", "", "e", ""}}).Err())
	}
	for range 3 {
		add(0, 600<<10) // a page has the first of them
	}
	add(1, 1)
	add(1, 1)
	for _, shard := range []int{0, 1} { // as the last number of the shard says
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, q.Shard(shard).Keys().Count, "out", number).Err())
	}
	list := func() (numbers []int64) {
		t.Helper()
		first, waiting, err := q.Outgoing(r.ctx, 1000)
		r.noErr(err)
		for _, o := range first {
			numbers = append(numbers, o.Number)
		}
		return append(numbers, int64(waiting))
	}
	eq(t, "the oldest and the number of all", list(), []int64{1, 5})
	dropped, err := q.DropOutgoing(r.ctx, 3)
	r.noErr(err)
	eq(t, "dropped", dropped, map[string]int{"mail": 3})
	eq(t, "left, and their number", list(), []int64{4, 5, 2})
	dropped, err = q.DropOutgoing(r.ctx, 100)
	r.noErr(err)
	eq(t, "dropped at last", dropped, map[string]int{"mail": 2})
}

// testFollowUpError checks that a dead payload keeps at most 1 KiB of its error, and of a Python traceback the last
// line.
func testFollowUpError(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.claim.StoreDeadTo(r.ctx, "alerts"))
	trace := "Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 1\n", 50) + "ValueError: no stock\n"
	for i, c := range []struct{ text, want string }{
		{"short", "buried\nshort"},
		{strings.Repeat("long ", 800), "buried\n" + strings.Repeat("long ", 800)[:1024]},
		{trace, "buried\nValueError: no stock"},
		{trace[:len(trace)-1] + strings.Repeat("!", 1500), "buried\n" + ("ValueError: no stock" + strings.Repeat("!", 1500))[:1024]},
	} {
		r.push(job("a", "1"), job("a", "2"))
		_, flight := r.popOne("a")
		n, err := r.claim.Bury(r.ctx, Burial{Flight: flight, ID: "a", Policy: Bury, Error: c.text})
		eq(t, "buried", fmt.Sprint(n, err), "1 <nil>")
		all := r.outgoing()
		eq(t, "follow-ups", len(all), 2*i+2)
		eq(t, "end", all[len(all)-1].End, c.want)
	}
}

// testFollowUpRefused checks that a follow-up that cannot be stored is refused before its job ends. Nobody outside can
// forge the end of a workflow's member.
func testFollowUpRefused(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.otherQueue("mail", 1)
	member := envelope.MemberAddress("w", "m", "")
	for name, c := range map[string]struct {
		hops   int
		source string
		then   lowkiq.FollowUp
		want   error
	}{
		"unknown queue": {0, "q", then("none", "a", ""), lowkiq.ErrUnknownQueue},
		"too many hops": {lowkiq.MaxHops, "q", then("mail", "a", ""), ErrHops},
		"last hop":      {lowkiq.MaxHops - 1, "q", then("mail", "a", ""), nil},
		"no id":         {0, "q", then("mail", "", ""), ErrID},
		"large":         {0, "q", then("mail", "a", strings.Repeat("x", 2<<20)), ErrPayloadSize},
		"urgent":        {0, "q", then("mail", "a", "", func(p *lowkiq.Push) { p.Urgent = true }), ErrFollowUp},
		"call":          {0, "q", then("mail", "a", "", replyTo(r.c, "token")), ErrFollowUp},
		"member":        {0, "q", then("mail", "a", "", func(p *lowkiq.Push) { p.ReplyTo = member }), ErrFollowUp},
		"headers":       {0, "q", then("mail", "a", "", func(p *lowkiq.Push) { p.Header = map[string]string{"x": strings.Repeat("x", 4090)} }), lowkiq.ErrHeader},
	} {
		stored, err := r.c.EncodeFollowUps(r.ctx, c.source, c.hops, []lowkiq.FollowUp{c.then})
		if !errors.Is(err, c.want) || c.want == nil && (err != nil || len(stored) != 1) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	for _, address := range []string{member, envelope.MemberAddress("w", "m", envelope.Address("t", time.Hour, "c"))} {
		forged := job("a", "", func(p *lowkiq.Push) { p.ReplyTo = address })
		if _, err := r.q.Push(r.ctx, forged); !errors.Is(err, ErrReplyTo) {
			t.Errorf("push to %q: got %v, want %v", address, err, ErrReplyTo)
		}
		if _, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, forged); !errors.Is(err, ErrReplyTo) {
			t.Errorf("delivery to %q: got %v, want %v", address, err, ErrReplyTo)
		}
		stored := envelope.Wrap("", address, []byte("data")) // data in the form of an envelope is data
		r.push(lowkiq.Push{ID: "b", Payload: stored})
		popped, flight := r.popOne("b")
		eq(t, "data", string(popped.Payloads[0].Data), string(stored))
		r.ackAll(Acks{Flight: flight, IDs: []string{"b"}, Answers: []Answer{{ID: "b", Callers: 1}}})
		eq(t, "follow-ups", len(r.outgoing()), 0)
	}
}

// testReserved checks that a user cannot register a built-in queue, or push to it by any way.
func testReserved(t *testing.T, b *backend) {
	r := newRig(t, b)
	if _, err := r.c.Register(r.ctx, lowkiq.Queue{Name: Workflows, Shards: 1}); !errors.Is(err, ErrReserved) {
		t.Errorf("Register: got %v, want %v", err, ErrReserved)
	}
	own, err := r.c.RegisterAny(r.ctx, lowkiq.Queue{Name: Workflows, Shards: 1})
	r.noErr(err)
	results, err := own.Push(r.ctx, job("a", "1"), job("b", "2"))
	if len(results) != 2 || !errors.Is(results[1].Err, ErrReserved) || !errors.Is(err, ErrReserved) {
		t.Errorf("Push: got %v, %v, want %v", results, err, ErrReserved)
	}
	if _, err := r.c.Push(r.ctx, Workflows, job("a", "1")); !errors.Is(err, ErrReserved) {
		t.Errorf("Push of the client: got %v, want %v", err, ErrReserved)
	}
	if _, err := r.c.Call(r.ctx, Workflows, job("a", "1")); !errors.Is(err, ErrReserved) {
		t.Errorf("Call: got %v, want %v", err, ErrReserved)
	}
	if _, err := r.c.EncodeFollowUps(r.ctx, "q", 0, []lowkiq.FollowUp{then(Workflows, "a", "")}); !errors.Is(err, ErrReserved) || !errors.Is(err, ErrFollowUp) {
		t.Errorf("follow-up: got %v, want %v", err, ErrReserved)
	}
	stats, err := own.Stats(r.ctx)
	r.noErr(err)
	eq(t, "jobs", stats.Jobs.Total(), 0)
	_, err = own.PushAny(r.ctx, job("a", "1"))
	r.noErr(err)
	_, err = r.c.EncodeFollowUps(r.ctx, Workflows, 0, []lowkiq.FollowUp{then(Workflows, "a", "")})
	r.noErr(err)
}

// testFollowUpDeletion checks that follow-ups that are not delivered stop a deletion, unless it is forced.
func testFollowUpDeletion(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.otherQueue("mail", 1)
	r.push(job("a", "1"))
	_, flight := r.popOne("a")
	r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "1"))}}})
	_, err := r.claim.Release(r.ctx)
	r.noErr(err)
	by := remove.Deletion{Handled: func(context.Context) ([]string, error) { return nil, nil }}
	if _, err := remove.Delete(r.ctx, r.c, "q", by); !errors.Is(err, remove.ErrNotEmpty) || !strings.Contains(err.Error(), "1 follow-ups that are not delivered") {
		t.Fatalf("got %v, want %v with the follow-up", err, remove.ErrNotEmpty)
	}
	if reply, err := r.s.Run(r.ctx, r.c.DB().Scripts.Freeze, "freeze", MovedMark(2), "quiet", ""); err != nil || !strings.HasPrefix(fmt.Sprint(reply), "[BUSY follow-ups") {
		t.Errorf("freeze for another number of shards: got %v, %v, want it to wait for the follow-ups", reply, err)
	}
	by.Force = true
	gone, err := remove.Delete(r.ctx, r.c, "q", by)
	r.noErr(err)
	eq(t, "deleted", gone.Outgoing, 1)
	if n := r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().Out).Val(); n != 0 {
		t.Error("the follow-ups of a deleted shard are still there")
	}
}

// testFollowUpNumbers checks that numbers rise after all follow-ups are gone, after a jump of the clock, and after
// Redis has lost the last number.
func testFollowUpNumbers(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.otherQueue("mail", 1)
	db, last := r.c.DB().ForTests(), int64(0)
	far := time.Now().Add(time.Hour).UnixMicro()
	for i, prepare := range []func(){
		func() {},
		func() { _, _, err := r.s.TrimOutgoing(r.ctx, r.outgoing()[0].Number); r.noErr(err) },
		func() { r.noErr(db.HSet(r.ctx, r.s.Keys().Count, "out", far).Err()); last = far },
		func() {
			r.noErr(db.HSet(r.ctx, r.s.Keys().Count, "out", "damaged").Err())
			db.Del(r.ctx, r.s.Keys().Out)
			last = 0
		},
	} {
		prepare()
		r.push(job("a", "1"))
		_, flight := r.popOne("a")
		r.ackAll(Acks{Flight: flight, IDs: []string{"a"}, Answers: []Answer{{ID: "a", Then: r.encode(then("mail", "u", "1"))}}})
		all := r.outgoing()
		if got := all[len(all)-1].Number; got <= last {
			t.Errorf("step %d: got number %d, want more than %d", i, got, last)
		} else {
			last = got
		}
	}
	r.noErr(db.HSet(r.ctx, r.s.Keys().Count, "out", "damaged").Err())
	eq(t, "follow-ups beside a damaged number", len(r.outgoing()), 1)
}

// testFollowUpUserErrors checks that an error of a middleware is not Transient. A caller that repeats the encoding until it
// succeeds would wait without end. The error does not mean that the follow-up can never be stored.
func testFollowUpUserErrors(t *testing.T, b *backend) {
	var fails error
	r := rigOn(t, b.open(t, func(cfg *Config) {
		cfg.Middlewares = []Middleware{func(_ string, next Pusher) Pusher {
			return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
				if fails != nil {
					return nil, fails
				}
				return next(ctx, jobs)
			}
		}}
	}))
	for _, fails = range []error{context.DeadlineExceeded, io.EOF, &net.OpError{Op: "dial", Err: errors.New("refused")}} {
		_, err := r.c.EncodeFollowUps(r.ctx, "q", 0, []lowkiq.FollowUp{then("q", "a", "")})
		if !errors.Is(err, fails) || Transient(err) || errors.Is(err, ErrFollowUp) {
			t.Errorf("got %v, transient %v, want %v that is neither transient nor final", err, Transient(err), fails)
		}
	}
}

// TestEncoderAsksNoRedis checks that FollowUpEncoder reads what it needs of Redis, so that its function calls only code of
// users.
func TestEncoderAsksNoRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := &backend{url: server.URL()}
	cluster := func(cfg *Config) { cfg.Cluster = "one" }
	newQueue(t, b.open(t, cluster), 1)
	proxy := redistest.NewProxy(t, server.Addr())
	c := (&backend{url: proxy.URL()}).open(t, cluster)
	encode, err := c.FollowUpEncoder(t.Context(), "orders", 0, []lowkiq.FollowUp{then("q", "a", "1")})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	proxy.DropAll()
	if all, err := encode(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("got %v, %v, want a follow-up", all, err)
	}
}
