package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

func callback(queue, id string) *lowkiq.FollowUp {
	return &lowkiq.FollowUp{Queue: queue, Push: lowkiq.Push{ID: id, Payload: []byte(id)}}
}

// startFiles runs a node with the queues files and ends.
func startFiles(t *testing.T, shards, batch int, files, ends *arrivals) *running {
	t.Helper()
	return startQueues(t, Config{Name: "n1", Redis: redistest.Start(t).URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "files", Shards: shards, Rules: rules.Rules{BatchSize: batch}}, lowkiq.HandlerFunc(files.handle))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "ends", Shards: 1}, lowkiq.HandlerFunc(ends.handle))
		}).serving()
}

// startWorkflow starts a workflow, and makes the node handle the queue of workflows.
func (r *running) startWorkflow(w queue.Workflow) {
	r.t.Helper()
	created, err := r.Client().StartWorkflow(r.t.Context(), w)
	if err != nil || !created {
		r.t.Fatalf("start: got %v, %v", created, err)
	}
	r.renew()
}

// workflow waits until a workflow is in a state.
func (r *running) workflow(id string, want ...string) (s queue.WorkflowStatus) {
	r.t.Helper()
	await(r.t, fmt.Sprint("workflow ", id, " ", want), func() (there bool) {
		var err error
		s, err = r.Client().Workflow(r.t.Context(), id)
		return err == nil && slices.Contains(want, string(s.State))
	})
	return s
}

// change does something to jobs of a queue.
func change(t *testing.T, do func(ctx context.Context, in browse.State, ids ...string) (int, error), in browse.State, ids ...string) {
	t.Helper()
	if n, err := do(t.Context(), in, ids...); n != len(ids) || err != nil {
		t.Fatalf("changed %d of %v: %v", n, ids, err)
	}
}

// TestWorkflows checks a workflow over several queues, with a codec, with members that wait for others, and a member that
// dies and is requeued.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var files, vault, ends arrivals
	var broken atomic.Bool
	broken.Store(true)
	node := startQueues(t, Config{Name: "n1", Redis: srv.URL()},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "files", Shards: 3, Rules: rules.Rules{MaxRetryCount: -1, Exhausted: rules.Policy("bury")}}, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
				if batch.Jobs[0].ID == "bad" && broken.Load() {
					return errors.New("no disk")
				}
				files.add(batch)
				return nil
			}))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "vault", Shards: 2, Codec: queue.Codec{Name: "xor", Encode: xor, Decode: xor}}, lowkiq.HandlerFunc(vault.handle))
		},
		func(n *Node) error {
			return n.Handle(QueueConfig{Name: "ends", Shards: 1}, lowkiq.HandlerFunc(ends.handle))
		}).serving()
	w := queue.Workflow{ID: "import-42", Done: callback("ends", "done"), Dead: callback("ends", "dead"), Jobs: []queue.WorkflowJob{
		{Queue: "files", Push: lowkiq.Push{ID: "a", Payload: []byte("1")}, Name: "first"},
		{Queue: "files", Push: lowkiq.Push{ID: "bad", Payload: []byte("2")}},
		{Queue: "vault", Push: lowkiq.Push{ID: "s", Payload: []byte("secret"), Header: map[string]string{"tag": "vip"}}, Name: "second", After: []string{"first"}},
		{Queue: "files", Push: lowkiq.Push{ID: "a", Payload: []byte("3")}, After: []string{"first", "second"}},
	}}
	node.startWorkflow(w)
	if again, err := node.Client().StartWorkflow(t.Context(), w); again || err != nil {
		t.Errorf("the same start again: got %v, %v, want nothing", again, err)
	}
	other := w
	other.Deadline = time.Hour
	if _, err := node.Client().StartWorkflow(t.Context(), other); !errors.Is(err, queue.ErrWorkflowExists) {
		t.Errorf("another start: got %v, want %v", err, queue.ErrWorkflowExists)
	}
	s := node.workflow("import-42", "dead")
	if s.Total != 4 || s.Done != 3 || s.Dead != 1 || s.Running() != 0 || s.Waiting != 0 || !slices.Equal(s.DeadNames, []string{"files/bad"}) || s.Began.IsZero() || !s.Ended.IsZero() {
		t.Errorf("got %+v", s)
	}
	await(t, "the push Dead", func() bool { return slices.Equal(ends.of("dead"), []string{"dead"}) })
	if got := ends.header("dead", "workflow"); got != "import-42" {
		t.Errorf("got header %q", got)
	}
	broken.Store(false)
	q, err := node.client.Queue(t.Context(), "files")
	if err != nil {
		t.Fatal(err)
	}
	change(t, browse.Of(q).Requeue, browse.StateMorgue, "bad")
	s = node.workflow("import-42", "done")
	if s.Done != 4 || s.Dead != 0 || s.Ended.IsZero() {
		t.Errorf("got %+v", s)
	}
	await(t, "the push Done", func() bool { return slices.Equal(ends.of("done"), []string{"done"}) })
	if fmt.Sprint(files.of("a"), vault.of("s"), vault.header("s", "tag"), vault.header("s", "hops")) != "[1 3] [secret]vip" {
		t.Errorf("got %v %v %s", files.of("a"), vault.of("s"), vault.header("s", "tag"))
	}
	page, next, err := node.Client().Workflows(t.Context(), "", 10)
	if err != nil || next != "" || len(page) != 1 || page[0].ID != "import-42" || page[0].State != "done" {
		t.Errorf("got %+v, %q, %v", page, next, err)
	}
}

// TestWorkflowFollowsRedisClock checks that the deadline of a workflow comes by Redis's clock, if the clock of the node is
// behind or ahead.
func TestWorkflowFollowsRedisClock(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, clock := redistest.StartClocked(t)
			clock.Set(ahead)
			node := startQueues(t, Config{Name: "n1", Redis: server.URL()}).serving()
			node.startWorkflow(queue.Workflow{ID: "w", Open: true, Deadline: 10 * time.Minute})
			s := node.workflow("w", "running", "dead")
			now, err := node.client.Time(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if off := now.Sub(s.Began); off.Abs() > 5*time.Minute {
				t.Errorf("the workflow began %s ago by Redis's clock, want now", off)
			}
			q, err := node.client.FindQueue(t.Context(), protocol.Workflows)
			if err != nil {
				t.Fatal(err)
			}
			var page browse.Page
			await(t, "the timer", func() bool {
				page, err = browse.Of(q).Page(t.Context(), browse.Query{State: browse.StateScheduled})
				return err == nil && len(page.Jobs) > 0
			})
			if left := page.Jobs[0].PerformAt.Sub(now); left < 5*time.Minute || left > 15*time.Minute {
				t.Errorf("the deadline comes in %s by Redis's clock, want 10m", left)
			}
		})
	}
}

// TestWorkflowStartsAtOnce checks that one of several equal starts has created the workflow, before a node handles them and
// after that.
func TestWorkflowStartsAtOnce(t *testing.T) {
	t.Parallel()
	var files, ends arrivals
	node := startFiles(t, 1, 0, &files, &ends)
	for round := range 5 {
		w := queue.Workflow{ID: fmt.Sprint("w", round), Done: callback("ends", fmt.Sprint(round))}
		var created, failed atomic.Int32
		var starts sync.WaitGroup
		for range 10 {
			starts.Go(func() {
				switch is, err := node.Client().StartWorkflow(t.Context(), w); {
				case err != nil:
					failed.Add(1)
					t.Error(err)
				case is:
					created.Add(1)
				}
			})
		}
		starts.Wait()
		if created.Load() != 1 && failed.Load() == 0 {
			t.Errorf("round %d: %d of 10 equal starts have created the workflow, want 1", round, created.Load())
		}
		node.renew()
		node.workflow(w.ID, "done")
		await(t, "the push Done", func() bool { return len(ends.of(fmt.Sprint(round))) == 1 })
	}
}

// TestWorkflowGrows checks an open workflow that gets jobs until it is closed.
func TestWorkflowGrows(t *testing.T) {
	t.Parallel()
	var files, ends arrivals
	node := startFiles(t, 3, 50, &files, &ends)
	node.startWorkflow(queue.Workflow{ID: "w", Open: true, Done: callback("ends", "done")})
	const parts, n = 4, 700
	for part := range parts {
		var jobs []queue.WorkflowJob
		for i := range n {
			jobs = append(jobs, queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: fmt.Sprint("f", part, "-", i), Payload: make([]byte, 100)}})
		}
		for range 2 { // the answer to the first was lost
			if err := node.Client().AddToWorkflow(t.Context(), "w", jobs...); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, "all jobs", func() bool {
		s, err := node.Client().Workflow(t.Context(), "w")
		return err == nil && s.Done == parts*n
	})
	if s := node.workflow("w", "running"); !s.Open || s.Total != parts*n {
		t.Errorf("got %+v", s)
	}
	for range 2 {
		if err := node.Client().CloseWorkflow(t.Context(), "w"); err != nil {
			t.Fatal(err)
		}
	}
	node.workflow("w", "done")
	await(t, "the push Done", func() bool { return len(ends.of("done")) == 1 })
	if err := node.Client().AddToWorkflow(t.Context(), "w", queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: "late"}}); !errors.Is(err, queue.ErrWorkflowClosed) {
		t.Errorf("got %v, want %v", err, queue.ErrWorkflowClosed)
	}
	if files.count() != parts*n {
		t.Errorf("got %d payloads, want %d", files.count(), parts*n)
	}
}

// TestWorkflowLeavesInParts checks that a workflow with more members than an ack takes leaves as a whole, and that no two of
// its members merge.
func TestWorkflowLeavesInParts(t *testing.T) {
	t.Parallel()
	var files, ends arrivals
	node := startFiles(t, 2, 100, &files, &ends)
	w := queue.Workflow{ID: "w", Done: callback("ends", "done")}
	const n = 5000
	for i := range n {
		w.Jobs = append(w.Jobs, queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: fmt.Sprint(i % 10), Payload: []byte("same")}})
	}
	node.startWorkflow(w)
	node.workflow("w", "done")
	await(t, "the push Done", func() bool { return len(ends.of("done")) == 1 })
	if files.count() != n {
		t.Errorf("got %d payloads, want %d", files.count(), n)
	}
}

// TestWorkflowEnds checks a deadline, a cancellation, and every end of a member.
func TestWorkflowEnds(t *testing.T) {
	t.Parallel()
	var files, ends arrivals
	node := startFiles(t, 1, 0, &files, &ends)
	later := func(id string) queue.WorkflowJob {
		return queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: id, PerformAt: time.Now().Add(time.Hour)}, Name: id}
	}
	after := later("never")
	after.After = []string{"c"}
	node.startWorkflow(queue.Workflow{ID: "late", Dead: callback("ends", "late"), Deadline: time.Second, Jobs: []queue.WorkflowJob{later("l")}})
	node.startWorkflow(queue.Workflow{ID: "cancelled", Dead: callback("ends", "cancelled"), Done: callback("ends", "cancelled"), Jobs: []queue.WorkflowJob{later("c"), after}})
	node.startWorkflow(queue.Workflow{ID: "empty", Done: callback("ends", "empty")})
	expired := queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: "x", Header: map[string]string{"expires": "2001-10-01T00:00:00Z"}}}
	node.startWorkflow(queue.Workflow{ID: "dead", Dead: callback("ends", "dead"), Jobs: []queue.WorkflowJob{later("deleted"), later("buried"), expired}})
	node.workflow("late", "late")
	node.workflow("empty", "done")
	q, err := node.client.Queue(t.Context(), "files")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "all members", func() bool { stats, err := q.Stats(t.Context()); return err == nil && stats.Jobs.Scheduled == 4 })
	for range 2 {
		if err := node.Client().CancelWorkflow(t.Context(), "cancelled"); err != nil {
			t.Fatal(err)
		}
	}
	node.workflow("cancelled", "cancelled")
	change(t, browse.Of(q).Delete, browse.Anywhere, "deleted", "c")
	change(t, browse.Of(q).Bury, browse.Anywhere, "buried")
	if s := node.workflow("dead", "dead"); s.Dead != 3 {
		t.Errorf("got %+v", s)
	}
	await(t, "all pushes", func() bool { return ends.count() == 3 })
	if got := fmt.Sprint(ends.of("late"), ends.of("empty"), ends.of("dead"), files.count()); got != "[late] [empty] [dead] 0" {
		t.Errorf("got %s", got)
	}
	page, _, err := node.Client().Workflows(t.Context(), "", 10)
	if err != nil || len(page) != 4 {
		t.Errorf("got %+v, %v, want 4 workflows", page, err)
	}
}

// TestWorkflowsRefused checks what no workflow may be, and that nothing of it is stored.
func TestWorkflowsRefused(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c, err := queue.Open(queue.Config{Redis: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	if _, err := c.Register(t.Context(), lowkiq.Queue{Name: "files", Shards: 2}); err != nil {
		t.Fatal(err)
	}
	job := func(id, name string, after ...string) queue.WorkflowJob {
		return queue.WorkflowJob{Queue: "files", Push: lowkiq.Push{ID: id}, Name: name, After: after}
	}
	large := job("l", "l", "a")
	large.Payload = make([]byte, 40<<10)
	for name, c2 := range map[string]struct {
		w    queue.Workflow
		want error
		text string
	}{
		"no id":          {queue.Workflow{}, queue.ErrWorkflow, "the id is empty"},
		"a space":        {queue.Workflow{ID: "a b"}, queue.ErrWorkflow, "without spaces"},
		"long":           {queue.Workflow{ID: strings.Repeat("x", 81)}, queue.ErrWorkflow, "81 bytes, at most 80"},
		"twice":          {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("a", "n"), job("b", "n")}}, queue.ErrWorkflow, `jobs 1 and 2 have the same name "n"`},
		"unknown name":   {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("a", "n", "m")}}, queue.ErrWorkflow, `job 1, n, comes after "m", and no job of this call has that name`},
		"circle":         {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("z", "z"), job("a", "a", "b", "z"), job("b", "b", "c"), job("c", "c", "a")}}, queue.ErrWorkflow, "a after b after c after a"},
		"itself":         {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("a", "a", "a")}}, queue.ErrWorkflow, "circle: a after a"},
		"unknown queue":  {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{{Queue: "none", Push: lowkiq.Push{ID: "a"}}}}, lowkiq.ErrUnknownQueue, "none"},
		"no job id":      {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("", "")}}, queue.ErrID, "job id is empty"},
		"built in":       {queue.Workflow{ID: "w", Done: callback(protocol.Workflows, "v")}, protocol.ErrReserved, protocol.Workflows},
		"urgent":         {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{{Queue: "files", Push: lowkiq.Push{ID: "a", Urgent: true}}}}, protocol.ErrFollowUp, "urgent"},
		"forged address": {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{{Queue: "files", Push: lowkiq.Push{ID: "a", ReplyTo: "fv 1 1 x"}}}}, queue.ErrReplyTo, "must have none"},
		"deadline":       {queue.Workflow{ID: "w", Deadline: time.Millisecond}, queue.ErrWorkflow, "must be between 1s and"},
		"waits":          {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{job("a", "a"), large}}, queue.ErrWorkflowTooLarge, "bytes together, at most 49152 are allowed"},
		"large": {queue.Workflow{ID: "w", Jobs: []queue.WorkflowJob{{Queue: "files", Push: lowkiq.Push{ID: "a", Payload: make([]byte, 500<<10)}}}},
			queue.ErrWorkflowTooLarge, "at most 614400 are allowed at once; start it open"},
	} {
		created, err := c.StartWorkflow(t.Context(), c2.w)
		if created || !errors.Is(err, c2.want) || !strings.Contains(err.Error(), c2.text) {
			t.Errorf("%s: got %v, %v, want %v and %q", name, created, err, c2.want, c2.text)
		}
	}
	if _, err := c.Workflow(t.Context(), "w"); !errors.Is(err, queue.ErrWorkflowUnknown) {
		t.Errorf("got %v, want %v", err, queue.ErrWorkflowUnknown)
	}
	for what, err := range map[string]error{
		"add": c.AddToWorkflow(t.Context(), "w", job("a", "")), "close": c.CloseWorkflow(t.Context(), "w"), "cancel": c.CancelWorkflow(t.Context(), "w"),
	} {
		if !errors.Is(err, queue.ErrWorkflowUnknown) {
			t.Errorf("%s: got %v, want %v", what, err, queue.ErrWorkflowUnknown)
		}
	}
	// Without a node it waits in Redis, and can be asked for.
	if created, err := c.StartWorkflow(t.Context(), queue.Workflow{ID: "w", Open: true, Jobs: []queue.WorkflowJob{job("a", "a"), job("b", "b", "a")}}); !created || err != nil {
		t.Fatal(created, err)
	}
	if s, err := c.Workflow(t.Context(), "w"); err != nil || s.State != "stored" || s.Total != 2 || s.Waiting != 1 || !s.Open {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := c.StartWorkflow(t.Context(), queue.Workflow{ID: "w"}); !errors.Is(err, queue.ErrWorkflowExists) {
		t.Errorf("got %v, want %v", err, queue.ErrWorkflowExists)
	}
	if err := c.CloseWorkflow(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if err := c.AddToWorkflow(t.Context(), "w", job("z", "")); !errors.Is(err, queue.ErrWorkflowClosed) {
		t.Errorf("add behind a waiting close: got %v, want %v", err, queue.ErrWorkflowClosed)
	}
	jobs := make([]queue.WorkflowJob, 30_000)
	if _, err := c.StartWorkflow(t.Context(), queue.Workflow{ID: "long", Jobs: jobs}); !errors.Is(err, queue.ErrWorkflowTooLarge) || !strings.Contains(err.Error(), "it has 30000 jobs, at most") {
		t.Errorf("too many jobs: got %v", err)
	}
	// Adds that no node has handled count: together these have too many bytes that wait.
	if created, err := c.StartWorkflow(t.Context(), queue.Workflow{ID: "many", Open: true}); !created || err != nil {
		t.Fatal(created, err)
	}
	large.Payload = make([]byte, 20<<10)
	if err := c.AddToWorkflow(t.Context(), "many", job("a", "a"), large); err != nil {
		t.Fatal(err)
	}
	large.ID = "l2"
	if err := c.AddToWorkflow(t.Context(), "many", job("a", "a"), large); !errors.Is(err, queue.ErrWorkflowTooLarge) {
		t.Errorf("add behind a waiting add: got %v, want %v", err, queue.ErrWorkflowTooLarge)
	}
	large.ID = "l"
	if err := c.CloseWorkflow(t.Context(), "many"); err != nil {
		t.Fatal(err)
	}
	if err := c.AddToWorkflow(t.Context(), "many", job("a", "a"), large); err != nil {
		t.Errorf("the first add again, because its answer was lost: got %v", err)
	}
	if s, err := c.Workflow(t.Context(), "many"); err != nil || s.Total != 2 || s.Waiting != 1 || s.Open {
		t.Errorf("got %+v, %v", s, err)
	}
}

// TestWorkflowsNeedNewNodes checks that no workflow starts while a node of an older release would lose the ends of members.
func TestWorkflowsNeedNewNodes(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	c, err := protocol.Open(protocol.Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	old, err := c.Leases().Take(t.Context(), "old/1.1", []byte(`{}`), []byte(`{"queues":{},"features":["reshard"]}`), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := workflow.Start(t.Context(), c, workflow.Workflow{ID: "w"}); err == nil || !strings.Contains(err.Error(), "old/1.1 does not read workflows") {
		t.Errorf("got %v, want an error that names the old node", err)
	}
	if q, err := c.FindQueue(t.Context(), protocol.Workflows); q != nil || err != nil {
		t.Errorf("got queue %v, %v, want none", q, err)
	}
	if err := old.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if created, err := workflow.Start(t.Context(), c, workflow.Workflow{ID: "w"}); !created || err != nil {
		t.Errorf("without the old node: got %v, %v", created, err)
	}
}
