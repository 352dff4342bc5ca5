package protocol_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// holding asks for limits of groups, makes pushes that replace others, and searches, each as large as
// allowed.
func (w *worstOf) holding(t *testing.T, b *backend) {
	for _, c := range []struct{ payloads, size int }{{1, 10}, {32, 100}, {2, 1_000_000}, {200, 4000}} {
		w.coalescing(t, b, c.payloads, c.size)
	}
	w.grouping(t, b)
	for _, c := range []struct{ ids, payloads, size int }{{30_000, 1, 8}, {2000, 1, 16 << 10}, {20, 2000, 300}, {15, 1, 1_000_000}} {
		w.searching(t, b, c.ids, c.payloads, c.size)
	}
}

// coalescing pushes to ids with as many waiting payloads as a new rule may find.
func (w *worstOf) coalescing(t *testing.T, b *backend, payloads, size int) {
	r := newRig(t, b)
	ids := max(1, min(2000, 30<<20/(payloads*size)))
	w.what = fmt.Sprintf("%d ids, with %d payloads of %d bytes, coalesce: latest and debounce", ids, payloads, size)
	push := func(n int, text string) {
		var jobs []lowkiq.Push
		for i := range ids {
			for k := range n {
				jobs = append(jobs, job(fmt.Sprint("id", i), fmt.Sprint(strings.Repeat(text, size), k)))
			}
		}
		r.push(jobs...)
	}
	push(payloads, "a")
	r.rule(PushRules{Push: rules.Push{Coalesce: rules.CoalesceLatest, Debounce: rules.Debounce{Quiet: time.Second, Most: time.Minute}}})
	r.c.DB().ForTests().AddHook(w)
	push(1, "b")
	push(1, "c")
}

// grouping asks about as many groups as a request may have. As many instances hold ids of each as there may
// be nodes.
func (w *worstOf) grouping(t *testing.T, b *backend) {
	const nodes = 100
	r := newRig(t, b)
	w.what = fmt.Sprintf("%d groups with long names, of which %d instances hold ids", GroupsAtOnce, nodes)
	ask := func(node int, number int64) {
		req := GroupRequest{Instance: fmt.Sprintf("%s%d/1", strings.Repeat("n", 60), node), Number: number, Limit: rules.Limit{Concurrency: math.MaxInt32, Rate: rules.Rate{N: 1, Per: time.Hour}, Burst: 1000}}
		for i := range GroupsAtOnce {
			req.Groups = append(req.Groups, GroupWant{Group: fmt.Sprint(strings.Repeat("g", 500), i), New: 5, Back: 5})
		}
		_, err := r.c.AskGroups(r.ctx, r.q.Name, &req)
		r.noErr(err)
	}
	for node := range nodes {
		_, err := r.c.Leases().Take(r.ctx, fmt.Sprintf("%s%d/1", strings.Repeat("n", 60), node), []byte("{}"), []byte("{}"), time.Hour)
		r.noErr(err)
		ask(node, 1)
	}
	r.c.DB().ForTests().AddHook(w)
	for node := range 3 {
		ask(node, 2)
	}
}

// searching searches for a text that no job has.
func (w *worstOf) searching(t *testing.T, b *backend, ids, payloads, size int) {
	r := newRig(t, b)
	w.what = fmt.Sprintf("%d ids, with %d payloads of %d bytes, searched", ids, payloads, size)
	var jobs []lowkiq.Push
	for i := range ids {
		for k := range payloads {
			jobs = append(jobs, job(fmt.Sprint("id", i), fmt.Sprint(strings.Repeat("a", size), k)))
		}
	}
	r.push(jobs...)
	r.c.DB().ForTests().AddHook(w)
	for _, s := range []browse.Search{{Contains: "ab"}, {Tag: "vip"}, {Error: "boom"}, {Contains: "a"}} {
		_, err := browse.Of(r.q).Page(r.ctx, browse.Query{Range: browse.Range{Limit: 1000}, Search: s})
		r.noErr(err)
	}
	_, err := browse.Of(r.q).Tags(r.ctx, "", "")
	r.noErr(err)
}
