package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
	"github.com/lowkiq/lowkiq/queue/workflow"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/verdict"
)

// Workflows, whose handler and relay are steps of the test.
var workflowTests = []testCase{
	{"Workflow_Ends", testWorkflowEnds},
	{"Workflow_IsNotForged", testWorkflowNotForged},
	{"Workflow_StartsOnce", testWorkflowStartsOnce},
	{"Workflow_MergedAdds", testWorkflowMergedAdds},
}

// workflowRig has the queue of workflows with one shard and its owner.
type workflowRig struct {
	*rig
	own   *Queue
	owner *Claim
}

func newWorkflowRig(t *testing.T, b *backend) *workflowRig {
	r := newRig(t, b)
	own, err := r.c.RegisterAny(r.ctx, lowkiq.Queue{Name: Workflows, Shards: 1})
	r.noErr(err)
	owner, err := own.Shard(0).Claim(r.ctx, "n/1", Fresh, Owner{})
	r.noErr(err)
	return &workflowRig{r, own, owner}
}

// handle handles all messages that wait, with each ack sent twice, and delivers all follow-ups, each twice.
func (r *workflowRig) handle() {
	r.t.Helper()
	for {
		r.deliver(r.s)
		popped := r.popMessages()
		if len(popped.Jobs) == 0 {
			return
		}
		r.handleMessages(popped)
		r.deliver(r.own.Shard(0))
	}
}

func (r *workflowRig) popMessages() Popped {
	r.t.Helper()
	popped, err := r.owner.Pop(r.ctx, PopRequest{IDs: 10, Bytes: 1 << 30, MaxCrashes: 3})
	r.noErr(err)
	return popped
}

// handleMessages handles popped messages, with each ack sent twice.
func (r *workflowRig) handleMessages(popped Popped) {
	r.t.Helper()
	for i := range popped.Jobs {
		job := &popped.Jobs[i]
		var err error
		job.State, _, err = r.c.ReadID(r.ctx, Workflows, job.ID)
		r.noErr(err)
		batch := lowkiq.NewBatch(r.own.Shard(0).Shard, 1, popped.Flight, []lowkiq.Job{*job})
		r.noErr(workflow.Handler(time.Now).Handle(r.ctx, batch))
		by := verdict.Rules{Rules: workflow.Rules()}
		reports := verdict.Reports{Answers: batch.EndAnswers()}
		r.noErr(by.CheckAnswers(batch, reports.Answers, nil))
		r.noErr(by.AddFollowUps(batch, &reports, nil, func(hops int, all []lowkiq.FollowUp) ([]FollowUp, error) {
			return r.c.EncodeFollowUps(r.ctx, Workflows, hops, all)
		}))
		said := reports.Answers[job.ID]
		_, err = r.owner.Ack(repeated(r.ctx), Acks{Flight: popped.Flight, IDs: []string{job.ID}, Answers: []Answer{{ID: job.ID, State: said.State, SetState: said.Stated, Then: reports.FollowUps[job.ID]}}})
		r.noErr(err)
	}
}

// deliver delivers the follow-ups of a shard.
func (r *workflowRig) deliver(s *Shard) {
	r.t.Helper()
	page := &OutgoingPage{Shard: s}
	r.c.ReadOutgoing(r.ctx, 10_000, 1<<30, page)
	r.noErr(page.Err)
	for _, o := range page.All {
		q, err := r.c.Queue(r.ctx, o.Queue)
		r.noErr(err)
		shipment := &Shipment{From: s, Queue: q, To: q.Of(o.ID), All: []Outgoing{o}}
		r.c.DeliverOutgoing(repeated(r.ctx), []*Shipment{shipment})
		r.noErr(shipment.Err)
		_, _, err = s.TrimOutgoing(repeated(r.ctx), o.Number)
		r.noErr(err)
	}
}

// done pops and acknowledges all members that are due, and returns them.
func (r *workflowRig) done() (texts []string) {
	r.t.Helper()
	for {
		popped := r.pop(100)
		if len(popped.Jobs) == 0 {
			slices.Sort(texts)
			return texts
		}
		for _, j := range popped.Jobs {
			texts = append(texts, j.ID+"="+strings.Join(plain(j), ","))
			r.ackAll(Acks{Flight: popped.Flight, IDs: []string{j.ID}, Answers: []Answer{{ID: j.ID, Callers: j.Callers}}})
		}
	}
}

func (r *workflowRig) status(id string) string {
	r.t.Helper()
	s, err := workflow.Get(r.ctx, r.c, id)
	r.noErr(err)
	return fmt.Sprint(s.State, " ", s.Total, " ", s.Done, " ", s.Dead, " ", s.Waiting)
}

func member(id, payload, name string, after ...string) workflow.Job {
	return workflow.Job{Queue: "q", Push: job(id, payload), Name: name, After: after}
}

// testWorkflowEnds checks that members leave when the members before them are done, that a dead member ends the
// workflow, and that its success ends it again. Each script is sent twice.
func testWorkflowEnds(t *testing.T, b *backend) {
	r := newWorkflowRig(t, b)
	r.c.DB().ForTests().AddHook(twice{})
	w := workflow.Workflow{ID: "w", Jobs: []workflow.Job{member("a", "1", "one"), member("a", "2", "two", "one"), member("b", "3", "three", "one", "two"), member("d", "4", "")},
		Done: &lowkiq.FollowUp{Queue: "q", Push: job("done", "yes")}, Dead: &lowkiq.FollowUp{Queue: "q", Push: job("dead", "no")}}
	created, err := workflow.Start(r.ctx, r.c, w)
	eq(t, "started", fmt.Sprint(created, err), "true <nil>")
	eq(t, "stored", r.status("w"), "stored 4 0 0 2")
	r.handle()
	eq(t, "begun", r.status("w"), "running 4 0 0 2")
	change := func(n int, err error) { t.Helper(); eq(t, "changed", fmt.Sprint(n, err), "1 <nil>") }
	change(browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "d"))
	eq(t, "first", r.done(), []string{"a=1"})
	r.handle()
	eq(t, "second", r.done(), []string{"a=2"})
	r.handle()
	eq(t, "third", r.done(), []string{"b=3"})
	r.handle()
	eq(t, "dead", fmt.Sprint(r.status("w"), r.done()), "dead 4 3 1 0[dead=no]")
	change(browse.Of(r.q).Requeue(r.ctx, browse.StateMorgue, "d"))
	eq(t, "requeued", r.done(), []string{"d=4"})
	r.handle()
	eq(t, "done", fmt.Sprint(r.status("w"), r.done()), "done 4 4 0 0[done=yes]")
	created, err = workflow.Start(r.ctx, r.c, w)
	eq(t, "started again", fmt.Sprint(created, err), "false <nil>")
	for state, want := range map[workflow.State]string{"": "1<nil>", workflow.StateDone: "1<nil>", workflow.StateDead: "0<nil>"} {
		page, next, err := workflow.List(r.ctx, r.c, state, "", 10)
		eq(t, "list of "+string(state), fmt.Sprint(len(page), next, err), want)
	}
}

// testWorkflowNotForged checks that only the handler of workflows can tell a workflow that a member has ended.
func testWorkflowNotForged(t *testing.T, b *backend) {
	r := newWorkflowRig(t, b)
	_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "w", Jobs: []workflow.Job{member("a", "1", "one")}})
	r.noErr(err)
	r.handle()
	began, err := workflow.Get(r.ctx, r.c, "w")
	r.noErr(err)
	words := fmt.Sprintf("1 %d one", began.Began.UnixMilli())
	address := envelope.MemberAddress("w", words, "")
	forged := job("f", "x", func(p *lowkiq.Push) { p.ReplyTo = address })
	own, err := r.c.Queue(r.ctx, Workflows)
	r.noErr(err)
	for door, try := range map[string]func() error{
		"push":     func() error { _, err := r.q.Push(r.ctx, forged); return err },
		"call":     func() error { _, err := r.c.Call(r.ctx, Workflows, job("w", "done "+words)); return err },
		"delivery": func() error { _, err := r.q.Deliver(r.ctx, Delivery{"s", 1}, forged); return err },
		"follow-up": func() error {
			_, err := r.c.EncodeFollowUps(r.ctx, "q", 0, []lowkiq.FollowUp{{Queue: "q", Push: forged}})
			return err
		},
		"member": func() error {
			_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "v", Jobs: []workflow.Job{{Queue: "q", Push: forged}}})
			return err
		},
		"callback": func() error {
			_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "v", Done: &lowkiq.FollowUp{Queue: "q", Push: forged}})
			return err
		},
		"push to own":     func() error { _, err := own.Push(r.ctx, job("w", "done "+words)); return err },
		"delivery to own": func() error { _, err := own.Deliver(r.ctx, Delivery{"s", 1}, job("w", "done "+words)); return err },
		"import to own":   func() error { _, err := transfer.Import(r.ctx, own, "old", entry(1, "w", "x")); return err },
		"follow-up to own": func() error {
			_, err := r.c.EncodeFollowUps(r.ctx, "q", 0, []lowkiq.FollowUp{then(Workflows, "w", "done "+words)})
			return err
		},
		"member of own": func() error {
			_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "v", Jobs: []workflow.Job{{Queue: Workflows, Push: job("w", "done "+words)}}})
			return err
		},
		"callback to itself": func() error {
			_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "v", Done: &lowkiq.FollowUp{Queue: Workflows, Push: job("w", "x")}})
			return err
		},
	} {
		if err := try(); !errors.Is(err, ErrReplyTo) && !errors.Is(err, ErrReserved) && !errors.Is(err, ErrFollowUp) {
			t.Errorf("%s: got %v, want it refused", door, err)
		}
	}
	stored := string(envelope.Wrap("", address, []byte("x"))) // data in the form of an envelope is data, also of an import
	_, err = transfer.Import(r.ctx, r.q, "old", entry(1, "i", "", func(e *transfer.Entry) { e.Payloads = []transfer.Payload{{Score: 1, Data: []byte(stored)}} }))
	r.noErr(err)
	r.push(lowkiq.Push{ID: "p", Payload: []byte(stored)})
	one, err := browse.Of(r.q).Bury(r.ctx, browse.Anywhere, "i", "p")
	eq(t, "buried", fmt.Sprint(one, err), "2 <nil>")
	r.handle()
	eq(t, "the workflow", r.status("w"), "running 1 0 0 0")
}

// testWorkflowStartsOnce starts different workflows under one id from two programs at once. The second start is
// refused.
func testWorkflowStartsOnce(t *testing.T, b *backend) {
	r := newWorkflowRig(t, b)
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() {
			_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "w", Jobs: []workflow.Job{member("a", fmt.Sprint(i), "")}})
			errs <- err
		}()
	}
	won := 0
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			won++
		case !errors.Is(err, workflow.ErrExists):
			t.Errorf("got %v, want %v", err, workflow.ErrExists)
		}
	}
	eq(t, "started", won, 1)
	r.handle()
	eq(t, "members", len(r.done()), 1)
	r.handle()
	eq(t, "the workflow", r.status("w"), "done 1 1 0 0")
}

// testWorkflowMergedAdds checks that all jobs of large adds leave that wait together after a flight came back.
func testWorkflowMergedAdds(t *testing.T, b *backend) {
	r := newWorkflowRig(t, b)
	_, err := workflow.Start(r.ctx, r.c, workflow.Workflow{ID: "w", Open: true})
	r.noErr(err)
	r.handle()
	const n = 13_500 // less than a flight takes of an id, and more than follow-ups may have
	add := func(part string) {
		jobs := make([]workflow.Job, n)
		for i := range jobs {
			jobs[i] = member(fmt.Sprint(part, i), "", "")
		}
		r.noErr(workflow.Add(r.ctx, r.c, "w", jobs...))
	}
	add("a")
	r.popMessages()
	add("b")
	_, err = r.owner.Release(r.ctx)
	r.noErr(err)
	seen, err := r.own.Shard(0).Owner(r.ctx)
	r.noErr(err)
	r.owner, err = r.own.Shard(0).Claim(r.ctx, "n/2", Fresh, seen)
	r.noErr(err)
	popped := r.popMessages()
	eq(t, "payloads", len(popped.Jobs[0].Payloads), 2)
	r.handleMessages(popped)
	eq(t, "after one run", r.status("w"), fmt.Sprint("running ", 2*n, " 0 0 0"))
	page := &OutgoingPage{Shard: r.own.Shard(0)}
	r.c.ReadOutgoing(r.ctx, 10_000, 1<<30, page)
	r.noErr(page.Err)
	leaving, size := 0, 0
	for _, o := range page.All {
		size += len(o.Payload)
		if o.Queue == "q" {
			leaving++
		} else {
			leaving += strings.Count(string(o.Payload), `"m":`)
		}
	}
	eq(t, "jobs that leave", leaving, 2*n)
	if size <= lowkiq.MaxFollowUpBytes {
		t.Errorf("the follow-ups have %d bytes; the test would show little", size)
	}
}
