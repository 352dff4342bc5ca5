package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/transfer"

	"github.com/lowkiq/lowkiq"
)

var importStateTests = []testCase{
	{"Import_AmongWorkers", testImportAmongWorkers}, {"Import_IntoEveryState", testImportIntoEveryState}, {"Import_BesideDamage", testImportBesideDamage}, {"Import_ACrowd", testImportACrowd},
	{"Import_ManyShards", testImportManyShards}, {"Import_Forgotten", testImportForgotten}, {"Import_KeepsItsTime", testImportKeepsItsTime},
}

// testImportAmongWorkers runs workers beside producers and a source of imports, which repeats entries without an
// answer. Each payload is handled once, and the source's payloads in its order.
func testImportAmongWorkers(t *testing.T, b *backend) {
	r := newRig(t, b)
	const ids, entries = 6, 40
	random := rand.New(rand.NewPCG(1, 2))
	var all []transfer.Entry
	for k := range entries {
		for i := range ids {
			e := transfer.Entry{Number: int64(len(all) + 1), ID: fmt.Sprint("id", i), RetryCount: random.IntN(3) - 1, Error: "old"}
			for n := range 1 + random.IntN(3)*random.IntN(20) {
				e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(k), Data: fmt.Appendf(nil, "old %03d %03d", k, n)})
			}
			all = append(all, e)
		}
	}
	ctx, stop := context.WithTimeout(r.ctx, 3*patience)
	defer stop()
	var sending sync.WaitGroup
	sending.Go(func() {
		for from := 0; from < len(all); {
			to := min(len(all), from+1+random.IntN(12))
			again := max(0, from-random.IntN(15)) // as after a death
			if _, err := transfer.ImportInParts(ctx, r.q, 16, "old", all[again:to]...); err != nil {
				t.Errorf("import of %d to %d: %v", again, to, err)
				return
			}
			from = to
		}
	})
	sending.Go(func() {
		for k := range 3 * entries {
			if _, err := r.q.Push(ctx, job(fmt.Sprint("id", k%ids), fmt.Sprintf("new %03d", k))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	sent := make(chan struct{})
	go func() { sending.Wait(); close(sent) }()
	handled := map[string][]string{}
	for idle := false; !idle; {
		select {
		case <-sent:
			idle = true
		default:
		}
		for busy := true; busy && ctx.Err() == nil; {
			busy = r.workOn(handled)
			idle = idle && !busy
		}
	}
	for i := range ids {
		id := fmt.Sprint("id", i)
		var want, got []string
		for _, e := range all {
			if e.ID == id {
				for _, p := range e.Payloads {
					want = append(want, string(p.Data))
				}
			}
		}
		fresh := map[string]bool{}
		for _, data := range handled[id] {
			if strings.HasPrefix(data, "old") {
				got = append(got, data)
			} else if fresh[data] {
				t.Errorf("%s: %s was handled twice", id, data)
			}
			fresh[data] = true
		}
		eq(t, id, got, want)
		eq(t, id+": payloads", len(fresh), len(want)+3*entries/ids)
	}
	eq(t, "numbers of the source", r.c.DB().ForTests().HLen(r.ctx, r.s.Keys().From).Val(), 1)
}

// workOn pops once, and reports whether there was a job. Ids are done, fail, go back, or lose their owner.
func (r *rig) workOn(handled map[string][]string) (busy bool) {
	r.t.Helper()
	p, err := r.claim.Pop(r.ctx, PopRequest{IDs: 1 + rand.IntN(3), Bytes: 1 << 20, Slot: true})
	r.noErr(err)
	for _, j := range p.Jobs {
		switch rand.IntN(8) {
		case 0:
			r.nack(p.Flight, j.ID, Retry, j.RetryCount+1, 0)
		case 1:
			r.nack(p.Flight, j.ID, Return, 0, 0)
		case 2:
			r.own([]Cause{Self, Seize}[rand.IntN(2)])
			return true
		default:
			handled[j.ID] = append(handled[j.ID], dataOf(j.Payloads)...)
			eq(r.t, "acked", r.ack(p.Flight, j.ID), 1)
		}
	}
	return len(p.Jobs) > 0
}

// testImportIntoEveryState checks that an imported entry joins its id in each state, and that the audit finds no fault.
func testImportIntoEveryState(t *testing.T, b *backend) {
	r := newRig(t, b)
	takeLeases(t, r.c, "n/1", "n/2", "n/3", "n/4")
	r.push(job("held", "1"))
	_, flight := r.popOne("held")
	r.nack(flight, "held", Hold, -1, 0)
	r.everyState()
	ids := []string{"u", "held", "t", "b", "m", "d", "s", "r", "x", "l", "kept", "fresh"}
	number := int64(0)
	for round, change := range []func(*transfer.Entry){
		failed(3, "old", 2*time.Hour), failed(-1, "", time.Hour), failed(3, "old", -time.Hour), failed(3, "old", time.Hour), failed(-1, "", 0),
		func(e *transfer.Entry) { e.Morgue, e.Buried = true, time.Now().Add(-time.Hour).UnixMicro() },
	} {
		var entries []transfer.Entry
		for _, id := range ids {
			number++
			entries = append(entries, entry(number, id, fmt.Sprint("round", round), change))
		}
		r.imports(strings.Repeat("taken|", len(ids)-1)+"taken", entries...)
		for id, state := range map[string]browse.State{"held": browse.StateHeld, "b": browse.StateBlocked} {
			r.find(id, state)
		}
		suspects, crashes := r.quarantine()
		eq(t, "in quarantine", fmt.Sprint(suspects, crashes), "[u] map[u:0]")
		eq(t, fmt.Sprint("round ", round, ": faults"), linesOf(r.audit()), "")
		st, err := readState(r.s, r.ctx)
		r.noErr(err)
		for _, id := range []string{"r", "x", "l", "s"} {
			eq(t, fmt.Sprint("round ", round, ": ", id, " is stale"), st.stale[id], round < 2 || round == 3)
		}
	}
}

// testImportBesideDamage checks that an unreadable record refuses only its own entries, which come again once it is
// mended.
func testImportBesideDamage(t *testing.T, b *backend) {
	for name, record := range damages {
		r := damaged(t, b, record)
		takeLeases(t, r.c, "n/1")
		var entries []transfer.Entry
		for i, id := range []string{"ready", "fly", "blocked", "retry", "later", "morgue"} {
			for k, kind := range []string{"-bad", "-good"} {
				e := entry(int64(2*i+k+1), id+kind, "old", failed(1, "old", time.Hour))
				e.Morgue = id == "morgue"
				entries = append(entries, e)
			}
		}
		entries = append(entries, entry(20, "ready-bad", "x"))
		for range 2 {
			results, _ := transfer.Import(r.ctx, r.q, "old", entries...)
			for i, e := range entries {
				if bad := strings.HasSuffix(e.ID, "-bad"); bad != (results[i].Err != nil) || bad && !transfer.Refused(results[i].Err) {
					t.Errorf("%s: %s: got %v", name, e.ID, results[i].Err)
				}
			}
			if i := len(entries) - 1; !errors.Is(results[i].Err, transfer.ErrBehind) || !errors.Is(results[0].Err, ErrDamaged) {
				t.Errorf("%s: got %v and %v, want one that is damaged and one behind it", name, results[0].Err, results[i].Err)
			}
		}
		r.mend()
		results, err := transfer.Import(r.ctx, r.q, "old", entries...)
		for i, e := range entries {
			eq(t, name+": "+e.ID+" after the repair", fmt.Sprint(results[i].Before, err), fmt.Sprint(strings.HasSuffix(e.ID, "-good"), nil))
		}
		for _, f := range r.audit().Faults {
			if f.ID != "fly-bad" { // its record waits for the end of its flight
				t.Errorf("%s: %s", name, f)
			}
		}
	}
}

// testImportACrowd imports ids with as many payloads as the limits allow, and one more.
func testImportACrowd(t *testing.T, b *backend) {
	r := newRig(t, b)
	takeLeases(t, r.c, "n/1")
	crowd := func(number int64, id string, from, n int) transfer.Entry {
		e := transfer.Entry{Number: number, ID: id, RetryCount: -1}
		for i := range n {
			e.Payloads = append(e.Payloads, transfer.Payload{Score: float64((from + i) / 2), Data: fmt.Appendf(nil, "%05d", from+i)})
		}
		return e
	}
	all := lowkiq.MaxPayloads
	r.push(job("pushed", "new", score(0)), job("full", "new", score(0)))
	r.imports("taken|taken|too many payloads|taken", crowd(1, "fresh", 0, all), crowd(2, "pushed", 0, all-1), crowd(3, "full", 0, all), crowd(4, "half", 0, all/2))
	r.imports("taken|too many payloads|taken", crowd(5, "half", all/2, all/2), crowd(6, "half", all, 1), crowd(7, "fresh", 9000, 500))
	_, err := r.q.Push(r.ctx, job("fresh", "new"))
	eq(t, "a push to a full id", errors.Is(err, ErrTooManyPayloads), true)
	r.delete("full")
	r.imports("taken", crowd(3, "full", 0, all))
	eq(t, "faults", linesOf(r.audit()), "")
	got := map[string][]string{}
	for _, j := range r.drain() {
		got[j.ID] = append(got[j.ID], dataOf(j.Payloads)...)
	}
	var want []string
	for i := range all {
		want = append(want, fmt.Sprintf("%05d", i))
	}
	for id, first := range map[string][]string{"fresh": want, "half": want, "full": want, "pushed": slices.Concat(want[:2], []string{"new"}, want[2:all-1])} {
		if !slices.Equal(got[id], first) {
			t.Errorf("%s: got %d payloads in another order", id, len(got[id]))
		}
	}
}

// testImportManyShards checks that shards that need several calls get all of their entries, independently of the
// others.
func testImportManyShards(t *testing.T, b *backend) {
	q := newQueue(t, b.open(t), 7)
	var entries []transfer.Entry
	for i := range 400 {
		e := entry(int64(i+1), fmt.Sprint("id", i), "")
		for k := range 36 {
			e.Payloads = append(e.Payloads, transfer.Payload{Score: float64(k), Data: fmt.Append(nil, k)})
		}
		entries = append(entries, e)
	}
	for round := range 2 {
		results, err := transfer.Import(t.Context(), q, "old", entries...)
		if err != nil {
			t.Fatal(err)
		}
		for i, result := range results {
			if result.Before != (round > 0) {
				t.Errorf("entry %d: got %v at time %d", i+1, result, round)
			}
		}
		stats, err := q.Stats(t.Context())
		eq(t, "ready", fmt.Sprint(stats.Jobs.Ready, err), "400 <nil>")
	}
}

// testImportForgotten checks that a forgotten source leaves a mark. The mark refuses late entries, and is removed long
// after.
func testImportForgotten(t *testing.T, b *backend) {
	r := newRig(t, b)
	refused := entry(2, "b", "x", func(e *transfer.Entry) { e.Err = errors.New("not now") })
	for _, source := range []string{"old", "old/other"} {
		results, _ := transfer.Import(r.ctx, r.q, source, entry(1, "a", "x"), refused, entry(3, "c", "x"))
		eq(t, "refused", transfer.Refused(results[1].Err), true)
	}
	fields := func() (names []string) {
		for name := range r.c.DB().ForTests().HGetAll(r.ctx, r.s.Keys().From).Val() {
			names = append(names, strings.ReplaceAll(name, "\x00", "|"))
		}
		slices.Sort(names)
		return names
	}
	eq(t, "fields", fields(), []string{"import/old", "import/old/other", "import/old/other|b", "import/old|b"})
	for range 2 {
		r.noErr(transfer.Forget(r.ctx, r.q, "old"))
		eq(t, "fields", fields(), []string{"import/old", "import/old/other", "import/old/other|b"})
	}
	r.drain()
	results, err := transfer.Import(r.ctx, r.q, "old", entry(1, "a", "x"), entry(2, "b", "x"), entry(4, "d", "x"))
	for _, result := range results {
		eq(t, "a late entry", errors.Is(result.Err, transfer.ErrForgotten) && !transfer.Refused(result.Err), true)
	}
	eq(t, "late", errors.Is(err, transfer.ErrForgotten), true)
	eq(t, "drained", show(r.drain()...), "")
	_, err = transfer.Import(r.ctx, r.q, "old/other", entry(2, "b", "y"), entry(4, "d", "x"))
	r.noErr(err)
	eq(t, "drained", show(r.drain()...), "b[y] d[x]")
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().From, "import/old", fmt.Sprint("x ", time.Now().Add(-31*24*time.Hour).UnixMicro())).Err())
	r.noErr(transfer.Forget(r.ctx, r.q, "old/other"))
	eq(t, "fields after a month", fields(), []string{"import/old/other"})
	if err := transfer.Forget(r.ctx, r.q, ""); err == nil {
		t.Error("a source without a name was forgotten")
	}
}

// testImportKeepsItsTime checks that pushes of a queue that puts ids off do not move the time of an entry.
func testImportKeepsItsTime(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.rule(PushRules{Push: rules.Push{Debounce: rules.Debounce{Quiet: time.Minute, Most: time.Hour}}})
	r.push(job("due", "1"), job("was", "1"), job("fly", "1"))
	r.later()
	p := r.pop(3)
	r.ack(p.Flight, "was", "due")
	r.push(job("due", "2"))
	later := failed(-1, "", 5*time.Hour)
	r.imports("taken|taken|taken", entry(1, "due", "x", later), entry(2, "was", "x", later), entry(3, "fly", "x", later))
	r.push(job("due", "3"), job("was", "3"), job("fly", "3"))
	r.ack(p.Flight, "fly")
	for _, id := range []string{"due", "was", "fly"} {
		near(t, id, r.find(id, browse.StateScheduled).PerformAt, 5*time.Hour)
	}
}
