package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// TestEntriesWithLayouts checks that an entry with impossible layouts counts as damaged before it costs memory.
func TestEntriesWithLayouts(t *testing.T) {
	t.Parallel()
	c, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for text, says := range map[string]string{
		`{"shards":16,"layout":1}`: "",
		`{"shards":16,"layout":1,"reshard":{"shards":64,"layout":2,"at":5,"patience_ms":30000}}`:              "",
		`{"shards":64,"layout":4,"was":[{"shards":16,"layout":3,"copying":true},{"shards":8,"layout":1}]}`:    "",
		`{"shards":16,"layout":2,"reshard":{"shards":64,"layout":2}}`:                                         "layout 2; it must be above the present layout 2",
		`{"shards":16,"layout":2,"tried":3,"tried_shards":64}`:                                                "",
		`{"shards":16,"layout":2,"tried":3,"tried_shards":10001}`:                                             "a cancelled layout: 10001 shards; the number must be between 1 and 10000",
		`{"shards":16,"layout":2,"reshard":{"shards":0,"layout":3}}`:                                          "0 shards; the number must be between 1 and 10000",
		`{"shards":16,"layout":2,"was":[{"shards":16,"layout":2}]}`:                                           "a former layout 2; it must be below the layout 2 after it",
		`{"shards":16,"layout":4,"was":[{"shards":16,"layout":2},{"shards":16,"layout":3}]}`:                  "a former layout 3; it must be below the layout 2 after it",
		`{"shards":16,"layout":2,"was":[{"shards":10001,"layout":1}]}`:                                        "10001 shards; the number must be between 1 and 10000",
		`{"shards":16,"layout":2,"was":[{"shards":1,"layout":0}]}`:                                            "layout 0; it must be at least 1",
		`{"shards":16,"layout":20,"was":[` + strings.Repeat(`{"shards":1,"layout":1},`, 8) + `{"shards":1}]}`: "9 former layouts; there must be at most 8",
	} {
		switch _, err := c.ParseEntry("q", text); {
		case says == "" && err != nil:
			t.Errorf("%s: got %v", text, err)
		case says != "" && (!errors.Is(err, ErrEntryDamaged) || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: got %v, want an error with %q", text, err, says)
		}
	}
}

func TestHighestLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry RegistryEntry
		want  int
	}{
		{RegistryEntry{Layout: 3}, 3}, {RegistryEntry{Layout: 3, Tried: 5}, 5}, {RegistryEntry{Layout: 7, Tried: 5}, 7},
		{RegistryEntry{Layout: 3, Tried: 5, Reshard: &Reshard{Layout: 6}}, 6},
	} {
		if got := c.entry.HighestLayout(); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.entry, got, c.want)
		}
	}
}

var layoutTests = []testCase{{"Layout_EntryKeepsItsLayouts", testEntryKeepsItsLayouts}, {"Layout_InLayout", testInLayout}, {"Layout_Marks", testMarks}}

// setEntry writes the text of the queue's entry.
func (r *rig) setEntry(text string) {
	r.t.Helper()
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.c.DB().Keys.Queues(), r.q.Name, text).Err())
}

func (r *rig) entry() string {
	r.t.Helper()
	text, err := r.c.DB().ForTests().HGet(r.ctx, r.c.DB().Keys.Queues(), r.q.Name).Result()
	r.noErr(err)
	return text
}

// testEntryKeepsItsLayouts checks that a change of another field keeps the layouts of an entry, and that a deleted queue
// that is registered anew gets a layout that no attempt had.
func testEntryKeepsItsLayouts(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	r.setEntry(`{"shards":1,"layout":3,"was":[{"shards":2,"layout":1,"at":7}],"tried":5,"needs":["reshard"],"later":{"a":1}}`)
	r.noErr(r.c.Registry().Pause(r.ctx, "q"))
	eq(t, "paused", r.entry(), `{"shards":1,"layout":3,"paused":true,"was":[{"shards":2,"layout":1,"at":7}],"tried":5,"needs":["reshard"],"later":{"a":1}}`)
	r.setEntry(`{"shards":1,"layout":3,"tried":5,"removed":true}`)
	anew, err := r.c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 4})
	r.noErr(err)
	eq(t, "the layout of a queue registered anew", anew.Layout(), 6)
}

// testInLayout checks that the queue of a former layout has the shards of that layout, and that the registry does not
// remember it.
func testInLayout(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	former := r.c.Registry().InLayout("q", RegistryEntry{Shards: 64, Layout: 2, Was: []Former{{Shards: 3, Layout: 1}}}, 3, 1)
	eq(t, "shards", len(former.All()), 3)
	eq(t, "keys", *former.Shard(2).Keys(), r.c.DB().Keys.Shard("q", 1, 2))
	if q, err := r.c.Queue(r.ctx, "q"); err != nil || q != r.q {
		t.Errorf("got %v %v, want the registered queue", q, err)
	}
}

// testMarks checks the answers of claims to each form of field last.
func testMarks(t *testing.T, b *backend) {
	r := rigOn(t, b.open(t))
	r.setEntry(`{"shards":1,"layout":1,"reshard":{"shards":4,"layout":2}}`)
	for mark, want := range map[string]error{"moved 2 17": ErrMoving, "moved 2 17 and more": ErrMoving, "moved x 17": nil, "moved 2": nil, "removed a": nil, "17 seconds": nil} {
		r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.s.Keys().Count, "last", mark).Err())
		_, err := r.s.Claim(r.ctx, "n/1", Fresh, Owner{})
		if want != nil && !errors.Is(err, want) || want == nil && (err == nil || !strings.Contains(err.Error(), "field last of its counters is \""+mark+"\" and must be a number")) {
			t.Errorf("%s: got %v", mark, err)
		}
	}
	r.noErr(r.c.DB().ForTests().HDel(r.ctx, r.s.Keys().Count, "last").Err())
}

// TestFormerLayoutsByRedisClock checks that the age of a former layout counts by Redis's clock, if the clock of this host is
// ahead or behind.
func TestFormerLayoutsByRedisClock(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	server, clock := redistest.StartClocked(t)
	clock.Set(-40 * day)
	b := &backend{url: server.URL()}
	r := rigOn(t, b.open(t))
	again := func() *Queue {
		q, err := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() }).Queue(r.ctx, "q")
		r.noErr(err)
		return q
	}
	first := Delivery{"s", 1}
	_, err := r.q.Deliver(r.ctx, first, job("a", "x"))
	r.noErr(err)
	left, err := r.c.Time(r.ctx)
	r.noErr(err)
	r.setEntry(fmt.Sprintf(`{"shards":2,"layout":2,"was":[{"shards":1,"layout":1,"at":%d}],"needs":["reshard"]}`, left.UnixMilli()))
	ahead := again()
	if _, err := ahead.Deliver(r.ctx, first, job("a", "x")); !errors.Is(err, ErrDelivered) {
		t.Errorf("this host is 40 days ahead, and a delivery of the former layout comes again: got %v, want %v", err, ErrDelivered)
	}
	eq(t, "former shards with replies, if this host is 40 days ahead", len(ahead.FormerShards("a", MaxKeep)), 1)
	clock.Set(0)
	eq(t, "former shards after 40 days", len(again().FormerShards("a", SourceAge)), 0)
	clock.Set(40 * day)
	r.setEntry(fmt.Sprintf(`{"shards":2,"layout":2,"was":[{"shards":1,"layout":1,"at":%d}],"needs":["reshard"]}`, time.Now().UnixMilli()))
	eq(t, "former shards after 40 days, if this host is 40 days behind", len(again().FormerShards("a", SourceAge)), 0)
}

// TestForgottenSourcesByRedisClock checks that the mark of a forgotten source stays, if the clock of this host is ahead.
func TestForgottenSourcesByRedisClock(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	clock.Set(-40 * 24 * time.Hour)
	r := rigOn(t, (&backend{url: server.URL()}).open(t))
	_, err := transfer.Import(r.ctx, r.q, "old", entry(1, "a", "x"))
	r.noErr(err)
	r.noErr(transfer.Forget(r.ctx, r.q, "old"))
	r.noErr(transfer.Forget(r.ctx, r.q, "other"))
	if _, err := transfer.Import(r.ctx, r.q, "old", entry(2, "a", "y")); !errors.Is(err, transfer.ErrForgotten) {
		t.Errorf("a late entry: got %v, want %v", err, transfer.ErrForgotten)
	}
}
