package protocol_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/oklog/ulid/v2"

	"github.com/lowkiq/lowkiq"
)

// auditTests damage Redis by hand. The audit must report that fault and no other.
var auditTests = []testCase{
	{"Audit_Clean", testAuditClean},
	{"Audit_Faults", testAuditFaults},
	{"Audit_Cluster", testAuditCluster},
	{"Audit_Orphans", testAuditOrphans},
	{"Audit_LongReadyList", testAuditLongReadyList},
}

func (r *rig) audit(change ...func(*audit.Config)) audit.Report {
	r.t.Helper()
	var cfg audit.Config
	for _, f := range change {
		f(&cfg)
	}
	found, err := audit.Run(r.ctx, r.c, cfg)
	r.noErr(err)
	return found
}

func linesOf(a audit.Report) string {
	var lines []string
	for _, f := range a.Faults {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n")
}

// crowd pushes more payloads than a record holds, every second with a header.
func (r *rig) crowd(id string, n int) {
	r.t.Helper()
	for i := range n {
		p := job(id, fmt.Sprint("p", i))
		if i%2 == 1 {
			header("h", "1")(&p)
		}
		r.push(p)
	}
}

// everyState creates an id in each state: r ready, d due, t retry, b blocked, f in flight with a parked
// payload, m in the morgue, s crowded, x deleted, l deleted and pushed for later, u in quarantine. The id
// kept has a state alone.
func (r *rig) everyState() {
	r.t.Helper()
	for _, id := range []string{"t", "b", "m"} {
		r.push(job(id, id))
		_, flight := r.popOne(id)
		switch id {
		case "t":
			r.nack(flight, id, Retry, 0, time.Hour)
		case "b":
			r.bury(flight, id, Block)
		case "m":
			r.bury(flight, id, Bury)
		}
	}
	r.keep("kept", "state")
	r.push(job("u", "u"))
	r.popOne("u")
	r.own(Seize) // u was in flight alone: it goes in quarantine
	r.own(Seize)
	r.push(job("d", "d", in(time.Hour)))
	r.crowd("s", 40)
	r.push(job("r", "r"), job("x", "x"), job("l", "l"))
	_, err := browse.Of(r.q).Delete(r.ctx, browse.Anywhere, "x", "l")
	r.noErr(err)
	r.push(job("l", "l", in(time.Hour)))
}

// flying adds an id in flight with a parked payload, in a shard without quarantine.
func (r *rig) flying(id string) int64 {
	r.t.Helper()
	r.push(job(id, "first"))
	_, flight := r.popOne(id)
	r.push(job(id, "second"))
	r.noErr(r.claim.Note(r.ctx, Note{Flight: flight, ID: id, Note: lowkiq.Note{Progress: 0.5, State: []byte("half")}}))
	return flight
}

// keep gives an id a state.
func (r *rig) keep(id, state string) {
	r.t.Helper()
	r.push(job(id, id))
	_, flight := r.popOne(id)
	r.ackAll(Acks{Flight: flight, IDs: []string{id}, Answers: []Answer{{ID: id, SetState: true, State: []byte(state)}}})
}

func testAuditClean(t *testing.T, b *backend) {
	r := newRig(t, b)
	takeLeases(t, r.c, "n/1", "n/2", "n/3", "n/4")
	r.flying("f")
	if got := linesOf(r.audit()); got != "" {
		t.Errorf("with a flight:\n%s", got)
	}
	r.noErr2(r.claim.Release(r.ctx))
	r.own(Fresh)
	r.drain()
	empty := r.audit().Jobs
	r.everyState()
	got := r.audit(func(cfg *audit.Config) { cfg.Orphans = true })
	if linesOf(got) != "" || len(got.Unsettled) > 0 {
		t.Errorf("with every state: got %v unsettled and\n%s", got.Unsettled, linesOf(got))
	}
	eq(t, "queues, shards", fmt.Sprint(got.Queues, got.Shards), "1 1")
	eq(t, "jobs of an empty shard that is claimed", empty, 0)
	eq(t, "jobs that wait: not the buried, not the deleted one", got.Jobs, 7)
}

func (r *rig) noErr2(_ int, err error) {
	r.t.Helper()
	r.noErr(err)
}

// takeLeases gives instances a lease, so that their claims are no faults.
func takeLeases(t *testing.T, c *Client, instances ...string) {
	t.Helper()
	for _, name := range instances {
		if _, err := c.Leases().Take(t.Context(), name, []byte("{}"), []byte("{}"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
}

func testAuditFaults(t *testing.T, b *backend) {
	for _, one := range corruptions() {
		t.Run(strings.ReplaceAll(one.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := corrupted(t, b, one)
			got := r.audit()
			if len(got.Faults) != 1 {
				t.Fatalf("got %d faults, want one, %s:\n%s", len(got.Faults), one.want, linesOf(got))
			}
			f := got.Faults[0]
			if f.Kind != one.want || f.Queue != r.q.Name || f.Shard != 0 || f.ID != one.id || f.What == "" {
				t.Errorf("got %+v, want %s of %q", f, one.want, one.id)
			}
			if want := !one.left || one.wait; (f.Repair != "") != want {
				t.Errorf("%s: got repair %q, want one: %t", f.Kind, f.Repair, want)
			}
		})
	}
}

func testAuditCluster(t *testing.T, b *backend) {
	c := b.open(t)
	r := rigOn(t, c)
	r.own(Fresh) // by an instance that never had a lease
	kinds := func() string {
		var list []string
		for _, f := range r.audit().Faults {
			list = append(list, string(f.Kind)+" "+f.Queue+f.ID)
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	eq(t, "a claim of nobody", kinds(), "claim-unknown "+r.q.Name)
	// A process that has run for years, and a process that has just started. With both, nodes need some
	// time.
	old, young := "old/01BX5ZZKBKACTAV9WEVGEMMVRZ.1", "young/"+ulid.Make().String()+".1"
	takeLeases(t, c, "n/1", old, young)
	eq(t, "leased", kinds(), "")
	eq(t, "gone", r.audit().Gone, nil)
	for _, dead := range []string{"n/1", old, young} {
		r.noErr(c.Leases().End(r.ctx, dead))
	}
	eq(t, "dead", kinds(), "")
	eq(t, "gone", r.audit().Gone, []string{"n/1", old, young})
	eq(t, "gone, by an audit of one queue", r.audit(func(cfg *audit.Config) { cfg.Queues = []string{r.q.Name} }).Gone, r.audit().Gone)
	r.noErr(c.Leases().Drop(r.ctx, old)) // as nodes forget
	eq(t, "gone, but for one", r.audit().Gone, []string{"n/1", young})
	r.noErr(c.DB().ForTests().HSet(r.ctx, c.DB().Keys.Queues(), "bad", "{").Err())
	r.noErr(c.DB().ForTests().Set(r.ctx, c.DB().Keys.Record(), "{", 0).Err())
	r.noErr(c.DB().ForTests().RPush(r.ctx, c.DB().Keys.Leader(), "x").Err())
	eq(t, "registry and record", kinds(), "record-damaged , record-damaged , registry-damaged bad")
	r.noErr(c.DB().ForTests().HSet(r.ctx, c.DB().Keys.Rules(), "torn", `{"rev":1,`, "later", `{"rev":1,"set":{"colour":{"value":3}}}`).Err())
	r.noErr(c.DB().ForTests().HSet(r.ctx, c.DB().Keys.Recurring(), "tick", `{"edit":{"every":"1s"}}`).Err())
	r.noErr(c.DB().ForTests().Set(r.ctx, c.DB().Keys.Changes(), "x", 0).Err())
	eq(t, "what was set at run time", kinds(), "record-damaged , record-damaged , record-damaged , recurring-damaged , registry-damaged bad, rules-damaged later, rules-damaged torn")
	for _, key := range []string{c.DB().Keys.Rules(), c.DB().Keys.Recurring()} {
		r.noErr(c.DB().ForTests().Del(r.ctx, key).Err())
		r.noErr(c.DB().ForTests().Set(r.ctx, key, "x", 0).Err())
	}
	eq(t, "other types", kinds(), "record-damaged , record-damaged , record-damaged , recurring-damaged , registry-damaged bad, rules-damaged ")
	_, err := audit.Run(r.ctx, c, audit.Config{Queues: []string{"nothing"}})
	if err == nil || !strings.Contains(err.Error(), `unknown queue "nothing"`) {
		t.Errorf("audit of an unknown queue: got %v", err)
	}
}

func testAuditOrphans(t *testing.T, b *backend) {
	c := b.open(t)
	r := rigOn(t, c)
	takeLeases(t, c, "n/1")
	r.own(Fresh)
	r.push(job("a", "1"))
	keys := []string{
		strings.Replace(c.DB().Keys.Queues(), "queues", "nonsense", 1),
		c.DB().Keys.Shard("nowhere", 1, 0).Jobs,
		c.DB().Keys.Shard(r.q.Name, 2, 0).Jobs,
		c.DB().Keys.Shard(r.q.Name, 1, 1).Jobs,
		strings.TrimSuffix(r.s.Keys().Jobs, "jobs") + "other",
		r.s.Keys().ReplyTo("endless"),
	}
	for _, key := range keys {
		r.noErr(c.DB().ForTests().Set(r.ctx, key, 1, 0).Err())
	}
	r.noErr(c.DB().ForTests().Set(r.ctx, c.DB().With(c.Cluster()+"-other").Keys.Shard(r.q.Name, 1, 0).Jobs, 1, 0).Err()) // another cluster's
	r.push(r.called("called", "one", "two")...)
	p := r.pop(2)
	r.noErr2(r.claim.Ack(r.ctx, r.answered(p.Flight, "called", strings.Repeat("long", 100)))) // replies, and the text that they share
	if got := linesOf(r.audit()); got != "" {
		t.Errorf("without --orphans:\n%s", got)
	}
	got := r.audit(func(cfg *audit.Config) { cfg.Orphans = true })
	eq(t, "orphans", len(got.Faults), len(keys))
	for _, key := range keys {
		if !strings.Contains(linesOf(got), "key "+key+": ") {
			t.Errorf("key %s: not found in\n%s", key, linesOf(got))
		}
	}
}

// testAuditLongReadyList has a ready list that is longer than one reply.
func testAuditLongReadyList(t *testing.T, b *backend) {
	c := b.open(t)
	r := rigOn(t, c)
	takeLeases(t, c, "n/1")
	r.own(Fresh)
	for i := range 5 {
		for j := range 500 {
			r.push(job(fmt.Sprint(i, "-", j), "x"))
		}
	}
	if got := linesOf(r.audit()); got != "" {
		t.Fatalf("got\n%s", got)
	}
	r.noErr(c.DB().ForTests().LRem(r.ctx, r.s.Keys().Ready, 1, "2-250").Err())
	r.noErr(c.DB().ForTests().RPush(r.ctx, r.s.Keys().Ready, "0-3").Err())
	got := r.audit()
	eq(t, "faults", linesOf(got), fmt.Sprintf("shard %s/0, id \"0-3\": two-places: it is in ready and ready, want one of them\n"+
		"shard %s/0, id \"2-250\": no-entry: it has a record and is in no list, so it never runs", r.q.Name, r.q.Name))
	for _, f := range got.Faults {
		mended, err := audit.Repair(r.ctx, c, f)
		eq(t, "mended "+f.ID, fmt.Sprint(mended, err), "true <nil>")
	}
}
