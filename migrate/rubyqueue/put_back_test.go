package rubyqueue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

// dump is what all keys hold.
func dump(t *testing.T, q *Queue) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range keys(t, q) {
		kind, err := q.db.ForTests().Type(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		read := map[string][]any{"string": {"GET", name}, "zset": {"ZRANGE", name, 0, -1, "WITHSCORES"}, "hash": {"HGETALL", name},
			"set": {"SMEMBERS", name}, "list": {"LRANGE", name, 0, -1}}[kind]
		reply, err := q.db.ForTests().Do(t.Context(), read...).Result()
		if err != nil {
			t.Fatal(err)
		}
		all[name] = shownReply(reply, kind == "hash")
	}
	return all
}

func shownReply(reply any, pairs bool) string {
	list, ok := reply.([]any)
	if !ok {
		return reply.(string)
	}
	var texts []string
	for i := 0; i < len(list); i++ {
		text := list[i].(string)
		if pairs {
			i++
			text += "\x00" + list[i].(string)
		}
		texts = append(texts, text)
	}
	if pairs {
		slices.Sort(texts)
	}
	all := ""
	for _, text := range texts {
		all += text + "\x01"
	}
	return all
}

// What was taken and is put back is what it was, key by key.
func TestPutBackIsAsItWas(t *testing.T) {
	url := oldRedis(t).URL()
	for _, s := range rubystates.LoadAll(t) {
		if !slices.Contains([]string{"in_flight-000", "in_flight-003", "morgue-001", "window_buried-002", "edge_scores-001", "crowded-001",
			"ids-004", "walk-007", "retries-001"}, s.Name) {
			continue
		}
		q := open(t, url, s.QueueName, s.Shards)
		load(t, q, &s)
		want := dump(t, q)
		flights, err := q.ReadFlights(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		looked := map[string]string{}
		for id := range idsOf(&s) {
			entries, err1 := q.Peek(t.Context(), []string{id}, flights, most)
			buried, err2 := q.PeekBuried(t.Context(), []string{id}, most)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			for _, e := range slices.Concat(entries, buried) {
				if e != nil {
					looked[fmt.Sprint(e.Morgue, e.ID)] = said(SettleEntry(e))
				}
			}
		}
		for _, e := range takeSome(t, q) {
			if got, want := looked[fmt.Sprint(e.Morgue, e.ID)], said(SettleEntry(e)); got != want {
				t.Errorf("%s: a look at %q shows %q, and it was taken as %q", s.Name, e.ID, got, want)
			}
			if err := q.PutBack(t.Context(), e.Number); err != nil {
				t.Fatal(err)
			}
			if err := q.PutBack(t.Context(), e.Number); err != nil {
				t.Errorf("%s: after a lost answer: %v", s.Name, err)
			}
		}
		if _, err := q.EndSealing(t.Context()); err != nil { // it takes the marks off
			t.Fatal(err)
		}
		got := dump(t, q)
		for _, name := range []string{"migrate:sealing"} {
			delete(got, q.key(name))
		}
		if !maps.Equal(got, want) {
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s: %q holds %.200q, want %.200q", s.Name, name, got[name], want[name])
				}
			}
			t.Errorf("%s: %d keys, want %d", s.Name, len(got), len(want))
		}
		q.Close()
	}
}

func idsOf(s *rubystates.State) map[string]bool {
	ids := map[string]bool{}
	for _, j := range slices.Concat(s.Expect.Jobs, s.Expect.Morgue) {
		ids[j.Raw()] = true
	}
	return ids
}

// takeSome takes all that there is and forgets nothing.
func takeSome(t *testing.T, q *Queue) (all []*Entry) {
	t.Helper()
	ctx := t.Context()
	_, err1 := q.BeginRun(ctx)
	flights, err2 := q.ReadFlights(ctx)
	waiting, err3 := q.ReadWaiting(ctx, 0, most)
	buried, err4 := q.ReadMorgue(ctx, 0, most)
	if err := errors.Join(err1, err2, err3, err4, q.MarkFlights(ctx, flights)); err != nil {
		t.Fatal(err)
	}
	ids := slices.Collect(maps.Keys(flights))
	for _, due := range waiting {
		if flights[due.ID] == nil {
			ids = append(ids, due.ID)
		}
	}
	for len(ids) > 0 {
		entries, err := q.Take(ctx, ids, flights, most)
		if err != nil {
			t.Fatal(err)
		}
		all, ids = append(all, entries...), ids[len(entries):]
	}
	for _, due := range buried {
		entries, err := q.TakeBuried(ctx, []string{due.ID}, most)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entries...)
	}
	return all
}

// What is pushed while an entry is away is united with it as Ruby's push would have.
func TestPutBackUnitesWithPushes(t *testing.T) {
	q := open(t, oldRedis(t).URL(), "Orders", 5)
	rdb, ctx := q.db.ForTests(), t.Context()
	push := func(at float64, payload string, score float64) {
		t.Helper()
		pipe := rdb.TxPipeline()
		pipe.Do(ctx, "ZADD", q.key("all_ids_lex"), 0, "7")
		pipe.Do(ctx, "ZADD", q.key("all_ids_scored_by_perfrom_in"), "NX", at, "7")
		pipe.Do(ctx, "ZADD", q.key("all_ids_scored_by_retry_count"), "NX", -1, "7")
		pipe.Do(ctx, "ZADD", q.key("ids_scored_by_perform_in:")+shardText("7", 5), "NX", at, "7")
		pipe.Do(ctx, "ZADD", q.key("payloads:7"), "NX", score, payload)
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	push(100, "a", 1)
	push(100, "b", 2)
	taken := takeSome(t, q)
	push(50, "b", 9)
	push(50, "c", 0)
	if err := q.PutBack(ctx, taken[0].Number); err != nil {
		t.Fatal(err)
	}
	entries, err := q.Peek(ctx, []string{"7"}, nil, most)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	want := "due 100, retries -1, error none: 0 \"c\" 1 \"a\" 2 \"b\""
	if got := said(SettleEntry(entries[0])); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A run that is frozen while another one begins takes and forgets nothing any more.
func TestALaterRunEndsAnEarlierOne(t *testing.T) {
	url := oldRedis(t).URL()
	first, second := open(t, url, "Orders", 5), open(t, url, "Orders", 5)
	a, err1 := first.BeginRun(t.Context())
	b, err2 := second.BeginRun(t.Context())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if a.Source != b.Source || !a.Fresh || b.Fresh {
		t.Errorf("the source is %+v and then %+v: what the first run took would be imported twice", a, b)
	}
	_, err := first.Take(t.Context(), []string{"7"}, nil, most)
	for what, err := range map[string]error{"take": err, "forget": first.Forget(t.Context(), 1), "put back": first.PutBack(t.Context(), 1),
		"end": first.EndRun(t.Context())} {
		if !errors.Is(err, ErrTakenOver) {
			t.Errorf("%s: got %v, want %v", what, err, ErrTakenOver)
		}
	}
	if err := second.EndRun(t.Context()); err != nil {
		t.Error(err)
	}
}
