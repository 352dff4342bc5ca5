package browse

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/golden"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A cursor that a client has made up costs no more than a cursor of a page. It has no long trails,
// because each entry of a trail is a search in a list, and it reads no more jobs than the page.
func TestCursorsAreBounded(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	jobs := jobsOn(t, 1)
	if _, err := jobs.q.Push(t.Context(), lowkiq.Push{ID: "a", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	ask := func(query Query, at position) (Page, error) {
		if err := query.fillAndCheck(); err != nil {
			t.Fatal(err)
		}
		query.Cursor = cursor{Shape: query.hashShape("page", jobs), Walk: &at}.String()
		return jobs.Page(t.Context(), query)
	}
	marks := make(recent, recentLength+1)
	if _, err := ask(Query{State: StateReady}, position{Line: map[int]recent{0: marks}}); !errors.Is(err, ErrQuery) {
		t.Errorf("%d entries of a line: got %v, want %v", len(marks), err, ErrQuery)
	}
	if _, err := ask(Query{State: StateReady}, position{Line: map[int]recent{0: marks[:recentLength]}}); err != nil {
		t.Errorf("%d entries of a line: got %v, want a page", recentLength, err)
	}
	rest := make([][]byte, 10*MaxExamined)
	for i := range rest {
		rest[i] = []byte("nobody")
	}
	page, err := ask(Query{By: ByID}, position{Rest: rest})
	if err != nil || page.Examined > MaxExamined {
		t.Errorf("%d ids left over: got %d examined, %v, want %d at most", len(rest), page.Examined, err, MaxExamined)
	}
}

// jobsOn returns a queue on a Redis of its own.
func jobsOn(t testing.TB, shards int) *Jobs {
	c, err := protocol.Open(protocol.Config{Redis: redistest.Start(t).URL(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	q, err := c.Register(context.WithoutCancel(t.Context()), lowkiq.Queue{Name: "q", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return Of(q)
}

// FuzzCursor checks that any text is a place in the list or is refused, and that a page stays
// within its bounds. The text is the JSON of a cursor. The test corrects its shape, so that it gets
// past the first check.
func FuzzCursor(f *testing.F) {
	ctx := context.Background()
	jobs := jobsOn(f, 3)
	for i := range 40 {
		p := lowkiq.Push{ID: fmt.Sprint("id", i), Payload: []byte("1")}
		if i%2 == 0 {
			p.PerformAt = time.Unix(4102444800+int64(i), 0)
		}
		if _, err := jobs.q.Push(ctx, p); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := jobs.Bury(ctx, Anywhere, "id1", "id2", "id3"); err != nil {
		f.Fatal(err)
	}
	queries := []Query{{}, {State: StateReady}, {State: StateScheduled}, {State: StateMorgue}, {By: ByID}, {State: StateFailed}, {State: StateInFlight}, {State: StateMorgue, By: ByRetries}, {State: StateBlocked}}
	for i, query := range queries { // what pages give as their next
		query.Limit = 3
		for range 4 {
			page, err := jobs.Page(ctx, query)
			if err != nil {
				f.Fatal(err)
			}
			raw, err := base64.RawURLEncoding.DecodeString(page.Next)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), raw)
			if query.Cursor = page.Next; page.Next == "" {
				break
			}
		}
	}
	for i, text := range []string{
		`{"w":{}}`, `{"w":{"p":9}}`, `{"w":{"s":3,"h":"17"}}`, `{"w":{"s":0,"h":"x"}}`, `{"w":{"s":0,"h":"18446744073709551616"}}`, `{"w":{"m":["YQ=="]}}`,
		`{"w":{"l":{"0":[{"t":-1,"i":"YQ=="}]}}}`, `{"w":{"l":{"2":[]}}}`, `{"w":{"l":{"0":[{"t":-1,"i":"YQ==","f":"u17"},{"t":7,"i":"YQ==","f":"s"}]}}}`, `{"w":{"l":{"0":[{"t":1,"i":"YQ==","f":"x"}]}}}`, `{"w":{"t":{"t":9223372036854775807,"i":null}}}`, `{"a":{"i":""}}`,
		`{"a":{"r":-1,"t":-9,"i":"/w=="}}`, `{"w":{"g":9223372036854775807}}`, `{"w":{"l":{"0":[{"t":1,"i":"YQ=="},{},{},{},{},{}]}}}`,
	} {
		for k := range queries {
			f.Add(uint8(k), []byte(text))
		}
		f.Add(uint8(i+128), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		query := queries[int(which%128)%len(queries)]
		query.Reverse, query.Limit = which >= 128, 5
		if err := query.fillAndCheck(); err != nil {
			t.Fatal(err)
		}
		var cur cursor
		if json.Unmarshal(text, &cur) == nil {
			cur.Shape = query.hashShape("page", jobs)
			query.Cursor = cur.String()
		} else {
			query.Cursor = string(text)
		}
		page, err := jobs.Page(ctx, query)
		if err != nil {
			if !errors.Is(err, ErrQuery) {
				t.Errorf("cursor %s: got %v, want a page or %v", text, err, ErrQuery)
			}
			return
		}
		if len(page.Jobs) > query.Limit || page.Examined > query.maxExamined() {
			t.Errorf("cursor %s: got %d jobs of %d examined, want %d of %d at most", text, len(page.Jobs), page.Examined, query.Limit, query.maxExamined())
		}
		if query.Cursor = page.Next; page.Next != "" {
			if _, err := jobs.Page(ctx, query); err != nil {
				t.Errorf("the page after cursor %s: %v", text, err)
			}
		}
		query.DryRun, query.Cursor = true, string(text)
		if _, err := jobs.Bulk(ctx, Delete, query); err != nil && !errors.Is(err, ErrQuery) {
			t.Errorf("an action with cursor %q: got %v, want %v", text, err, ErrQuery)
		}
	})
}

// TestGolden reads cursors that earlier releases have written, and checks that this release writes
// the same.
func TestGolden(t *testing.T) {
	t.Parallel()
	place := cursor{Shape: 12345, After: &sortKey{Retries: 2, At: 1763600000000000, ID: []byte("a\xff")}}
	golden.Check(t, "cursor", place.String(), func(t *testing.T, stored string) {
		jobs := &Jobs{q: &protocol.Queue{Queue: lowkiq.Queue{Name: "orders", Shards: 16}}}
		if got, err := jobs.readCursor(12345, stored); err != nil || !reflect.DeepEqual(got, place) {
			t.Errorf("got %+v %v, want %+v", got, err, place)
		}
	})
}
