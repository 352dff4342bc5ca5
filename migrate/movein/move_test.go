package movein

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

// wants is what of a state comes into the new queue as Ruby says it is, as [target.shows] has it, and how many
// stay.
func wants(t *testing.T, s *rubystates.State) (want *target, stay int) {
	t.Helper()
	number := func(text string) float64 {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	want = &target{taken: map[string]int64{}, jobs: map[string]*Entry{}}
	add := func(jobs []rubystates.Job, morgue bool) {
		for _, j := range jobs {
			at, err := toMicros(number(j.PerformIn + j.UpdatedAt))
			e := Entry{ID: j.Raw(), Morgue: morgue, RetryCount: -1}
			if e.Error, _ = j.Failure(); morgue {
				e.Buried = at
			} else {
				e.Due, e.RetryCount = at, int(number(j.RetryCount.String()))
			}
			bad := err != nil || e.ID == "" || len(e.ID) > 512 || len(j.Payloads) > DefaultLimits.Payloads
			for _, p := range j.Payloads {
				score := number(p.Score)
				if p.InFlightScore != nil {
					score = min(score, number(*p.InFlightScore))
				}
				bad = bad || score-score != 0 || len(p.Bytes) > DefaultLimits.Payload
				e.Payloads = append(e.Payloads, Payload{Score: score, Data: p.Bytes})
			}
			if bad {
				stay++
				continue
			}
			want.merge(e)
		}
	}
	add(s.Expect.Jobs, false)
	add(s.Expect.Morgue, true)
	return want, stay
}

// States are moved and compared with what Ruby says of them: every fifth, with -short fewer, and for make test-all each.
// Those of a death within a failure, and of texts that are turned around, are package rubyqueue's.
func TestStatesAreMoved(t *testing.T) {
	from := start(t)
	for i, s := range rubystates.LoadAll(t) {
		if i%tier.Of(17, 5, 1) != 0 && s.Family != "limits" || s.Family == "window_push_back" || s.Family == "window_buried" ||
			s.Family == "redumped" || s.ErrorCodec != "" {
			continue
		}
		from.load(t, &s)
		var lefts []Left
		got := &target{}
		m := mover(t, from.server.URL(), &s, got, &lefts)
		report, err := m.Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved, err := m.Move(t.Context())
		if err != nil {
			t.Fatal(s.Name, err)
		}
		want, stay := wants(t, &s)
		if got, want := got.shows(), want.shows(); got != want {
			t.Errorf("%s: moved\n%.2000s\nwant\n%.2000s", s.Name, got, want)
		}
		if len(lefts) != stay {
			t.Errorf("%s: %d stay, want %d: %.300v", s.Name, len(lefts), stay, lefts)
		}
		if moved.Payloads > report.Payloads || moved.Jobs+moved.Morgue != len(got.jobs) || report.Left != stay {
			t.Errorf("%s: found %+v, moved %+v, there are %d", s.Name, report, moved, len(got.jobs))
		}
		if came := slices.DeleteFunc(got.order, func(name string) bool { return got.jobs[name].Morgue }); !slices.Equal(came, inOrder(t, &s, came)) {
			t.Errorf("%s: jobs came in the order %q", s.Name, came)
		}
		m.Old.Close()
	}
}

// inOrder are the ids in the order of Ruby's due times, then of the ids.
func inOrder(t *testing.T, s *rubystates.State, ids []string) []string {
	t.Helper()
	at := map[string]float64{}
	for _, j := range s.Expect.Jobs {
		due, err := strconv.ParseFloat(j.PerformIn, 64)
		if err != nil {
			t.Fatal(err)
		}
		at[j.Raw()] = due
	}
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(at[a], at[b]), strings.Compare(a, b)) })
	return ids
}

// A process is killed at each request to the old Redis, before it and after it, and at each call of the new
// queue; another one goes on.
func TestKilledAnywhere(t *testing.T) {
	from := start(t)
	proxy := redistest.NewProxy(t, from.server.Addr())
	all := states(t, "in_flight-003", "morgue-001", "walk-007")
	all = all[:tier.Of(1, 1, len(all))]
	for _, s := range all {
		from.load(t, &s)
		if _, err := mover(t, proxy.URL(), &s, &target{}, nil).Move(t.Context()); err != nil { // so that Redis knows the scripts
			t.Fatal(err)
		}
		from.load(t, &s)
		clean := &target{}
		requests := 0
		proxy.CutRequestOf(func(words []string) bool {
			if !setsUp(words) {
				requests++
			}
			return false
		})
		if _, err := mover(t, proxy.URL(), &s, clean, nil).Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		if requests < 10 {
			t.Fatalf("%s: a run sends %d requests", s.Name, requests)
		}
		for n := 1; n <= requests; n++ {
			for _, cut := range []func(func([]string) bool){proxy.CutRequestOf, proxy.CutReplyOf} {
				killed(t, from, proxy, &s, clean, func(*target) {
					seen := 0
					cut(func(words []string) bool {
						if !setsUp(words) {
							seen++
						}
						return seen == n
					})
				})
			}
		}
		for n := 1; n <= clean.calls; n++ {
			for _, after := range []bool{false, true} {
				killed(t, from, proxy, &s, clean, func(at *target) { at.failAt, at.after = n, after })
			}
		}
	}
}

// setsUp tells requests about the connection itself, which go-redis sends again.
func setsUp(words []string) bool {
	return len(words) > 0 && slices.Contains([]string{"HELLO", "CLIENT", "SELECT", "AUTH"}, strings.ToUpper(words[0]))
}

// killed moves a state with a fault, and then again without, and compares with a run that had none.
func killed(t *testing.T, from *old, proxy *redistest.Proxy, s *rubystates.State, clean *target, fault func(*target)) {
	t.Helper()
	from.load(t, s)
	got := &target{}
	fault(got)
	_, first := mover(t, proxy.URL(), s, got, nil).Move(t.Context())
	if first == nil {
		t.Fatalf("%s: the fault was not met", s.Name)
	}
	got.failAt = 0
	if _, err := mover(t, proxy.URL(), s, got, nil).Move(t.Context()); err != nil {
		t.Fatalf("%s: again after %v: %v", s.Name, first, err)
	}
	if got, want := got.shows(), clean.shows(); got != want {
		t.Errorf("%s: after %v there is\n%.1500s\nwant\n%.1500s", s.Name, first, got, want)
	}
}

// A payload that was handled before the process was killed is not handled again; without numbers it is.
func TestHandledIsNotMovedAgain(t *testing.T) {
	from := start(t)
	s := states(t, "in_flight-003")[0]
	for _, forgetful := range []bool{false, true} {
		from.load(t, &s)
		got := &target{worked: true, forgetful: forgetful, failAt: 1, after: true}
		if _, err := mover(t, from.server.URL(), &s, got, nil).Move(t.Context()); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if _, err := mover(t, from.server.URL(), &s, got, nil).Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got.runs)
		if twice := len(slices.Compact(slices.Clone(got.runs))) < len(got.runs); twice != forgetful {
			t.Errorf("payloads were handled twice: %t; the new queue knows numbers: %t", twice, !forgetful)
		}
	}
}

// What the new queue refuses is put back, is listed, and comes with a later run.
func TestRefusedStays(t *testing.T) {
	from := start(t)
	for _, s := range states(t, "in_flight-003", "morgue-001") {
		from.load(t, &s)
		want, _ := wants(t, &s)
		var lefts []Left
		got := &target{refuses: errors.New("too many payloads")}
		moved, err := mover(t, from.server.URL(), &s, got, &lefts).Move(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(lefts) != len(want.jobs) || moved.Left != len(want.jobs) || moved.Jobs != 0 {
			t.Errorf("%s: %d of %d are listed; moved: %+v", s.Name, len(lefts), len(want.jobs), moved)
		}
		got.refuses = nil
		if _, err := mover(t, from.server.URL(), &s, got, nil).Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := got.shows(), want.shows(); got != want {
			t.Errorf("%s: then there is\n%.1500s\nwant\n%.1500s", s.Name, got, want)
		}
	}
}

// A worker of Ruby's that starts while the move follows is found by what it takes, before that is moved; what it has stays
// its own.
func TestAWorkerThatStartsIsFound(t *testing.T) {
	from := start(t)
	s := states(t, "in_flight-003")[0]
	for name, took := range map[string][]any{
		"in flight":  {"HSET", "processing:ids_with_perform_in:1", "popped", "1"},
		"handled":    {"INCR", "processed"},
		"has taken":  {"HSET", "processing_length_by_shard", "1", "7"},
		"of nothing": nil,
	} {
		from.load(t, &s)
		got := &target{}
		m := mover(t, from.server.URL(), &s, got, nil)
		m.KeepOpen = true
		if err := m.MarkFlights(t.Context()); err != nil {
			t.Fatal(err)
		}
		before, err := m.WatchWorkers(t.Context(), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := func(name string) string { return "lowkiq:A:v1:" + s.QueueName + ":" + name }
		if took != nil {
			took[1] = key(took[1].(string))
			if err := from.rdb.Do(t.Context(), took...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if name == "in flight" {
			from.rdb.Do(t.Context(), "ZADD", key("processing:payloads:popped"), 1, "x")
			if _, err := m.Move(t.Context()); !errors.Is(err, ErrWorking) {
				t.Errorf("a move takes what a worker has: %v, want %v", err, ErrWorking)
			}
			if n := from.rdb.ZCard(t.Context(), key("processing:payloads:popped")).Val(); n != 1 || got.jobs["popped"] != nil {
				t.Errorf("%d payloads are left to the worker, want 1; moved: %v", n, got.jobs["popped"])
			}
		}
		if err := m.CheckWorkers(t.Context(), before); (took != nil) != errors.Is(err, ErrWorking) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A worker of Ruby's that starts again restores what was in flight and takes it once more: the same ids, in the same shards,
// as many. That is told from what was there, before the first pass and after it, and what the worker has stays its own.
func TestAWorkerThatStartsAgainIsFound(t *testing.T) {
	from := start(t)
	s := states(t, "in_flight-003")[0]
	for _, when := range []string{"before the move", "within a pass", "after a pass"} {
		from.load(t, &s)
		m := mover(t, from.server.URL(), &s, &target{}, nil)
		m.KeepOpen = true
		if err := m.MarkFlights(t.Context()); err != nil {
			t.Fatal(err)
		}
		seen, err := m.WatchWorkers(t.Context(), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		flights, err := m.Old.ReadFlights(t.Context())
		if err != nil || len(flights) == 0 {
			t.Fatal(flights, err)
		}
		again := func() (taken []string) {
			for id, shards := range flights {
				from.popAgain(t, &s, id, shards[0])
				taken = append(taken, id)
			}
			return taken
		}
		var taken []string
		switch when {
		case "before the move":
			taken = again()
		case "within a pass":
			bring := m.Import
			m.Import = func(ctx context.Context, source string, entries []Entry) ([]Result, error) {
				if taken == nil {
					taken = again()
				}
				return bring(ctx, source, entries)
			}
		case "after a pass":
			if _, err := m.Move(t.Context()); err != nil {
				t.Fatal(err)
			}
			taken = again()
		}
		_, moved := m.Move(t.Context())
		if when != "within a pass" && !errors.Is(moved, ErrWorking) {
			t.Errorf("%s: the move says %v, want %v", when, moved, ErrWorking)
		}
		if err := m.CheckWorkers(t.Context(), seen); !errors.Is(err, ErrWorking) {
			t.Errorf("%s: got %v, want %v", when, err, ErrWorking)
		}
		for _, id := range taken {
			if n := from.rdb.ZCard(t.Context(), "lowkiq:A:v1:"+s.QueueName+":processing:payloads:"+id).Val(); n == 0 {
				t.Errorf("%s: the worker has lost %q", when, id)
			}
		}
		m.Old.Close()
	}
}

// popAgain does to an id what a worker's restore and its next pop do, or its pop of what was pushed since.
func (o *old) popAgain(t *testing.T, s *rubystates.State, id string, shard int) {
	t.Helper()
	key := func(name string) string { return "lowkiq:A:v1:" + s.QueueName + ":" + name }
	pipe := o.rdb.TxPipeline()
	pipe.HDel(t.Context(), key("processing_length_by_shard"), strconv.Itoa(shard)) // the restore's ack
	pipe.HSet(t.Context(), key("processing_length_by_shard"), strconv.Itoa(shard), 1)
	pipe.HSet(t.Context(), key("processing:ids_with_perform_in:")+strconv.Itoa(shard), id, 1)
	pipe.HSet(t.Context(), key("processing:ids_with_retry_count:")+strconv.Itoa(shard), id, -1)
	pipe.ZAdd(t.Context(), key("processing:payloads:")+id, redis.Z{Score: 1, Member: "again"})
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A process that was frozen in an import which a later one has seen refused brings nothing when it thaws: the job is back, and
// may have come under another number.
func TestAFrozenImportIsLate(t *testing.T) {
	from, to := start(t), redistest.Start(t)
	s := states(t, "fresh-001")[0]
	from.load(t, &s)
	q := fresh(t, to.URL(), "q")
	first := between(t, from.server.URL(), &s, q, Bytes)
	var source string
	var frozen []Entry
	errFrozen := errors.New("frozen")
	first.Import = func(_ context.Context, s string, entries []Entry) ([]Result, error) {
		source, frozen = s, slices.Clone(entries)
		return nil, errFrozen
	}
	if _, err := first.Move(t.Context()); !errors.Is(err, errFrozen) {
		t.Fatal(err)
	}
	second := between(t, from.server.URL(), &s, q, Bytes)
	second.Limits.Payload = 1 // it refuses all but what the new queue is told not to take
	if moved, err := second.Move(t.Context()); err != nil || moved.Left == 0 {
		t.Fatal(moved, err)
	}
	before := len(from.keys(t, ":payloads:"))
	results, err := ImportInto(q)(t.Context(), source, frozen)
	if err == nil {
		t.Errorf("the frozen import answers %v, want refusals", results)
	}
	isEmpty(t, q, "after a frozen import")
	want, _ := wants(t, &s)
	if before == 0 || holds(t, from, &s).shows() != want.shows() {
		t.Errorf("%d piles are in the old Redis, and they are not what was there", before)
	}
}
