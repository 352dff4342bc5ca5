package protocol_test

import (
	"fmt"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"

	"github.com/lowkiq/lowkiq"
)

var deletedTests = []testCase{
	{"Deleted_JobsKeepNobodyWaiting", testDeletedAhead},
}

// testDeletedAhead checks that deleted jobs keep no other job waiting. A pop that finds their tombstones looks on.
func testDeletedAhead(t *testing.T, b *backend) {
	r := newRig(t, b)
	var jobs []lowkiq.Push
	var ids []string
	for i := range 2500 {
		ids = append(ids, fmt.Sprint("id", i))
		jobs = append(jobs, job(ids[i], "1"))
	}
	r.push(append(jobs, job("a", "1"), job("b", "1"))...)
	n, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, ids...)
	eq(t, "deleted", fmt.Sprint(n, err), "2500 <nil>")
	_, flight := r.popOne("a")
	r.ack(flight, "a")
	r.popOne("b")
}
