package queue

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/redistest"
	"github.com/lowkiq/lowkiq/internal/tier"
)

// A cursor that a client has made up costs no more than one that a page has given: no long trails to look for in a line, of which
// each is a search, and no more jobs than the page examines.
func TestCursorsAreBounded(t *testing.T) {
	tier.Usual(t)
	t.Parallel()
	r := rigOn(t, (&backend{url: redistest.Start(t).URL()}).open(t))
	r.push(job("a", "1"))
	ask := func(query Query, at position) (Page, error) {
		r.no(query.check())
		query.Cursor = cursor{Shape: query.shape("page", r.q), Walk: &at}.String()
		return r.q.Page(r.ctx, query)
	}
	marks := make(recent, recentLength+1)
	if _, err := ask(Query{State: Ready}, position{Line: map[int]recent{0: marks}}); !errors.Is(err, ErrQuery) {
		t.Errorf("%d entries of a line: got %v, want %v", len(marks), err, ErrQuery)
	}
	if _, err := ask(Query{State: Ready}, position{Line: map[int]recent{0: marks[:recentLength]}}); err != nil {
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

// FuzzCursor: whatever a client sends as a cursor is a place in the list or is refused; a page stays within its bounds.
// The text is a cursor's JSON, of which the shape is set right, so that it gets beyond the first check.
func FuzzCursor(f *testing.F) {
	c := (&backend{url: redistest.Start(f).URL()}).open(f, func(cfg *Config) { cfg.Timeout = 10 * time.Second })
	ctx := context.Background()
	q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: 3})
	if err != nil {
		f.Fatal(err)
	}
	for i := range 40 {
		p := job(fmt.Sprint("id", i), "1")
		if i%2 == 0 {
			p.PerformAt = time.Unix(4102444800+int64(i), 0)
		}
		if _, err := q.Push(ctx, p); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := q.Kill(ctx, Anywhere, "id1", "id2", "id3"); err != nil {
		f.Fatal(err)
	}
	queries := []Query{{}, {State: Ready}, {State: Scheduled}, {State: Dead}, {By: ByID}, {State: Failed}, {State: InFlight}, {State: Dead, By: ByRetries}, {State: Waiting}}
	for i, query := range queries { // what pages give as their next
		query.Limit = 3
		for range 4 {
			page, err := q.Page(ctx, query)
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
		`{"w":{"l":{"0":[{"t":-1,"i":"YQ=="}]}}}`, `{"w":{"l":{"2":[]}}}`, `{"w":{"t":{"t":9223372036854775807,"i":null}}}`, `{"a":{"i":""}}`,
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
		if err := query.check(); err != nil {
			t.Fatal(err)
		}
		var cur cursor
		if json.Unmarshal(text, &cur) == nil {
			cur.Shape = query.shape("page", q)
			query.Cursor = cur.String()
		} else {
			query.Cursor = string(text)
		}
		page, err := q.Page(ctx, query)
		if err != nil {
			if !errors.Is(err, ErrQuery) {
				t.Errorf("cursor %s: got %v, want a page or %v", text, err, ErrQuery)
			}
			return
		}
		if len(page.Jobs) > query.Limit || page.Examined > query.most() {
			t.Errorf("cursor %s: got %d jobs of %d examined, want %d of %d at most", text, len(page.Jobs), page.Examined, query.Limit, query.most())
		}
		if query.Cursor = page.Next; page.Next != "" {
			if _, err := q.Page(ctx, query); err != nil {
				t.Errorf("the page after cursor %s: %v", text, err)
			}
		}
		query.DryRun, query.Cursor = true, string(text)
		if _, err := q.Bulk(ctx, Delete, query); err != nil && !errors.Is(err, ErrQuery) {
			t.Errorf("an action with cursor %q: got %v, want %v", text, err, ErrQuery)
		}
	})
}
