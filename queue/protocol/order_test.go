package protocol_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// TestBulkOrderWhileScriptsAreForgotten checks that the scripts of a push to one shard take effect in push order, or
// not at all. Meanwhile Redis forgets scripts, and other clients load them again in the midst of the pipeline (I3).
func TestBulkOrderWhileScriptsAreForgotten(t *testing.T) {
	tier.All(t)
	t.Parallel()
	r := newRig(t, &backend{url: redistest.Start(t).URL()})
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.c.DB().ForTests().ScriptFlush(r.ctx)
				r.c.DB().ForTests().ScriptLoad(r.ctx, r.c.DB().Scripts.Push.Text())
			}
		}
	})
	defer work.Wait()
	defer close(stop)
	for round := range 10 {
		var jobs []lowkiq.Push
		for i := range 8000 {
			jobs = append(jobs, job(fmt.Sprint("id", i%10), fmt.Sprint(i)))
		}
		r.push(jobs...)
		for _, j := range r.drain() {
			for i := 1; i < len(j.Payloads); i++ {
				if x, y := number(j.Payloads[i-1]), number(j.Payloads[i]); x > y {
					t.Fatalf("round %d: %s: got payload %d before %d, want push order", round, j.ID, x, y)
				}
			}
		}
	}
}
