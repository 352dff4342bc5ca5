package dashboard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Held jobs are among the figures of all queues; while there are none nothing is said of them. A held job's page leads to the holds.
func TestHeldJobsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fillQueueOnly()
	w.push(job("f1"), job("r1"))
	w.settle("orders")
	if page := w.get("/").Body.String(); strings.Contains(page, ">Held<") {
		t.Error("the overview speaks of held jobs, of which there are none")
	}
	claim, err := w.orders.Shard(0).Claim(t.Context(), "n1/01J.1", protocol.Fresh, protocol.Owner{})
	must(t, err)
	popped, err := claim.Pop(t.Context(), protocol.PopRequest{IDs: 1, Bytes: 1 << 20})
	must(t, err)
	_, err = claim.Nack(t.Context(), protocol.Nack{Flight: popped.Flight, ID: popped.Jobs[0].ID, Kind: protocol.Hold})
	must(t, err)
	w.settle("orders")
	expect(t, w.get("/"), 200, `<dt>Held</dt><dd>1</dd>`, `<th scope="col">Held</th>`, `<td data-name="held"><a href="./queues/orders/jobs?state=held" class="warn">1</a></td>`, `<td data-name="scheduled" class="zero">`)
	expect(t, w.get("/?sort=held"), 200, `aria-current="true">held`)
	expect(t, w.get(jobLink("orders", popped.Jobs[0].ID)), 200, `href="./queues/orders/rules#holds"`)
}

// TestPagerCounts checks that a table of several pages says which of its rows are on a page, and how many there are.
func TestPagerCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var names []string
	for i := range 2*rowsPerPage + 1 {
		names = append(names, fmt.Sprintf("queue-%03d", i))
		_, err := w.client.Register(t.Context(), lowkiq.Queue{Name: names[i], Shards: 1})
		must(t, err)
	}
	w.settle(names...)
	expect(t, w.get("/?page=2"), 200, ">51 to 100 of 101")
	expect(t, w.get("/?page=3"), 200, ">101 to 101 of 101")
}
