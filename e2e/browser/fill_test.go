//go:build linux

package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// hostile ids try to be markup, another page, another direction, or too long.
var hostile = []string{
	`<script>alert("id")</script>`,
	`"><img src=x onerror=alert(1)>`,
	`../../nodes?x=1&y=2#z`,
	"שלום \u202eright to left",
	"with space+plus%2F/slash",
	"new\nline\tand\x00zero",
	"bytes \xff\xfe that are no text",
	strings.Repeat("long-", 60),
	strings.Repeat("ü", 150),
}

// payloads try the same.
var payloads = [][]byte{
	[]byte(`{"event":"<script>alert('payload')</script>","amount":17.5,"nested":{"list":[1,2,3]}}`),
	[]byte("plain text"),
	{0, 1, 2, 0xff, 0xfe},
	nil,
}

// fill puts jobs into every state and waits until they are there.
func (w *world) fill() {
	w.t.Helper()
	w.push("orders", "slow-1", "slow-2", "slow-3")
	w.await("orders", "slow jobs are in flight", func(c protocol.Counts, _ int) bool { return c.InFlight == 3 })
	w.push("orders", named("bad", 30)...)
	w.push("orders", append(named("ok", 60), hostile...)...)
	w.schedule("orders", append(named("later", 20), prefixed("later ", hostile)...)...)
	w.push("mail", append(named("bad", 40), prefixed("bad ", hostile)...)...)
	w.push("ledger", append(named("bad", 12), prefixed("bad ", hostile)...)...)
	w.await("mail", "bad jobs are buried", func(c protocol.Counts, dead int) bool { return c.Total() == 0 && dead >= 40 })
	w.await("ledger", "bad jobs are blocked", func(c protocol.Counts, _ int) bool { return c.Ready+c.InFlight == 0 && c.Blocked >= 12 })
	wide := strings.Repeat("W", lowkiq.MaxIDBytes)
	w.push(longest, "slow-"+wide[5:])
	w.push(longest, append(prefixed("bad ", hostile), wide, "bad-"+wide[4:])...)
	w.schedule(longest, append(hostile, "later-"+wide[6:])...)
	// What is left is behind the slow ones, and fits on a page with some of the scheduled ones.
	w.await("orders", "bad jobs wait for a retry", func(c protocol.Counts, _ int) bool { return c.Retry >= 5 && c.Ready < 45 })
	w.workedForWeeks()
	w.fillWorkflows()
	// Much recurs, some of it by hand: paused, refused, with payloads that are no markup.
	book := recurring.Of(w.client)
	for name, spec := range map[string]recurring.Spec{
		"nightly": {Cron: "30 2 1 1 *", Zone: "Europe/Berlin", Jitter: recurring.Duration(10 * time.Minute), Queue: "ledger", ID: hostile[0], Header: map[string]string{"tag": "nightly"},
			Payload: json.RawMessage(`{"kind":"report","day":"{tick}","note":"</pre><b>all of it</b>"}`)},
		"each-minute-of-a-night": {Cron: "* 0-5 29 2 *", Zone: "America/Argentina/ComodRivadavia", Queue: "idle", ID: "a-long-id-that-goes-on-and-on-and-on-and-on", Missed: recurring.All},
		longest:                  {Every: recurring.Duration(time.Hour), Queue: longest, ID: wide},
		"paused":                 {Every: recurring.Duration(90 * time.Minute), Offset: recurring.Duration(5 * time.Minute), Queue: "idle"},
	} {
		if err := book.Add(context.Background(), name, spec); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := book.Pause(context.Background(), "paused"); err != nil {
		w.t.Fatal(err)
	}
	// A person has changed rules, which is no markup.
	change := rules.Change{If: -1, For: time.Hour, Why: "a sale of </td><b>everything</b>",
		By:  changes.Who{Role: "admin", Name: hostile[0], Claimed: true, Address: "10.0.0.9:41000"},
		Set: map[string]json.RawMessage{"retry_in": json.RawMessage(`["10m","20m"]`), "prefetch": json.RawMessage("50"), "tracked": json.RawMessage(`["slow-1"]`)}}
	if _, err := rules.In(w.client.DB()).Change(context.Background(), "orders", change); err != nil {
		w.t.Fatal(err)
	}
	hold := rules.Change{If: -1, Edit: func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
		value, _, err := rules.WithHold(in, rules.Hold{Prefix: "<b>nobody</b>:", At: now, Until: now.Add(time.Hour), Why: change.Why, By: change.By}, now)
		return map[string]json.RawMessage{"holds": value}, nil, err
	}}
	if _, err := rules.In(w.client.DB()).Change(context.Background(), "orders", hold); err != nil {
		w.t.Fatal(err)
	}
	wider := rules.Change{If: -1, Edit: func(in map[string]rules.Setting, now time.Time) (map[string]json.RawMessage, []string, error) {
		value, _, err := rules.WithHold(in, rules.Hold{Prefix: wide[:400], At: now, Why: strings.Repeat("V", 1000), By: change.By}, now)
		return map[string]json.RawMessage{"holds": value}, nil, err
	}}
	if _, err := rules.In(w.client.DB()).Change(context.Background(), longest, wider); err != nil {
		w.t.Fatal(err)
	}
	// No node handles this one.
	if _, err := w.client.Register(context.Background(), lowkiq.Queue{Name: "orphan", Shards: 2}); err != nil {
		w.t.Fatal(err)
	}
	w.push("orphan", append(named("ok", 150), hostile...)...)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	w.pushAll("orphan", lowkiq.Push{ID: "a-big-one", Payload: big}, lowkiq.Push{ID: "a-big-one", Payload: []byte("small")})
}

// fillWorkflows starts a workflow whose jobs have every state, and others whose ids are no markup and have no place to break.
func (w *world) fillWorkflows() {
	w.t.Helper()
	jobs := []workflow.Job{{Queue: "mail", Push: lowkiq.Push{ID: "later-w", PerformAt: time.Now().Add(30 * time.Minute)}, Name: "later"}}
	for i := range 40 {
		jobs = append(jobs, workflow.Job{Queue: "mail", Push: lowkiq.Push{ID: fmt.Sprint("ok-w-", i)}},
			workflow.Job{Queue: "mail", Push: lowkiq.Push{ID: fmt.Sprint("bad-w-", i)}, Name: fmt.Sprintf("%d %.50s", i, hostile[i%3])},
			workflow.Job{Queue: "mail", Push: lowkiq.Push{ID: fmt.Sprint("after-w-", i)}, After: []string{"later"}})
	}
	w.startWorkflow(workflow.Workflow{ID: "import-42", Jobs: jobs, Open: true})
	w.startWorkflow(workflow.Workflow{ID: hostile[0]})
	w.startWorkflow(workflow.Workflow{ID: longest[:workflow.MaxID]})
	w.awaitWorkflow("import-42", "has jobs of every state", func(s workflow.Status) bool {
		return s.Done == 40 && s.Dead == 40 && s.Waiting == 40 && s.Running() == 1
	})
	w.awaitWorkflow(longest[:workflow.MaxID], "is done", func(s workflow.Status) bool { return s.State == workflow.StateDone })
}

func (w *world) startWorkflow(one workflow.Workflow) {
	w.t.Helper()
	if _, err := workflow.Start(context.Background(), w.client, one); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) awaitWorkflow(id, what string, holds func(workflow.Status) bool) {
	w.t.Helper()
	await(w.t, "workflow "+id+" "+what, patience, func() bool {
		s, err := workflow.Get(context.Background(), w.client, id)
		if err != nil {
			w.t.Fatal(err)
		}
		return holds(s)
	})
}

// workedForWeeks gives queue orders figures of sixty days, some with more than others.
func (w *world) workedForWeeks() {
	w.t.Helper()
	now, err := w.client.Time(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	for ago := range 60 {
		done := uint64(1_000_000 + 400_000*(ago*ago%7))
		key := w.client.DB().Keys.Day("orders", now.UTC().AddDate(0, 0, -ago).Format("2006-01-02"))
		counts := []any{"HSET", key, "processed", done, "failed", done / uint64(5+ago%9), "retried", done / 20, "buried", ago % 3,
			"run:-60", done / 2, "run:-40", done / 3, "run:10", 17, "run:sum", float64(done) / 90, "run:squares", float64(done) / 900,
			"wait:-30", done, "wait:40", 9, "wait:sum", float64(done) / 10, "wait:squares", float64(done) / 50}
		if _, err := w.client.DB().Do(context.Background(), "days", counts...); err != nil {
			w.t.Fatal(err)
		}
	}
}

func named(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return ids
}

func prefixed(prefix string, ids []string) (list []string) {
	for _, id := range ids {
		list = append(list, prefix+id)
	}
	return list
}

func (w *world) push(name string, ids ...string) {
	w.t.Helper()
	w.pushAll(name, jobs(time.Time{}, ids)...)
}

// schedule pushes jobs that are due in half an hour: before any retry.
func (w *world) schedule(name string, ids ...string) {
	w.t.Helper()
	w.pushAll(name, jobs(time.Now().Add(30*time.Minute), ids)...)
}

func jobs(at time.Time, ids []string) (list []lowkiq.Push) {
	for i, id := range ids {
		list = append(list, lowkiq.Push{ID: id, Payload: payloads[i%len(payloads)], PerformAt: at})
	}
	return list
}

func (w *world) pushAll(name string, jobs ...lowkiq.Push) {
	w.t.Helper()
	results, err := w.queue(name).Push(context.Background(), jobs...)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			w.t.Fatalf("push %q: %v", jobs[i].ID, r.Err)
		}
	}
}

func (w *world) await(name, what string, holds func(c protocol.Counts, dead int) bool) {
	w.t.Helper()
	await(w.t, what, patience, func() bool { return holds(w.counts(name)) })
}
