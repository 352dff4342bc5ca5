package rubyqueue

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/migrate/rubystates"
)

// orphansOf are the orphans of a queue, a text each.
func orphansOf(t *testing.T, q *Queue) (found []string) {
	t.Helper()
	if err := q.FindOrphans(t.Context(), func(o Orphan) { found = append(found, fmt.Sprintf("%s%q", o.Key, o.ID)) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// What Ruby's own view does not reach of payloads is what is told, and nothing that Ruby or a move knows of.
func TestOrphansOfStates(t *testing.T) {
	url, all := oldRedis(t).URL(), 0
	for i, s := range rubystates.LoadAll(t) {
		var want []string
		for _, l := range s.Expect.Leftovers {
			if strings.HasSuffix(l.What, "payloads") {
				want = append(want, fmt.Sprintf("%s:%q", l.What, (&rubystates.Job{ID: l.ID, IDBase64: l.IDBase64}).Raw()))
			}
		}
		if i%tier.Of(17, 5, 1) > 0 && want == nil {
			continue
		}
		slices.Sort(want)
		q := open(t, url, s.QueueName, s.Shards)
		load(t, q, &s)
		if got := orphansOf(t, q); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", s.Name, got, want)
		}
		all += len(want)
		q.Close()
	}
	if all == 0 {
		t.Error("no state has an orphan")
	}
}

// Each queue is told of its own orphans alone, whatever its name means in a pattern, of all kinds, among more keys than one
// scan looks at.
func TestOrphansAreOfOneQueue(t *testing.T) {
	url := oldRedis(t).URL()
	names := []string{"Orders", "Orders::Import", "Orders[1]*?", "Orders1x", `a\b`, "*", "Zoë"}
	for _, name := range names {
		q := open(t, url, name, 5)
		pipe := q.db.ForTests().Pipeline()
		for _, pile := range piles {
			pipe.ZAdd(t.Context(), q.key(pile.key+name), redis.Z{Score: 1, Member: "lost"})
			pipe.ZAdd(t.Context(), q.key(pile.key+"indexed"), redis.Z{Score: 1, Member: "known"})
			if pile.index != "" {
				pipe.ZAdd(t.Context(), q.key(pile.index), redis.Z{Score: 1, Member: "indexed"})
			}
			pipe.Set(t.Context(), q.key(pile.key+"no pile"), 1, 0)
		}
		pipe.HSet(t.Context(), q.key("processing:ids_with_perform_in:7"), "indexed", 1)
		for i := range 300 {
			pipe.Set(t.Context(), fmt.Sprint("foreign:", name, ":payloads:", i), 1, 0)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		want := []string{fmt.Sprintf("morgue:payloads:%q", name), fmt.Sprintf("payloads:%q", name), fmt.Sprintf("processing:payloads:%q", name)}
		if got := orphansOf(t, open(t, url, name, 5)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
