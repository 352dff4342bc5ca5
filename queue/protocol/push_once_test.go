package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"
	"github.com/lowkiq/lowkiq/queue/rules"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// deliver is the machine's part for deliveries. Some come again, some after later ones.
func (m *machine) deliver(t *rapid.T) {
	d := Delivery{Source: rapid.SampledFrom([]string{"one", "two"}).Draw(t, "source"), Number: rapid.Int64Range(1, 12).Draw(t, "number")}
	job := drawPush(t)
	job.ReplyTo = m.drawAddress(t)
	m.step()
	of := m.of(job.ID)
	header, _ := lowkiq.NewHeader(job.Header)
	p := modelPayload{Data: storedWith(lowkiq.Payload{Header: header, Data: job.Payload}, job.ReplyTo), Score: float64(of.Now) / 1e6, Soft: true}
	if job.Score != nil {
		p.Score, p.Soft = *job.Score, false
	}
	at := int64(0)
	if !job.PerformAt.IsZero() {
		at = job.PerformAt.UnixMicro()
	}
	want := of.DeliverPayload(d.Source, d.Number, job.ID, p, at)
	result, err := m.q.Deliver(m.ctx, d, job)
	got := verdictOf(result)
	if errors.Is(err, ErrDelivered) {
		got = model.Before
	}
	same(t, "delivery", got, want)
}

var deliveryTests = []testCase{
	{"Deliver_Once", testDeliverOnce}, {"Deliver_RefusedComesAgain", testDeliverRefused}, {"Deliver_ToADeletedQueue", testDeliverDeleted},
}

// testDeliverOnce checks that a delivery is stored once, whichever client sends it. A later number does not wait for
// earlier numbers.
func testDeliverOnce(t *testing.T, b *backend) {
	r := newRig(t, b)
	for i, c := range []struct {
		source string
		number int64
		before bool
	}{{"s", 7, false}, {"s", 7, true}, {"s", 6, true}, {"s", 8, false}, {"other", 7, false}, {"s", 1 << 53, false}, {"s", 1<<53 - 1, true}} {
		_, err := r.q.Deliver(r.ctx, Delivery{c.source, c.number}, job("a", strings.Repeat("x", i+1)))
		if before := errors.Is(err, ErrDelivered); before != c.before || err != nil && !before {
			t.Errorf("%s %d: got %v, want it refused: %v", c.source, c.number, err, c.before)
		}
	}
	got, _ := r.popOne("a")
	eq(t, "payloads", len(got.Payloads), 4)
	for _, bad := range []Delivery{{"", 1}, {"s", 0}, {"s", 1<<53 + 1}, {strings.Repeat("s", 256), 1}} {
		if _, err := r.q.Deliver(r.ctx, bad, job("a", "")); err == nil {
			t.Errorf("%.20v: got no error", bad)
		}
	}
}

// testDeliverRefused checks that a refused delivery was not stored and may come again.
func testDeliverRefused(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules(r.q.Name, PushRules{Push: rules.Push{Payloads: 1}}))
	r.push(job("a", "1"))
	for range 2 {
		if _, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, job("a", "2")); !errors.Is(err, ErrTooManyPayloads) {
			t.Fatalf("a full id: got %v, want %v", err, ErrTooManyPayloads)
		}
	}
	_, flight := r.popOne("a")
	r.ack(flight, "a")
	_, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, job("a", "2"))
	r.noErr(err)
	if _, err := r.q.Deliver(r.ctx, Delivery{"s", 2}, job("", "2")); !errors.Is(err, ErrID) {
		t.Errorf("no id: got %v, want %v", err, ErrID)
	}
}

// testDeliverDeleted checks that the numbers of deliveries go with the shards of a deleted queue. A queue registered
// anew begins anew.
func testDeliverDeleted(t *testing.T, b *backend) {
	r := newRig(t, b)
	_, err := r.q.Deliver(r.ctx, Delivery{"s", 5}, job("a", "1"))
	r.noErr(err)
	_, err = r.claim.Release(r.ctx)
	r.noErr(err)
	nobody := func(context.Context) ([]string, error) { return nil, nil }
	_, err = remove.Delete(r.ctx, r.c, r.q.Name, remove.Deletion{Force: true, Handled: nobody})
	r.noErr(err)
	if n := r.c.DB().ForTests().Exists(r.ctx, r.s.Keys().From).Val(); n != 0 {
		t.Error("the numbers of a deleted shard are still there")
	}
	if _, err := r.q.Deliver(r.ctx, Delivery{"s", 6}, job("a", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("a deleted queue: got %v, want %v", err, lowkiq.ErrUnknownQueue)
	}
	q, err := r.c.Register(r.ctx, lowkiq.Queue{Name: r.q.Name, Shards: 1})
	r.noErr(err)
	_, err = q.Deliver(r.ctx, Delivery{"s", 1}, job("a", "1"))
	r.noErr(err)
}

// TestDeliverIsEncoded checks that deliveries go through middlewares and the codec.
func TestDeliverIsEncoded(t *testing.T) {
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	r := newRig(t, b)
	var seen []string
	r.noErr(r.c.SetRules(r.q.Name, PushRules{Middlewares: []Middleware{func(_ string, next Pusher) Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
			seen = append(seen, jobs[0].ID)
			jobs[0].Payload = append(jobs[0].Payload, '!')
			return next(ctx, jobs)
		}
	}}}))
	_, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, job("a", "x", in(-time.Second)))
	r.noErr(err)
	got, _ := r.popOne("a")
	eq(t, "payload", string(got.Payloads[0].Data), "x!")
	eq(t, "seen", seen, []string{"a"})
	r.noErr(r.c.SetRules(r.q.Name, PushRules{Middlewares: []Middleware{func(_ string, next Pusher) Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]Result, error) {
			return next(context.Background(), jobs)
		}
	}}}))
	if _, err := r.q.Deliver(r.ctx, Delivery{"s", 2}, job("a", "x")); err == nil || !strings.Contains(err.Error(), "middleware") {
		t.Errorf("a middleware that drops the context: got %v", err)
	}
}
