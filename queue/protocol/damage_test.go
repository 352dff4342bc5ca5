package protocol_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/remove"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/packed"
)

var damageTests = []testCase{{"Damage_BlindsNobody", testDamageBlindsNobody}, {"Damage_StopsNoAction", testDamageStopsNoAction}, {"Damage_StrandsNobody", testDamageStrandsNobody},
	{"Damage_FliesAside", testDamageFliesAside}, {"Damage_RefusesItsPush", testDamageRefusesItsPush}, {"Damage_OfAnEntryConcernsItsQueue", testDamageOfAnEntry}}

// damages has records that cannot be read.
var damages = map[string]string{
	"nonsense": "damaged", "empty": "", "short a": "a12", "short e": "e123456789", "no head": "j1 2", "no numbers": "j-1 x 1 1 0 2\n",
	"crowded": "s-1 x", "payload cut off": "j-1 1 2 2 0 3\n1 1:a", "error cut off": "j-1 1 1 1 900 2\n1 1:a",
}

// damaged returns a shard with a sound job in every state, and beside each of them a job with a broken
// record.
func damaged(t *testing.T, b *backend, record string) *rig {
	c := b.open(t)
	q := newQueue(t, c, 1)
	r := &rig{t: t, ctx: t.Context(), c: c, q: q, s: q.Shard(0)} // its state is broken: no check at the end
	r.own(Fresh)
	for _, id := range []string{"fly", "blocked", "retry", "morgue", "ready"} {
		r.push(job(id+"-bad", "1"), job(id+"-good", "1"))
	}
	p := r.pop(8)
	for _, kind := range []string{"-bad", "-good"} {
		r.bury(p.Flight, "blocked"+kind, Block)
		r.nack(p.Flight, "retry"+kind, Retry, 3, time.Hour)
		r.bury(p.Flight, "morgue"+kind, Bury)
	}
	r.push(job("later-bad", "1", in(time.Hour)), job("later-good", "1", in(time.Hour)), job("fly-bad", "2"))
	k := r.s.Keys()
	for _, id := range []string{"fly-bad", "blocked-bad", "retry-bad", "ready-bad", "later-bad"} {
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, k.Jobs, id, record).Err())
	}
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, k.Morgue, "morgue-bad", record).Err())
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, k.Parked, "fly-bad", record).Err())
	return r
}

// testDamageBlindsNobody checks that lists and pages show a broken record as damaged, and show the others.
func testDamageBlindsNobody(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		stats, err := r.q.Stats(r.ctx)
		r.noErr(err)
		eq(t, name+": jobs", stats.Jobs, Counts{Ready: 2, Scheduled: 2, Retry: 2, InFlight: 2, Blocked: 2, Failed: 2})
		for state, id := range map[browse.State]string{browse.StateReady: "ready", browse.StateScheduled: "later", browse.StateRetry: "retry", browse.StateInFlight: "fly", browse.StateBlocked: "blocked", browse.StateMorgue: "morgue"} {
			page, err := browse.Of(r.q).Page(r.ctx, browse.Query{State: state})
			if err != nil || len(page.Jobs) != 2 {
				t.Fatalf("%s: page of %s: got %v, %v, want two jobs", name, state, page.Jobs, err)
			}
			one, ok, err := browse.Of(r.q).Job(r.ctx, id+"-bad")
			if err != nil || !ok {
				t.Fatalf("%s: job %s-bad: got %v, %v, want it", name, id, ok, err)
			}
			for _, job := range append(page.Jobs, one) {
				// A page does not read payloads to their end.
				if bad := job.ID == id+"-bad"; job.State != state || (job.Damaged || job.Cut) != bad || job.Damaged != strings.HasPrefix(job.Error, "damaged record") {
					t.Errorf("%s: job %s: got state %s, damaged %t, error %q", name, job.ID, job.State, job.Damaged, job.Error)
				}
			}
		}
		for _, query := range []browse.Query{{}, {By: browse.ByID}, {By: browse.ByRetries}, {State: browse.StateBlocked, Kind: "boom"}} {
			_, err := browse.Of(r.q).Page(r.ctx, query)
			r.noErr(err)
		}
		for _, state := range []browse.State{browse.StateRetry, browse.StateBlocked, browse.StateMorgue} {
			found, err := browse.Of(r.q).Errors(r.ctx, state)
			r.noErr(err)
			eq(t, name+": kinds of errors of "+string(state), len(found.Groups), 2)
		}
	}
}

// testDamageStopsNoAction checks that an action leaves a broken record alone and handles the others.
func testDamageStopsNoAction(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		step, err := browse.Of(r.q).Bulk(r.ctx, browse.RunNow, browse.Query{})
		r.noErr(err)
		eq(t, name+": made due", step.Changed, 2)
		for _, place := range []string{r.s.Keys().Due, r.s.Keys().Retry} {
			n, err := r.c.DB().ForTests().ZCard(r.ctx, place).Result()
			r.noErr(err)
			eq(t, name+": left in "+place, n, 1)
		}
		step, err = browse.Of(r.q).Bulk(r.ctx, browse.Requeue, browse.Query{State: browse.StateMorgue})
		r.noErr(err)
		eq(t, name+": requeued", step.Changed, 1)
		step, err = browse.Of(r.q).Bulk(r.ctx, browse.BuryBlocked, browse.Query{State: browse.StateBlocked})
		r.noErr(err)
		eq(t, name+": killed", step.Changed, 1)
		step, err = browse.Of(r.q).Bulk(r.ctx, browse.Kill, browse.Query{})
		r.noErr(err)
		eq(t, name+": killed of all that wait", step.Changed, 4)
		step, err = browse.Of(r.q).Bulk(r.ctx, browse.Delete, browse.Query{})
		r.noErr(err)
		eq(t, name+": deleted", step.Changed, 3)
	}
}

// testDamageStrandsNobody ends a flight among broken records in the morgue and of parked payloads. Its ids and their
// neighbours are in a list afterwards (I2, I6).
func testDamageStrandsNobody(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		ids := []string{"skip", "bury", "retry", "return", "crash"}
		for _, id := range ids {
			r.push(job(id+"1", "1"), job(id+"2", "1"))
		}
		r.noErr(r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Jobs, "ready-bad").Err()) // no handler could be given it
		p := r.pop(20)
		for _, id := range ids {
			r.push(job(id+"1", "2"), job(id+"2", "2"))
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Parked, id+"1", record).Err())
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Morgue, id+"1", record).Err())
		}
		_, err := r.claim.Bury(r.ctx, Burial{Flight: p.Flight, ID: "skip1", Policy: Skip}, Burial{Flight: p.Flight, ID: "skip2", Policy: Skip},
			Burial{Flight: p.Flight, ID: "bury1", Policy: Bury}, Burial{Flight: p.Flight, ID: "bury2", Policy: Bury})
		r.noErr(err)
		_, err = r.claim.Nack(r.ctx, Nack{Flight: p.Flight, ID: "retry1", Kind: Retry}, Nack{Flight: p.Flight, ID: "retry2", Kind: Retry},
			Nack{Flight: p.Flight, ID: "return1", Kind: Return}, Nack{Flight: p.Flight, ID: "return2", Kind: Return})
		r.noErr(err)
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "max_crashes", 1).Err())
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Crashes, "crash1", 1).Err())
		r.noErr(r.c.DB().ForTests().LTrim(r.ctx, r.s.Keys().Flight, -2, -2).Err()) // crash1 alone
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Claim, "#1", 0, "#2", 1).Err())
		r.own(Seize)
		for _, f := range r.audit().Faults {
			left := f.ID == "crash2" || strings.HasPrefix(f.ID, "fly-") || f.ID == "ready-good" // this test cut their flight off
			if f.Kind == audit.NoEntry && !left {
				t.Errorf("%s: %s", name, f)
			}
		}
	}
}

// testDamageFliesAside checks that a pop sets unreadable records aside and returns the others. Payloads that were
// parked for such an id are handled.
func testDamageFliesAside(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		r.noErr(r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Parked, "fly-bad").Err())
		r.own(Self) // all of the first flight is ready again
		p := r.pop(8)
		eq(t, name+": set aside", slices.Sorted(slices.Values(p.Damaged)), []string{"fly-bad", "ready-bad"})
		eq(t, name+": handed out", jobIDs(p), []string{"fly-good", "ready-good"})
		eq(t, name+": acked", r.ack(p.Flight, "fly-good", "ready-good"), 2)
		aside, err := r.c.DB().ForTests().HGetAll(r.ctx, r.s.Keys().Aside).Result()
		r.noErr(err)
		eq(t, name+": kept", aside, map[string]string{"jobs:fly-bad": record, "jobs:ready-bad": record})

		r.push(job("alone", "1"), job("next", "1"))
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Jobs, "alone", record).Err())
		p = r.pop(1)
		eq(t, name+": set aside, a flight of its own", p.Damaged, []string{"alone"})
		eq(t, name+": next flight", jobIDs(p), []string{"next"})
		eq(t, name+": open flights", p.Open, []int64{p.Flight})
		r.push(job("alone", "2")) // it is a new job
		eq(t, name+": pushed anew", jobIDs(r.pop(1)), []string{"alone"})
	}
}

// jobIDs returns the ids of a flight, sorted.
func jobIDs(p Popped) (ids []string) {
	for _, job := range p.Jobs {
		ids = append(ids, job.ID)
	}
	slices.Sort(ids)
	return ids
}

// testDamageRefusesItsPush checks that a push to an id with an unreadable record is refused, and the others of the same
// push are stored.
func testDamageRefusesItsPush(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		results, err := r.q.Push(r.ctx, job("first", "1"), job("ready-bad", "2"), job("fly-bad", "3"), job("last", "1"))
		if !errors.Is(err, packed.ErrDamaged) {
			t.Errorf("%s: got %v, want %v", name, err, packed.ErrDamaged)
		}
		for i, bad := range []bool{false, true, true, false} {
			if got := results[i].Err; errors.Is(got, packed.ErrDamaged) != bad || (got == nil) == bad {
				t.Errorf("%s: job %d: got %v", name, i, got)
			}
		}
		eq(t, name+": handed out", jobIDs(r.pop(8)), []string{"first", "last", "ready-good"})
	}
}

// testDamageOfAnEntry checks that a damaged entry of the registry concerns its own queue. An error says what is wrong,
// where, and what to write, and nothing overwrites the entry. Once it is mended, everything works again.
func testDamageOfAnEntry(t *testing.T, b *backend) {
	for name, c := range map[string]struct{ entry, says string }{
		"cut off":         {`{"shards":1,"layout"`, "unexpected end of JSON input"},
		"nonsense":        {"\x00\xff", "invalid character"},
		"empty":           {"", "unexpected end of JSON input"},
		"no shards":       {`{"layout":1}`, "0 shards; the number must be between 1 and 10000"},
		"too many shards": {`{"shards":10001,"layout":1}`, "10001 shards; the number must be between 1 and 10000"},
		"beyond an int":   {`{"shards":99999999999999999999,"layout":1}`, "cannot unmarshal number"},
		"no layout":       {`{"shards":1}`, "layout 0; it must be at least 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, b)
			whole, err := r.c.Register(r.ctx, lowkiq.Queue{Name: "whole", Shards: 2})
			r.noErr(err)
			const right = `{"shards":1,"layout":1}`
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.c.DB().Keys.Queues(), "q", c.entry).Err())
			fresh := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
			before := r.dump()
			for _, client := range []*Client{fresh, r.c} { // the second one knew the queue
				entries, damaged, err := client.Registry().Read(r.ctx)
				r.noErr(err)
				eq(t, "read", entries, map[string]RegistryEntry{"whole": {Shards: 2, Layout: 1}})
				_, err1 := client.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1})
				_, err2 := client.Queue(r.ctx, "q")
				_, err3 := client.Push(r.ctx, "q", job("a", "1"))
				_, err4 := remove.Delete(r.ctx, client, "q", remove.Deletion{Force: true, Handled: func(context.Context) ([]string, error) { return nil, nil }})
				for door, err := range map[string]error{"the registry": damaged["q"], "register": err1, "open": err2, "push": err3, "delete": err4,
					"pause": client.Registry().Pause(r.ctx, "q"), "publish rules": client.Registry().Publish(r.ctx, "q")} {
					if !errors.Is(err, ErrEntryDamaged) || Transient(err) {
						t.Errorf("%s: got %v, want %v", door, err, ErrEntryDamaged)
						continue
					}
					for _, part := range []string{c.says, `queue "q"`, client.DB().Keys.Queues(), client.Redis(), `write {"shards":N,"layout":L} there`} {
						if !strings.Contains(err.Error(), part) {
							t.Errorf("%s: got %q, want %q in it", door, err, part)
						}
					}
				}
			}
			if _, err := r.q.Push(r.ctx, job("a", "1")); !errors.Is(err, ErrEntryDamaged) {
				t.Errorf("push to a queue known from before: got %v, want %v", err, ErrEntryDamaged)
			}
			report, err := audit.Run(r.ctx, fresh, audit.Config{Orphans: true})
			r.noErr(err)
			if len(report.Faults) != 1 || report.Faults[0].Kind != audit.RegistryDamaged || report.Faults[0].Repair != "" || report.Shards != 2 || !strings.Contains(report.Faults[0].What, c.says) {
				t.Errorf("audit: got %+v, want the one fault, for a person, and the shards of the other queue", report)
			}
			if done, err := audit.Repair(r.ctx, fresh, report.Faults[0]); done || err != nil {
				t.Errorf("repair: got %v, %v, want nothing done", done, err)
			}
			eq(t, "redis", r.dump(), before)
			_, err = whole.Push(r.ctx, job("a", "1"))
			r.noErr(err)
			r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.c.DB().Keys.Queues(), "q", right).Err())
			_, err = r.c.Queue(r.ctx, "q")
			r.noErr(err)
			r.push(job("a", "1"))
			eq(t, "jobs once it is mended", len(r.drain()), 1)
		})
	}
}
