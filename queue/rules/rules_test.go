package rules_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	. "github.com/lowkiq/lowkiq/queue/rules"
)

// rig has a cluster of its own.
type rig struct {
	t *testing.T
	c *protocol.Client
	Book
	changes.Log
}

// eachRedis runs a test as [redistest.Each] does.
func eachRedis(t *testing.T, test func(r *rig)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, url string, hooks ...redis.Hook) {
		c, err := protocol.Open(protocol.Config{Redis: url, Cluster: strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()), Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for _, hook := range hooks {
			c.DB().ForTests().AddHook(hook)
		}
		test(&rig{t, c, In(c.DB()), changes.In(c.DB())})
	})
}

// change makes a change and returns the resulting set.
func (r *rig) change(c Change) Set {
	r.t.Helper()
	set, err := r.Change(r.t.Context(), "orders", c)
	if err != nil {
		r.t.Fatal(err)
	}
	return set
}

// lines returns the lines of the log, the newest first, as "action old -> new".
func (r *rig) lines() (texts []string) {
	r.t.Helper()
	lines, _, err := r.Log.Read(r.t.Context(), changes.Query{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range lines {
		texts = append(texts, fmt.Sprintf("%s %s %s -> %s %s", l.Who, l.Queue, l.Old, l.New, l.Why))
	}
	return texts
}

func values(key, value string) map[string]json.RawMessage {
	return map[string]json.RawMessage{key: json.RawMessage(value)}
}

// TestChange checks that a change is made once, with its line, and that every reader sees it. A
// change of an older revision is refused.
func TestChange(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx := r.t.Context()
		ann := changes.Who{Role: "admin", Name: "ann", Claimed: true}
		base := map[string]Base{"prefetch": {Value: 100, From: "default"}}
		one := r.change(Change{Set: values("batch_size", "10"), Why: "sale", By: ann, If: 0})
		if one.Rev != 1 {
			r.t.Errorf("got revision %d, want 1", one.Rev)
		}
		page, err := r.Book.Read(ctx, "", false)
		if err != nil || page.Version == "" || len(page.Queues) != 1 || time.Since(page.Now).Abs() > time.Minute {
			r.t.Fatalf("got %+v, %v, want one change and one queue", page, err)
		}
		if again, err := r.Book.Read(ctx, page.Version, false); err != nil || again.Queues != nil || !again.Now.IsZero() {
			r.t.Errorf("what is known: got %+v, %v, want nothing", again, err)
		}
		if _, err := r.Change(ctx, "orders", Change{Set: values("batch_size", "20"), If: 0}); !errors.Is(err, ErrChanged) {
			r.t.Errorf("a change of an older revision: got %v, want ErrChanged", err)
		}
		if _, err := r.Change(ctx, "orders", Change{Set: map[string]json.RawMessage{"batch_size": json.RawMessage("20"), "prefetch": json.RawMessage("0")}, If: 1}); !errors.Is(err, ErrValue) {
			r.t.Errorf("a change of which a part is wrong: got %v, want ErrValue", err)
		}
		two := r.change(Change{Set: values("prefetch", "7"), By: ann, Base: base, If: 1, For: time.Hour})
		three := r.change(Change{Unset: []string{"batch_size", "scheduler"}, By: ann, If: -1})
		set, now, err := r.Queue(ctx, "orders")
		if err != nil || set.Rev != 3 || len(set.Settings) != 1 || two.Rev != 2 || three.Rev != 3 {
			r.t.Errorf("got %+v, %v", set, err)
		}
		v, err := set.Apply(Rules{}, now)
		if err != nil || v.BatchSize != 0 || v.Prefetch != 7 {
			r.t.Errorf("got %+v, %v, want prefetch 7 alone", v, err)
		}
		if v, _ := set.Apply(Rules{}, now.Add(time.Hour)); v.Prefetch != 0 {
			r.t.Errorf("an hour later: got prefetch %d, want none", v.Prefetch)
		}
		lines := r.lines()
		want := []string{
			`ann? (admin) orders {"batch_size":10,"scheduler":null} -> {"batch_size":null,"scheduler":null} `,
			`ann? (admin) orders {"prefetch":100} -> {"prefetch":7,"until":`,
			`ann? (admin) orders {"batch_size":null} -> {"batch_size":10} sale`,
		}
		if len(lines) != len(want) {
			r.t.Fatalf("got %d lines, want %d: %q", len(lines), len(want), lines)
		}
		for i := range want {
			if !strings.HasPrefix(lines[i], want[i]) {
				r.t.Errorf("line %d: got %q, want %q", i, lines[i], want[i])
			}
		}
		if err := r.Forget(ctx, "orders"); err != nil {
			r.t.Fatal(err)
		}
		if set, _, err := r.Queue(ctx, "orders"); err != nil || set.Rev != 0 {
			r.t.Errorf("of a queue that was deleted: got %+v, %v, want nothing", set, err)
		}
		if page, err := r.Book.Read(ctx, "3", true); err != nil || page.Queues == nil {
			r.t.Errorf("who knew the rules of a queue that was deleted is not told: %+v, %v", page, err)
		}
	})
}

// TestChangesAtOnce checks that only one of several changes that name the same revision is made. Of
// changes without a revision all are made and none is lost.
func TestChangesAtOnce(t *testing.T) {
	eachRedis(t, func(r *rig) {
		var group sync.WaitGroup
		var taken, refused atomic.Int64
		for i := range 8 {
			group.Go(func() {
				_, err := r.Change(r.t.Context(), "orders", Change{Set: values("batch_size", fmt.Sprint(i+1)), By: changes.Who{Name: fmt.Sprint("n", i)}, If: 0})
				switch {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, ErrChanged):
					refused.Add(1)
				default:
					r.t.Error(err)
				}
			})
		}
		group.Wait()
		if taken.Load() != 1 || refused.Load() != 7 || len(r.lines()) != 1 {
			r.t.Errorf("%d taken, %d refused, lines %q; want one of eight", taken.Load(), refused.Load(), r.lines())
		}
		track := func(id string, on bool) error {
			_, err := r.Change(r.t.Context(), "orders", Change{If: -1, Edit: func(now map[string]Setting, _ time.Time) (map[string]json.RawMessage, []string, error) {
				ids, err := TrackID(now, id, on)
				if err != nil || ids == nil {
					return nil, []string{"tracked"}, err
				}
				value, err := json.Marshal(ids)
				return map[string]json.RawMessage{"tracked": value}, nil, err
			}})
			return err
		}
		for i := range 8 {
			group.Go(func() {
				if err := track(fmt.Sprint("id", i), true); err != nil {
					r.t.Error(err)
				}
			})
		}
		group.Wait()
		set, now, err := r.Queue(r.t.Context(), "orders")
		v, bad := set.Apply(Rules{}, now)
		if err != nil || bad != nil || len(v.Tracked) != 8 {
			r.t.Errorf("got %d tracked ids, %v, %v, want 8", len(v.Tracked), err, bad)
		}
		if err := track("id0", true); !errors.Is(err, ErrSame) {
			r.t.Errorf("an id that is tracked: got %v, want ErrSame", err)
		}
		for i := range 8 {
			if err := track(fmt.Sprint("id", i), false); err != nil {
				r.t.Error(err)
			}
		}
		if set, _, _ := r.Queue(r.t.Context(), "orders"); len(set.Settings) != 1 {
			r.t.Errorf("no id is tracked: got settings %v, want batch_size alone", set.Settings)
		}
	})
}

// TestUnreadable checks that damaged settings stay until a change without a revision replaces them,
// and that a value of a later release is left out.
func TestUnreadable(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx := r.t.Context()
		keys := r.c.DB().Keys
		if _, err := r.c.DB().Do(ctx, "break", "HSET", keys.Rules(), "orders", "[]"); err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.Change(ctx, "orders", Change{Set: values("batch_size", "1"), If: 0}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
			r.t.Errorf("got %v, want that it cannot be read", err)
		}
		r.change(Change{Set: values("batch_size", "1"), If: -1})
		if _, err := r.c.DB().Do(ctx, "write", "HSET", keys.Rules(), "orders", `{"rev":9,"set":{"of_later":{"value":1},"batch_size":{"value":4},"prefetch":{"value":0}}}`); err != nil {
			r.t.Fatal(err)
		}
		set, now, err := r.Queue(ctx, "orders")
		if err != nil {
			r.t.Fatal(err)
		}
		v, err := set.Apply(Rules{}, now)
		if v.BatchSize != 4 || v.Prefetch != 0 || err == nil || !strings.Contains(err.Error(), "of_later") {
			r.t.Errorf("got %+v, %v, want batch_size alone, and what is left out", v, err)
		}
		shown := Show(nil, set, now)
		if last := shown[len(shown)-1]; !strings.Contains(fmt.Sprint(shown), "of_later") || last.Key == "" {
			r.t.Errorf("what is of a later release is not shown: %+v", shown)
		}
	})
}

// TestWithoutAValue checks that a setting without a value, or with null, is left out and reported,
// and that nothing panics.
func TestWithoutAValue(t *testing.T) {
	t.Parallel()
	for _, name := range Keys() {
		for _, text := range []string{`{}`, `{"value":null}`} {
			set, err := Parse("orders", `{"rev":1,"set":{"`+name+`":`+text+`}}`)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := set.Apply(Rules{}, time.Now()); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), name) || !reflect.DeepEqual(v, Rules{}) {
				t.Errorf("%s %s: got %+v, %v, want no values, and that it is none", name, text, v, err)
			}
			Show(nil, set, time.Now())
		}
	}
}

// TestBothOrNeither checks that a change is not made if its line cannot be written.
func TestBothOrNeither(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx := r.t.Context()
		r.change(Change{Set: values("batch_size", "1"), If: 0})
		for _, cmd := range [][]any{{"DEL", r.c.DB().Keys.Changes()}, {"SET", r.c.DB().Keys.Changes(), "x"}} {
			if _, err := r.c.DB().Do(ctx, "break", cmd...); err != nil {
				r.t.Fatal(err)
			}
		}
		before, err := r.Book.Read(ctx, "", false)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.Change(ctx, "orders", Change{Set: values("batch_size", "2"), If: 1}); err == nil {
			r.t.Error("got no error, want that the line cannot be written")
		}
		if after, err := r.Book.Read(ctx, "", false); err != nil || after.Version != before.Version || !reflect.DeepEqual(after.Queues, before.Queues) {
			r.t.Errorf("got %+v, %v, want what there was: %+v", after, err, before)
		}
	})
}

// TestForgottenChange checks that after a failover that forgot the last change, a reader of that
// change notices the next one.
func TestForgottenChange(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx, keys := r.t.Context(), r.c.DB().Keys
		r.change(Change{Set: values("batch_size", "1"), If: 0})
		replica, err := r.Book.Read(ctx, "", false)
		if err != nil {
			r.t.Fatal(err)
		}
		r.change(Change{Set: values("batch_size", "2"), If: 1})
		seen, err := r.Book.Read(ctx, "", false)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.c.DB().Do(ctx, "forget", "HSET", keys.Rules(), "#", replica.Version, "orders", replica.Queues["orders"]); err != nil {
			r.t.Fatal(err)
		}
		r.change(Change{Set: values("batch_size", "3"), If: 1})
		if page, err := r.Book.Read(ctx, seen.Version, true); err != nil || !strings.Contains(page.Queues["orders"], `"value":3`) {
			r.t.Errorf("got %+v, %v, want the change that came instead", page, err)
		}
	})
}

// TestBadChanges checks that each invalid change is refused as a whole, with a reason.
func TestBadChanges(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Change{
		"nothing is set or unset":           {},
		"set and unset at once":             {Set: values("batch_size", "1"), Unset: []string{"batch_size"}},
		"want more than 0, at most 8760h":   {Set: values("batch_size", "1"), For: -1},
		"for 2h applies to settings":        {Unset: []string{"batch_size"}, For: 2 * time.Hour},
		"why has 1025 bytes":                {Set: values("batch_size", "1"), Why: strings.Repeat("x", 1025)},
		"shards does not change":            {Unset: []string{"shards"}},
		`did you mean "prefetch"`:           {Unset: []string{"prefetsh"}},
		"want a whole number, 1 to 1000":    {Set: values("prefetch", "0")},
		`unknown rule "x"; there are batch`: {Set: values("x", "0")},
	} {
		if err := c.Check(); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestLog checks that lines are found by their contents, from the newest, or after a cursor from
// the oldest, and that they are bounded.
func TestLog(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx := r.t.Context()
		long := strings.Repeat("é", 2000)
		add := func(l changes.Line) {
			r.t.Helper()
			if err := r.Log.Add(ctx, l); err != nil {
				r.t.Fatal(err)
			}
		}
		add(changes.Line{Who: changes.Who{Role: "admin", Name: "ann"}, Action: "pause", Queue: "orders"})
		add(changes.Line{Who: changes.Who{Name: long}, Action: "kill", Queue: "mail", IDs: []string{"a", "\xff", "b"}, Count: 3, Why: long, New: json.RawMessage(`"` + strings.Repeat("x", 9000) + `"`)})
		add(changes.Line{Action: "resume", Queue: "orders"})
		read := func(q changes.Query) (got []string, next string) {
			r.t.Helper()
			lines, next, err := r.Log.Read(ctx, q)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, l := range lines {
				if time.Since(l.At).Abs() > time.Minute || l.Cursor == "" {
					r.t.Errorf("got %+v, want its time and cursor", l)
				}
				got = append(got, l.Action)
			}
			return got, next
		}
		for _, c := range []struct {
			q    changes.Query
			want string
		}{
			{changes.Query{}, "[resume kill pause]"},
			{changes.Query{Queue: "orders"}, "[resume pause]"},
			{changes.Query{Name: "ann"}, "[pause]"},
			{changes.Query{ID: "b"}, "[kill]"},
			{changes.Query{Action: "kill", Queue: "orders"}, "[]"},
			{changes.Query{Limit: 2}, "[resume kill]"},
			{changes.Query{Since: time.Now().Add(time.Hour)}, "[]"},
			{changes.Query{After: "0"}, "[pause kill resume]"},
		} {
			if got, _ := read(c.q); fmt.Sprint(got) != c.want {
				r.t.Errorf("%+v: got %v, want %s", c.q, got, c.want)
			}
		}
		got, next := read(changes.Query{After: "0", Limit: 2})
		if rest, _ := read(changes.Query{After: next}); fmt.Sprint(got, rest) != "[pause kill] [resume]" {
			r.t.Errorf("behind a cursor: got %v, then %v", got, rest)
		}
		lines, _, _ := r.Log.Read(ctx, changes.Query{ID: "a"})
		if l := lines[0]; len(l.Why) > 1024 || len(l.Name) > 1024 || !strings.HasSuffix(l.Why, "…") || string(l.New) != `"9002 bytes"` || fmt.Sprint(l.IDs) != "[a b]" || l.Count != 3 {
			r.t.Errorf("a long line: got %+v, want it cut", l)
		}
	})
	if err := changes.CheckCursor("12-x"); err == nil {
		t.Error("a bad cursor: got no objection")
	}
}

// TestWho checks that unusual names are quoted and unchecked names are marked.
func TestWho(t *testing.T) {
	t.Parallel()
	for want, who := range map[string]changes.Who{
		"a program": {}, "admin": {Role: "admin"}, "ann (admin)": {Role: "admin", Name: "ann"}, "ann? (push)": {Role: "push", Name: "ann", Claimed: true},
		`"a\x1b[31m"? (anyone)`: {Role: "anyone", Name: "a\x1b[31m", Claimed: true}, "ann": {Name: "ann"},
	} {
		if got := who.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestPriorityNeedsLag checks that a priority contradicts the scheduler seq, whichever comes first
// and wherever the other rule comes from.
func TestPriorityNeedsLag(t *testing.T) {
	eachRedis(t, func(r *rig) {
		lag, seq := map[string]Base{"scheduler": {Value: "lag"}}, map[string]Base{"scheduler": {Value: "seq"}}
		both := func(scheduler string) map[string]json.RawMessage {
			return map[string]json.RawMessage{"priority": json.RawMessage("3"), "scheduler": json.RawMessage(scheduler)}
		}
		for i, c := range []struct {
			unset  string // instead of set
			before map[string]json.RawMessage
			base   map[string]Base
			wrong  bool
		}{
			{"scheduler", both(`"lag"`), seq, true},
			{"scheduler", both(`"lag"`), lag, false},
			{"scheduler", both(`"lag"`), nil, false}, // nobody knows
			{"priority", both(`"lag"`), seq, false},
			{"priority", map[string]json.RawMessage{"priority": json.RawMessage("0"), "scheduler": json.RawMessage(`"seq"`)}, map[string]Base{"scheduler": {Value: "lag"}, "priority": {Value: 2}}, true},
			{"batch_size", both(`"lag"`), seq, false},
		} {
			queue := fmt.Sprint("unset", i)
			if _, err := r.Change(r.t.Context(), queue, Change{Set: c.before, Base: lag, If: -1}); err != nil {
				r.t.Fatal(err)
			}
			if _, err := r.Change(r.t.Context(), queue, Change{Unset: []string{c.unset}, Base: c.base, If: -1}); errors.Is(err, ErrValue) != c.wrong {
				r.t.Errorf("%s unset beside %s and %v: got %v", c.unset, c.before, c.base, err)
			}
		}
		for i, c := range []struct {
			before, set map[string]json.RawMessage
			base        map[string]Base
			wrong       bool
		}{
			{nil, values("priority", "3"), lag, false},
			{nil, values("priority", "3"), nil, false}, // nobody knows
			{nil, values("priority", "3"), seq, true},
			{nil, values("priority", "0"), seq, false},
			{nil, both(`"lag"`), seq, false},
			{nil, both(`"seq"`), lag, true},
			{values("priority", "1"), values("scheduler", `"seq"`), lag, true},
			{values("scheduler", `"seq"`), values("priority", "1"), lag, true},
			{nil, values("batch_size", "1"), map[string]Base{"scheduler": {Value: "seq"}, "priority": {Value: 1}}, false}, // not its doing
		} {
			queue := fmt.Sprint("q", i)
			if c.before != nil {
				if _, err := r.Change(r.t.Context(), queue, Change{Set: c.before, Base: lag, If: -1}); err != nil {
					r.t.Fatal(err)
				}
			}
			if _, err := r.Change(r.t.Context(), queue, Change{Set: c.set, Base: c.base, If: -1}); errors.Is(err, ErrValue) != c.wrong {
				r.t.Errorf("%s beside %s and %v: got %v", c.set, c.before, c.base, err)
			}
		}
	})
}
