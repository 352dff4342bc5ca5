package web

import (
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Jobs that have failed and are due wait among the ready ones, and are no fresh ones in any figure.
func TestLateJobsAreFailed(t *testing.T) {
	w := newWorld(t, shared(t))
	var err error
	w.orders, err = w.client.Register(t.Context(), lowkiq.Queue{Name: "orders", Shards: 1})
	must(t, err)
	w.push(job("a"), job("b"), job("c"))
	claim, err := w.orders.Shard(0).Claim(t.Context(), "n1/01J.1", queue.Fresh, queue.Owner{})
	must(t, err)
	popped, err := claim.Pop(t.Context(), queue.PopRequest{IDs: 3, Bytes: 1 << 20})
	must(t, err)
	var nacks []queue.Nack
	for _, one := range popped.Jobs {
		nacks = append(nacks, queue.Nack{Flight: popped.Flight, ID: one.ID, Kind: queue.Retry, Error: "no stock"})
	}
	_, err = claim.Nack(t.Context(), nacks...)
	must(t, err)
	w.push(job("fresh"))
	expect(t, w.do("GET", "/api/v1/stats", ""), 200, `"orders":{"length":4,`, `"enqueued":4,"fresh":1,"retries":3,`)
	expect(t, w.do("GET", "/api/v1/queues/orders", ""), 200, `"jobs":{"ready":4,"scheduled":0,"retry":0,"in_flight":0,"blocked":0,"failed":3}`)
}
