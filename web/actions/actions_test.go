package actions

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/status"
)

// TestTable checks that each action has a name, a command and words of its own. An action with a button can be done by
// its name.
func TestTable(t *testing.T) {
	t.Parallel()
	names, commands := map[string]bool{}, map[string]bool{"": true}
	for _, a := range All() {
		if names[a.Name] || a.Command != "" && commands[a.Command] {
			t.Errorf("%s: its name or its command %q is there twice", a.Name, a.Command)
		}
		if names[a.Name], commands[a.Command] = true, true; a.Brief == "" && a.Path != "" {
			t.Errorf("%s: a route without a line for its list", a.Name)
		}
		if (a.Label == "") != (a.do == nil) || a.Label != "" && (a.Done == "" || a.About == "") {
			t.Errorf("%s: a button without its words, or without an effect", a.Name)
		}
		if (a.On == OnJobs) != (a.Jobs != nil && len(a.Jobs.States) > 0) {
			t.Errorf("%s: an action on jobs without states", a.Name)
		}
	}
}

// fakeNode is a node whose cluster does as it is asked.
type fakeNode struct {
	status.Cluster // what no test asks
	client         *queue.Client
	drains         bool
}

func (n *fakeNode) Name() string                       { return "n1" }
func (n *fakeNode) Client() *queue.Client              { return n.client }
func (n *fakeNode) Rules(string) map[string]rules.Base { return nil }

func (n *fakeNode) MayBegin(context.Context, string) ([]string, error) { return nil, nil }

func (n *fakeNode) Handled(context.Context) (status.Handled, error) { return status.Handled{}, nil }

func (n *fakeNode) Cancel(context.Context, *protocol.Queue, string, protocol.Cancellation) error {
	return nil
}

func (n *fakeNode) Drain(_ context.Context, node string, on bool) (string, error) {
	n.drains = on
	return node + "/1", nil
}

func (n *fakeNode) DrainProgress(context.Context, string) (status.DrainProgress, error) {
	return status.DrainProgress{Drains: n.drains}, nil
}

// TestEveryActionIsInTheListOfChanges checks that each action is a line in the list of changes under its name, with its
// author and its target.
func TestEveryActionIsInTheListOfChanges(t *testing.T) {
	t.Parallel()
	producer, err := queue.Open(queue.Config{Redis: redistest.Start(t).URL(), Cluster: "actions", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	client := producer.Protocol()
	ctx, who := t.Context(), changes.Who{Role: "admin", Name: "ann", Address: "10.0.0.1:5"}
	q, err := client.Register(ctx, lowkiq.Queue{Name: "orders", Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	node := &fakeNode{client: producer}
	o := New(node, node, slog.New(slog.DiscardHandler))
	last := func(what, want string) {
		t.Helper()
		lines, _, err := changes.In(client.DB()).Read(ctx, changes.Query{Limit: 1})
		if err != nil || len(lines) != 1 {
			t.Fatalf("%s: got %v, %v", what, lines, err)
		}
		l := lines[0]
		got := fmt.Sprintf("%s %s%s %v %d %s %s", l.Action, l.Queue, l.Target, l.IDs, l.Count, l.Old, l.New)
		if got != want || l.Who != (changes.Who{Role: "admin", Name: "ann", Address: "10.0.0.1:5", Node: "n1"}) {
			t.Errorf("%s: got %s by %+v, want %s", what, got, l.Who, want)
		}
	}
	push := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if results, err := q.Push(ctx, lowkiq.Push{ID: id, PerformAt: time.Now().Add(time.Hour)}); err != nil || results[0].Err != nil {
				t.Fatal(err, results)
			}
		}
	}
	spec := `{"every":"1m","queue":"orders","id":"tick","missed":"one"}`
	push("a", "b")
	done := map[string]bool{}
	for _, c := range []struct {
		name string
		ask  Request
		want string
	}{
		{"pause", Request{Queue: q}, "pause orders [] 0  "},
		{"resume", Request{Queue: q}, "resume orders [] 0  "},
		{"drain", Request{Target: "n2"}, "drain n2 [] 0  "},
		{"undrain", Request{Target: "n2"}, "undrain n2 [] 0  "},
		{"run-now", Request{Queue: q, IDs: []string{"a"}}, "run-now orders [a] 1  "},
		{"kill", Request{Queue: q, IDs: []string{"a", "x"}}, "kill orders [a x] 1  "},
		{"requeue-all", Request{Queue: q, Query: browse.Query{State: browse.StateMorgue}, Described: []byte(`{"all":true}`)}, `requeue-all orders [] 1  {"all":true}`},
		{"delete", Request{Queue: q, Query: browse.Query{}, For: time.Minute}, "delete orders [] 2  "},
		{"add recurring", Request{}, "add recurring orderstick [] 0  " + spec},
		{"pause recurring", Request{Target: "tick"}, "pause recurring orderstick [] 0  " + spec},
		{"run recurring", Request{Target: "tick"}, "run recurring orderstick [tick] 0  "},
		{"edit recurring", Request{}, `edit recurring orderstick [] 0  {"every":"1h","queue":"orders","id":"tick","missed":"one"}`},
		{"remove recurring", Request{Target: "tick"}, `remove recurring orderstick [] 0 {"every":"1h","queue":"orders","id":"tick","missed":"one"} `},
		{"rules", Request{}, `rules orders [] 0 {"batch_size":null} {"batch_size":7}`},
		{"hold", Request{}, `hold orders [a] 0 null {"id":"a"}`},
		{"unhold", Request{}, `unhold orders [a] 0 {"id":"a"} null`},
		{"track", Request{}, `track orders [a] 0 {"tracked":null} {"tracked":["a"]}`},
		{"untrack", Request{}, `untrack orders [a] 0 {"tracked":["a"]} {"tracked":null}`},
		{"cancel", Request{}, `cancel orders [a] 0  {"then":"bury"}`},
		{"reshard", Request{}, `reshard orders [] 0 {"shards":1} {"shards":3}`},
		{"cancel reshard", Request{}, `cancel reshard orders [] 0 {"shards":3} {"shards":1}`},
		{"drop outgoing", Request{}, `drop outgoing orders [] 1 {"mail":1} `},
		{"close workflow", Request{}, "close workflow lowkiq.workflows [w] 0  "},
		{"cancel workflow", Request{}, "cancel workflow lowkiq.workflows [w] 0  "},
		{"delete queue", Request{}, "delete queue orders [] 1  "},
	} {
		var err error
		switch c.name {
		case "add recurring":
			_, err = o.AddEntry(ctx, who, "tick", recurring.Spec{Every: recurring.Duration(time.Minute), Queue: "orders"})
		case "edit recurring":
			_, err = o.EditEntry(ctx, who, "tick", func(s *recurring.Spec) error { s.Every = recurring.Duration(time.Hour); return nil })
		case "rules":
			_, err = o.ChangeRules(ctx, who, "orders", -1, RulesChange{Set: map[string]json.RawMessage{"batch_size": json.RawMessage("7")}})
		case "hold", "unhold":
			_, err = o.Hold(ctx, who, q, HoldChange{ID: "a", Undo: c.name == "unhold"})
		case "track", "untrack":
			_, err = o.Track(ctx, who, "orders", "a", c.name == "untrack", "")
		case "cancel":
			err = o.Cancel(ctx, who, q, "a", protocol.ThenBury, "")
		case "reshard":
			_, err = o.Reshard(ctx, who, "orders", ReshardChange{Shards: 3})
		case "cancel reshard":
			_, err = o.CancelReshard(ctx, who, "orders")
		case "drop outgoing":
			followUp := []any{"XADD", q.Shard(0).Keys().Out, "1-0", "q", "mail", "i", "a", "p", "{}", "s", "", "a", "", "e", ""}
			if _, err := client.DB().Do(ctx, "store a follow-up", followUp...); err != nil {
				t.Fatal(err)
			}
			_, err = o.DropOutgoing(ctx, who, q, 1)
		case "close workflow":
			if _, err := workflow.Start(ctx, client, workflow.Workflow{ID: "w", Open: true}); err != nil {
				t.Fatal(err)
			}
			err = o.CloseWorkflow(ctx, who, "w")
		case "cancel workflow":
			if err = o.CloseWorkflow(ctx, changes.Who{}, "w"); err != nil { // it is closed, so this changes nothing
				t.Fatal(err)
			}
			last("close again", "close workflow lowkiq.workflows [w] 0  ")
			if err = o.CancelWorkflow(ctx, who, "w"); err == nil {
				err = o.CancelWorkflow(ctx, changes.Who{}, "w") // the cancel waits already
			}
		case "delete queue":
			_, err = o.DeleteQueue(ctx, who, "orders", true, false)
		default:
			c.ask.Action, c.ask.By = Named(c.name), who
			_, err = o.Do(ctx, c.ask)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		last(c.name, c.want)
		done[c.name] = true
	}
	for _, a := range All() {
		if a.Jobs == nil && !done[a.Name] && a.Name != "resume recurring" && a.Name != "reset recurring" {
			t.Errorf("%s: no test does it", a.Name)
		}
	}
}
