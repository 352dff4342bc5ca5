package rubyqueue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// A queue is known by what it leaves; in place of one that never was there are others, or other databases.
func TestKnown(t *testing.T) {
	t.Parallel()
	server := redistest.StartOld(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	is := func(name string, want bool, others string) {
		t.Helper()
		q := open(t, server.URL(), name, 5)
		known, err := q.IsKnown(t.Context())
		if err != nil || known != want {
			t.Errorf("%s: got %v, %v, want %v", name, known, err, want)
		}
		if got, err := q.DescribeOthers(t.Context()); err != nil || got != others {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, others)
		}
	}
	is("Orders", false, "this Redis has no queue of Ruby's Lowkiq")
	rdb.Do(t.Context(), "SET", "other", 1)
	is("Orders", false, "this database has no queue of Ruby's Lowkiq; databases with keys are db0")
	rdb.Incr(t.Context(), keyPrefix+"Orders::Mails:processed")
	rdb.ZAdd(t.Context(), keyPrefix+"Jobs:morgue:all_ids_lex", redis.Z{Member: "a"})
	is("Orders", false, "there are Jobs, Orders::Mails")
	is("Orders::Mails", true, "there are Jobs, Orders::Mails")
	rdb.HSet(t.Context(), keyPrefix+"Orders:processing:ids_with_perform_in:7", "a", 1)
	is("Orders", true, "there are Jobs, Orders::Mails")
	for i := range mostNames {
		rdb.Incr(t.Context(), fmt.Sprint(keyPrefix, "A", i, ":failed"))
	}
	if got, err := open(t, server.URL(), "x", 5).DescribeOthers(t.Context()); err != nil || !strings.HasPrefix(got, "there are 22 queues, as A0, ") {
		t.Errorf("of many: got %q, %v", got, err)
	}
}

// What the manual says of the user of the old Redis is enough for a run; what is refused is told, and not that a transaction
// was.
func TestUserOfTheOldRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	const documented = "~lowkiq:A:v1:* +@read +@write +@scripting +@transaction +@connection +time +info"
	for user, rules := range map[string]string{"mover": documented, "reader": strings.Replace(documented, "+@write ", "", 1)} {
		cmd := []any{"ACL", "SETUSER", user, "on", ">secret"}
		for _, rule := range strings.Fields(rules) {
			cmd = append(cmd, rule)
		}
		if err := rdb.Do(t.Context(), cmd...).Err(); err != nil {
			t.Fatal(err)
		}
		q := open(t, strings.Replace(server.URL(), "redis://", "redis://"+user+":secret@", 1), "Orders", 5)
		_, err := q.BeginRun(t.Context())
		if user == "reader" {
			if err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("a reader: got %v, want what is not permitted", err)
			}
			continue
		}
		if err == nil {
			_, err = q.SetWay(t.Context(), Way{"json", "shop/orders"})
		}
		if err == nil {
			_, err = q.Take(t.Context(), []string{"a"}, Flights{}, 10)
		}
		if err == nil {
			_, err = q.ReadSigns(t.Context())
		}
		if err == nil {
			_, err = q.Time(t.Context())
		}
		if err == nil {
			err = q.FindOrphans(t.Context(), func(Orphan) {})
		}
		if err == nil {
			_, err = q.DescribeOthers(t.Context())
		}
		if err == nil {
			err = q.EndRun(t.Context())
		}
		if err != nil {
			t.Errorf("with what the manual says: %v", err)
		}
		if w, err := q.ReadWay(t.Context()); err != nil || w != (Way{"json", "shop/orders"}) {
			t.Errorf("got %+v, %v, want the way that was noted", w, err)
		}
	}
}
