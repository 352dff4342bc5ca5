package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/feed"
	"github.com/lowkiq/lowkiq/internal/text/shell"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/workflow"
	"github.com/lowkiq/lowkiq/web"
)

type workflowsCommand struct {
	List   workflowsList   `cmd:"" default:"withargs" help:"List workflows that have not ended, and those of the last week."`
	Show   workflowsShow   `cmd:"" help:"Show a workflow."`
	Start  workflowsStart  `cmd:"" help:"Start a workflow."`
	Close  workflowsClose  `cmd:"" help:"Let an open workflow take no more jobs."`
	Cancel workflowsCancel `cmd:"" help:"End a workflow without a push."`
}

// workflowPath returns the API's path of a workflow, with below appended.
func workflowPath(id, below string) string { return "/api/v1/workflows/" + escapeSegment(id) + below }

type workflowsList struct {
	nodeFlags `embed:""`
	State     string `enum:",running,done,dead,late,cancelled" default:"" help:"Only workflows in this state: running, done, dead, late or cancelled."`
	Limit     int    `default:"100" short:"n" help:"Number of workflows of a page, more or less: 1 to 1000."`
	Cursor    string `placeholder:"CURSOR" help:"Cursor of the page, as the page before has printed it."`
}

// Run prints a page of workflows.
func (c *workflowsList) Run(with *session) error {
	query := url.Values{"limit": {strconv.Itoa(c.Limit)}}
	if c.Cursor != "" {
		query.Set("cursor", c.Cursor)
	}
	if c.State != "" {
		query.Set("state", c.State)
	}
	var page web.Workflows
	return with.getAndPrint("/api/v1/workflows?"+query.Encode(), &page, func() {
		with.PrintTable("ID STATE TOTAL DONE DEAD WAITING RUNNING OPEN BEGAN ENDED", func(row func(string, ...any)) {
			for i := range page.Workflows {
				w := &page.Workflows[i]
				row("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%t\t%s\t%s", w.ID, w.State, w.Total, w.Done, w.Dead, w.Waiting, w.Running, w.Open, momentOr(w.Began), momentOr(w.Ended))
			}
		})
		if page.Next != "" {
			with.Printf("more with --cursor %s\n", page.Next)
		}
	})
}

type oneWorkflow struct {
	nodeFlags `embed:""`
	ID        string `arg:"" help:"Id of the workflow."`
}

type workflowsShow struct {
	oneWorkflow `embed:""`
}

// Run prints a workflow.
func (c *workflowsShow) Run(with *session) error {
	var w web.Workflow
	return with.getAndPrint(workflowPath(c.ID, ""), &w, func() { printWorkflow(with, &w) })
}

func printWorkflow(with *session, w *web.Workflow) {
	with.Printf("%-10s %s\n%-10s %s\n", "id:", w.ID, "state:", w.State)
	dropped := ""
	if w.Dropped > 0 {
		dropped = fmt.Sprintf(", %d dropped", w.Dropped)
	}
	with.Printf("%-10s %d: %d done, %d dead, %d running, %d waiting for others%s\n", "jobs:", w.Total, w.Done, w.Dead, w.Running, w.Waiting, dropped)
	for _, m := range w.DeadJobs {
		if m.Queue == "" {
			with.Printf("%-10s %s\n", "dead:", m.Name)
			continue
		}
		with.Printf("%-10s %s; see lowkiq-node morgue requeue %s %s\n", "dead:", memberText(&m), m.Queue, shell.Word(m.ID))
	}
	for _, m := range w.WaitingJobs {
		with.Printf("%-10s %s after %s\n", "waiting:", memberText(&m), strings.Join(m.After, ", "))
	}
	if more := w.Waiting - len(w.WaitingJobs); more > 0 {
		with.Printf("%-10s %d more\n", "waiting:", more)
	}
	if w.Open {
		with.Printf("%-10s yes, so it takes more jobs until it is closed\n", "open:")
	}
	with.Printf("%-10s %s\n%-10s %s\n", "began:", momentOr(w.Began), "ended:", momentOr(w.Ended))
}

// memberText returns the queue and the id of a job, and its name if that is another.
func memberText(m *web.WorkflowMember) string {
	text := m.Queue + "/" + m.ID
	if m.Name != text && m.Name != "" {
		text += " (" + m.Name + ")"
	}
	return text
}

// printAnswer prints the workflow in an answer.
func (c *oneWorkflow) printAnswer(with *session, answer []byte, err error) error {
	switch {
	case err != nil:
		return err
	case with.asJSON:
		return terminal.WriteJSON(with.Out, answer)
	}
	var w web.Workflow
	if err := decodeAnswer(workflowPath(c.ID, ""), answer, &w); err != nil {
		return err
	}
	printWorkflow(with, &w)
	return nil
}

type workflowsStart struct {
	oneWorkflow `embed:""`
	File        string `arg:"" optional:"" help:"File with the workflow in JSON; none or - is standard input."`
}

// Run starts a workflow.
func (c *workflowsStart) Run(with *session) error {
	var body []byte
	var err error
	if c.File == "" || c.File == "-" {
		body, err = io.ReadAll(with.In)
	} else {
		body, err = os.ReadFile(c.File)
	}
	if err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	answer, err := with.Put(with.ctx, workflowPath(c.ID, ""), "application/json", body)
	return c.printAnswer(with, answer, err)
}

type workflowsClose struct {
	oneWorkflow `embed:""`
}

// Run closes a workflow.
func (c *workflowsClose) Run(with *session) error {
	answer, err := with.Post(with.ctx, workflowPath(c.ID, "/close"), nil)
	return c.printAnswer(with, answer, err)
}

type workflowsCancel struct {
	oneWorkflow `embed:""`
	yesFlag     `embed:""`
}

// Run cancels a workflow.
func (c *workflowsCancel) Run(with *session) error {
	if c.asks(with) {
		var w web.Workflow
		if err := with.fetchJSON(workflowPath(c.ID, ""), &w); err != nil {
			return err
		}
		waiting := terminal.CountNoun(w.Waiting, "waiting job")
		if err := with.confirm("Cancel workflow %s for ever and drop its %s?", terminal.EscapeText(c.ID), waiting); err != nil {
			return err
		}
	}
	answer, err := with.Delete(with.ctx, workflowPath(c.ID, ""))
	return c.printAnswer(with, answer, err)
}

// workflowTarget adds jobs to a workflow, in parts that a workflow takes at once. It implements feed.Target.
type workflowTarget func(ctx context.Context, jobs []lowkiq.Push) error

// Parts of a push to a workflow.
const (
	maxWorkflowPart  = 500
	maxWorkflowBytes = 200 << 10
)

// Push adds jobs. Those of a part are stored or not, all of them.
func (t workflowTarget) Push(ctx context.Context, jobs ...lowkiq.Push) ([]protocol.Result, error) {
	results := make([]protocol.Result, len(jobs))
	var all error
	for from := 0; from < len(jobs); {
		to, size := from, 0
		for to < len(jobs) && to-from < maxWorkflowPart && (to == from || size+len(jobs[to].Payload) < maxWorkflowBytes) {
			size += len(jobs[to].Payload) + len(jobs[to].ID)
			to++
		}
		err := t(ctx, jobs[from:to])
		for ; from < to; from++ {
			results[from].Err = err
		}
		all = errors.Join(all, err)
	}
	return results, all
}

// workflowOfNode returns a target that adds jobs for a queue to a workflow through a node.
func (c *pushCommand) workflowOfNode(to nodeTarget) workflowTarget {
	return func(ctx context.Context, jobs []lowkiq.Push) error {
		body := []byte(`{"jobs":[`)
		for i := range jobs {
			line, err := pushBody(jobs[i : i+1])
			if err != nil {
				return err
			}
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, `{"queue":`+strconv.Quote(c.Queue)+`,`...)
			body = append(body, line[1:]...)
		}
		_, err := to.with.PostRaw(ctx, workflowPath(c.Workflow, "/jobs"), "application/json", append(body, "]}"...))
		if mayPass(err) {
			err = fmt.Errorf("%w: %w", feed.ErrAway, err)
		}
		return err
	}
}

// workflowOfRedis returns a target that adds jobs for a queue to a workflow in Redis.
func (c *pushCommand) workflowOfRedis(client *protocol.Client) workflowTarget {
	return func(ctx context.Context, jobs []lowkiq.Push) error {
		all := make([]workflow.Job, len(jobs))
		for i := range jobs {
			all[i] = workflow.Job{Queue: c.Queue, Push: jobs[i]}
		}
		return workflow.Add(ctx, client, c.Workflow, all...)
	}
}
