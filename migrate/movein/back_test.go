package movein

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/marshal"
	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// fresh is a queue in a new Redis, of this name.
func fresh(t testing.TB, url, name string) *protocol.Queue {
	t.Helper()
	client, err := protocol.Open(protocol.Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := client.Register(t.Context(), lowkiq.Queue{Name: name, Shards: 3})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// between is a mover of one process between an old Redis and a queue.
func between(t testing.TB, url string, s *rubystates.State, q *protocol.Queue, form Form) *Mover {
	t.Helper()
	m := mover(t, url, s, &target{}, nil)
	m.Import, m.Form, m.Keep = ImportInto(q), form, time.Hour
	m.SealSource = func(ctx context.Context, source string) error { return transfer.Seal(ctx, q, source) }
	m.ForgetSource = func(ctx context.Context, source string) error { return transfer.Forget(ctx, q, source) }
	return m
}

// movedState moves a state of plain jobs to a new queue.
func movedState(t testing.TB, from *old, to *redistest.Server, form Form) (rubystates.State, *protocol.Queue) {
	t.Helper()
	s := states(t, "fresh-001")[0]
	from.load(t, &s)
	q := fresh(t, to.URL(), "q")
	if _, err := between(t, from.server.URL(), &s, q, form).Move(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, q
}

// holds is what the old Redis has, as [target.shows] has it: all of it is moved out.
func holds(t testing.TB, from *old, s *rubystates.State) *target {
	t.Helper()
	got := &target{}
	m := mover(t, from.server.URL(), s, got, nil)
	forget := func() {
		if _, err := m.Old.SetWay(t.Context(), rubyqueue.Way{}); err != nil { // another form is no mistake here
			t.Fatal(err)
		}
	}
	forget()
	defer forget()
	if _, err := m.Move(t.Context()); err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	return got
}

// isEmpty wants nothing in a queue.
func isEmpty(t testing.TB, q *protocol.Queue, name string) {
	t.Helper()
	for _, morgue := range []bool{false, true} {
		err := transfer.Each(t.Context(), q, morgue, func(jobs []transfer.Kept) error { return fmt.Errorf("has %q yet", jobs[0].ID) })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What was moved and comes back is what it was, in both forms of payloads: some of the states, of each of the families that
// need a word of their own too, and for make test-all each. What a job was is what Ruby says of it, and for all states what
// a move finds before anything was moved. The two are one but for
//
//   - a death within a failure (window_push_back, window_buried): what comes back is the job with what the failure had done, as it was moved, and not what
//     Ruby's restore would have made of it. That this loses nothing is TestWindowsLoseNothing's;
//   - a payload that Ruby dumps in other bytes than it loads (redumped): those that were stored come back;
//   - an error with a codec: its text comes back as it is stored, turned around.
func TestBackIsWhatItWas(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	went := map[string]int{}
	for i, s := range rubystates.LoadAll(t) {
		apart := s.Family == "window_push_back" || s.Family == "window_buried" || s.Family == "redumped" || s.ErrorCodec != ""
		kind := fmt.Sprint(s.Family, s.ErrorCodec)
		empty := s.Name == "window_buried-012" // what was in flight lies in the morgue: nothing of it comes
		if i%tier.Of(97, 29, 1) != 0 && !empty && (!apart || went[kind] >= tier.Of(1, 2, 0)) {
			continue
		}
		went[kind]++
		from.load(t, &s)
		want := holds(t, from, &s).shows()
		if byRuby, _ := wants(t, &s); s.ErrorCodec == "" && !apart && byRuby.shows() != want {
			t.Errorf("%s: a move finds\n%.2000s\nRuby says\n%.2000s", s.Name, want, byRuby.shows())
		}
		from.load(t, &s)
		form := []Form{Bytes, JSON}[i%2]
		q := fresh(t, to.URL(), fmt.Sprint("q", i))
		moved, err := between(t, from.server.URL(), &s, q, form).Move(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		back, err := between(t, from.server.URL(), &s, q, form).MoveBack(t.Context(), q)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		if back.Jobs != moved.Jobs || back.Morgue != moved.Morgue || back.Left != 0 {
			t.Errorf("%s: moved %+v, back came %+v", s.Name, moved, back)
		}
		isEmpty(t, q, s.Name)
		if got := holds(t, from, &s).shows(); got != want {
			t.Errorf("%s (%s): back came\n%.2000s\nwant\n%.2000s", s.Name, form, got, want)
		}
		if left := from.keys(t, "migrate:"); len(left) > 0 {
			t.Errorf("%s: %q is left", s.Name, left)
		}
	}
	for _, kind := range []string{"window_push_back", "window_buried", "redumped", "error_codecreverse", "fresh"} {
		if went[kind] == 0 {
			t.Errorf("no state of %s went back", kind)
		}
	}
	t.Logf("%d families went back", len(went))
}

// keys are the names of keys that have this in them.
func (o *old) keys(t testing.TB, part string) []string {
	t.Helper()
	names, err := o.rdb.Keys(t.Context(), "*"+part+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// pushed pushes a payload to the new queue.
func pushed(t testing.TB, q *protocol.Queue, id, payload string, score float64) {
	t.Helper()
	if _, err := q.Push(t.Context(), lowkiq.Push{ID: id, Payload: []byte(payload), Score: &score, PerformAt: time.Unix(2_000_000_000, 0)}); err != nil {
		t.Fatal(err)
	}
}

// What was pushed to the new queue meanwhile goes back as Ruby would have dumped it.
func TestBackBringsWhatWasPushed(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, JSON)
	want, _ := wants(t, &s)
	id := want.order[0]
	data, err := marshal.Dump([]byte(`{"new":[1.5,null]}`))
	if err != nil {
		t.Fatal(err)
	}
	pushed(t, q, id, `{"new":[1.5,null]}`, 4e9)
	pushed(t, q, "another", `{"new":[1.5,null]}`, 7)
	pushed(t, q, "no JSON", "\x00", 7)
	var lefts []Left
	m := between(t, from.server.URL(), &s, q, JSON)
	m.OnLeft = func(l Left) { lefts = append(lefts, l) }
	back, err := m.MoveBack(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if len(lefts) != 1 || lefts[0].ID != "no JSON" || back.Left != 1 {
		t.Errorf("%+v stays: %v", back, lefts)
	}
	got := holds(t, from, &s)
	want.jobs[id].Payloads = append(want.jobs[id].Payloads, Payload{Score: 4e9, Data: data})
	another := got.jobs["another"]
	if another == nil || another.RetryCount != -1 || len(another.Payloads) != 1 || another.Payloads[0].Score != 7 ||
		string(another.Payloads[0].Data) != string(data) {
		t.Errorf("the id that was pushed is %+v", another)
	}
	delete(got.jobs, "another")
	if got, want := got.shows(), want.shows(); got != want {
		t.Errorf("back came\n%.2000s\nwant\n%.2000s", got, want)
	}
}

// What was handled does not come back, and what waits does.
func TestBackLeavesWhatWasHandled(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, Bytes)
	want, _ := wants(t, &s)
	gone := want.order[0]
	if _, err := browse.Of(q).Delete(t.Context(), browse.Anywhere, gone); err != nil { // for the old side the same
		t.Fatal(err)
	}
	if _, err := between(t, from.server.URL(), &s, q, Bytes).MoveBack(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	delete(want.jobs, gone)
	if got, want := holds(t, from, &s).shows(), want.shows(); got != want {
		t.Errorf("back came\n%.2000s\nwant\n%.2000s", got, want)
	}
}

// An id with more than one script takes comes back whole, in pieces.
func TestBackOfACrowdedID(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s := states(t, "fresh-001")[0]
	s.Keys, s.KeysBase64 = nil, nil
	from.load(t, &s)
	q := fresh(t, to.URL(), "q")
	const n = 5000
	var jobs []lowkiq.Push
	for i := range n {
		score := float64(i)
		jobs = append(jobs, lowkiq.Push{ID: "crowded", Payload: fmt.Append(nil, i), Score: &score})
	}
	if _, err := q.Push(t.Context(), jobs...); err != nil {
		t.Fatal(err)
	}
	back, err := between(t, from.server.URL(), &s, q, JSON).MoveBack(t.Context(), q)
	if err != nil || back.Jobs != 1 || back.Payloads != n {
		t.Errorf("back came %+v, %v", back, err)
	}
	isEmpty(t, q, "crowded")
	e := holds(t, from, &s).jobs["crowded"]
	if e == nil || len(e.Payloads) != n {
		t.Fatalf("back came %v", e)
	}
	for i, p := range e.Payloads {
		want, err := marshal.Dump(fmt.Append(nil, i))
		if err != nil || p.Score != float64(i) || string(p.Data) != string(want) {
			t.Fatalf("payload %d is %v %q, want %q", i, p.Score, p.Data, want)
		}
	}
}

// What is not safe is refused, and what a person has put aside stays.
func TestBackRefuses(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, Bytes)
	var lefts []Left
	m := between(t, from.server.URL(), &s, q, Bytes)
	m.OnLeft = func(l Left) { lefts = append(lefts, l) }
	want, _ := wants(t, &s)
	shard := q.Of(want.order[0])
	if _, err := shard.DB().Do(t.Context(), "block", "ZADD", shard.Keys().Blocked, 1, want.order[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := shard.DB().Do(t.Context(), "pop", "LPUSH", shard.Keys().Flight, "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.MoveBack(t.Context(), q); !errors.Is(err, ErrBusy) {
		t.Errorf("with a flight: %v, want %v", err, ErrBusy)
	}
	if _, err := shard.DB().Do(t.Context(), "end", "DEL", shard.Keys().Flight); err != nil {
		t.Fatal(err)
	}
	if _, err := m.MoveBack(t.Context(), q); err != nil || len(lefts) != 1 || lefts[0].ID != want.order[0] {
		t.Errorf("%v: %v stay, want the one that is blocked", err, lefts)
	}
}

// A way back that was killed is gone on with before anything is moved there again; one that is frozen takes nothing out any
// more when another has begun.
func TestBackIsOne(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s, q := movedState(t, from, to, Bytes)
	frozen, err := transfer.NewExport(t.Context(), q, "frozen")
	if err != nil {
		t.Fatal(err)
	}
	m := between(t, from.server.URL(), &s, q, Bytes)
	if _, err := m.Old.BeginRun(t.Context()); err != nil {
		t.Fatal(err)
	}
	var job []transfer.Kept
	if err := transfer.Each(t.Context(), q, false, func(jobs []transfer.Kept) error { job = jobs[:1]; return nil }); err != nil {
		t.Fatal(err)
	}
	restored, err := m.restoreJob(&job[0].Entry, nil)
	if err != nil {
		t.Fatal(err)
	}
	if job[0].Number, err = m.Old.Stage(t.Context(), job[0].ID, false, *restored); err != nil {
		t.Fatal(err)
	}
	if _, err := between(t, from.server.URL(), &s, q, Bytes).Move(t.Context()); !errors.Is(err, ErrGoingBack) {
		t.Errorf("moved there again: %v, want %v", err, ErrGoingBack)
	}
	if _, err := transfer.NewExport(t.Context(), q, "later"); err != nil {
		t.Fatal(err)
	}
	if _, err := frozen.Take(t.Context(), job); !errors.Is(err, transfer.ErrTaken) {
		t.Errorf("a frozen way back: %v, want %v", err, transfer.ErrTaken)
	}
	if _, err := between(t, from.server.URL(), &s, q, Bytes).MoveBack(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	want, _ := wants(t, &s)
	if got, want := holds(t, from, &s).shows(), want.shows(); got != want {
		t.Errorf("back came\n%.2000s\nwant\n%.2000s", got, want)
	}
}

// A process is killed at each request on the way back, to either Redis, before it and after it; another one goes on: each
// job is back once. But for make test-all, at some of the requests.
func TestBackKilledAnywhere(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	oldProxy, newProxy := redistest.NewProxy(t, from.server.Addr()), redistest.NewProxy(t, to.Addr())
	s := states(t, "in_flight-003")[0]
	const name = "q"
	direct := fresh(t, to.URL(), name)
	seen, want := 0, 0 // requests, and at which of them a cut is
	count := func([]string) bool { return false }
	back := func() error {
		client, err := protocol.Open(protocol.Config{Redis: newProxy.URL()})
		if err != nil {
			return err
		}
		defer client.Close()
		q, err := client.Register(t.Context(), lowkiq.Queue{Name: name, Shards: 3})
		if err != nil {
			return err
		}
		m := between(t, oldProxy.URL(), &s, q, JSON)
		defer m.Old.Close()
		_, err = m.MoveBack(t.Context(), q)
		return err
	}
	// round moves a state there, and back with a cut; it returns what the old Redis has then.
	round := func(cut func(func([]string) bool)) (string, error) {
		t.Helper()
		from.load(t, &s)
		there := between(t, from.server.URL(), &s, direct, JSON)
		defer there.Old.Close()
		if _, err := there.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		pushed(t, direct, "pushed", `{"a":1}`, 5)
		seen = 0
		for _, p := range []*redistest.Proxy{oldProxy, newProxy} {
			p.CutRequestOf(func([]string) bool { return false }) // an earlier cut may not be spent
		}
		cut(count)
		err := back()
		if err != nil {
			if again := back(); again != nil {
				t.Fatalf("again after %v: %v", err, again)
			}
		}
		isEmpty(t, direct, name)
		out := &target{}
		m := mover(t, from.server.URL(), &s, out, nil)
		defer m.Old.Close()
		if _, err := m.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.shows(), err
	}
	count = func(words []string) bool {
		if setsUp(words) {
			return false
		}
		seen++
		return want > 0 && seen == want
	}
	step, faults := tier.Of(20, 8, 1), 0
	for _, p := range []*redistest.Proxy{oldProxy, newProxy} {
		want = 0
		clean, err := round(p.CutRequestOf)
		if err != nil {
			t.Fatal(err)
		}
		requests := seen
		for n := 1; n <= requests; n += step {
			for _, cut := range []func(func([]string) bool){p.CutRequestOf, p.CutReplyOf} {
				want = n
				got, err := round(cut)
				if err != nil {
					faults++
				}
				if got != clean {
					t.Fatalf("after %v there is\n%.1500s\nwant\n%.1500s", err, got, clean)
				}
			}
		}
		t.Logf("%d requests, %d faults", requests, faults)
	}
	if faults < 5 {
		t.Errorf("%d faults were met", faults)
	}
}
