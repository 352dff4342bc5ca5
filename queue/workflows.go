package queue

import (
	"context"

	"github.com/lowkiq/lowkiq/queue/workflow"
)

// Workflow is a set of jobs in any queues. When all of them are done it makes a push, and when it cannot go on it makes another.
type Workflow = workflow.Workflow

// WorkflowJob is a job of a [Workflow].
type WorkflowJob = workflow.Job

// WorkflowStatus is what is known of a workflow.
type WorkflowStatus = workflow.Status

// Errors of workflows.
var (
	ErrWorkflow         = workflow.ErrInvalid  // a name, an id, a deadline or a circle is wrong
	ErrWorkflowTooLarge = workflow.ErrTooLarge // the jobs, or what waits for others, have too many bytes
	ErrWorkflowExists   = workflow.ErrExists   // another workflow has this id
	ErrWorkflowUnknown  = workflow.ErrUnknown
	ErrWorkflowClosed   = workflow.ErrClosed // no jobs can be added
)

// StartWorkflow starts a workflow. It stores all jobs of w or none, and a node then pushes them. created is false if the same
// workflow was started before under this id. Then nothing is done. So a start without an answer is safe to repeat. Due times
// of jobs do not make workflows different. Another workflow with the id is an ErrWorkflowExists. A workflow is kept for a
// week after its end.
//
// The jobs go through the middlewares and the codecs of their queues in this process. A job that a push would refuse refuses
// the workflow.
func (c *Client) StartWorkflow(ctx context.Context, w Workflow) (created bool, err error) {
	return workflow.Start(ctx, c.protocol, w)
}

// AddToWorkflow adds jobs to a workflow that was started open and not closed: all of them or none. The same call again does
// nothing, if it is among the last 200. After has names of jobs of this call.
func (c *Client) AddToWorkflow(ctx context.Context, id string, jobs ...WorkflowJob) error {
	return workflow.Add(ctx, c.protocol, id, jobs...)
}

// CloseWorkflow says that no more jobs will be added. Until then Done is not pushed. It may be repeated.
func (c *Client) CloseWorkflow(ctx context.Context, id string) error {
	_, err := workflow.Close(ctx, c.protocol, id)
	return err
}

// CancelWorkflow ends a workflow without a push. Jobs that wait for others are dropped. The other jobs are left alone. It
// may be repeated.
func (c *Client) CancelWorkflow(ctx context.Context, id string) error {
	_, err := workflow.Cancel(ctx, c.protocol, id)
	return err
}

// Workflow returns what is known of a workflow. The error is ErrWorkflowUnknown if there is none.
func (c *Client) Workflow(ctx context.Context, id string) (WorkflowStatus, error) {
	return workflow.Get(ctx, c.protocol, id)
}

// Workflows returns about n workflows, and the cursor of the next page, "" after the last page. The first cursor is "". A page
// has at most some 500, the newest first. Starts that no node has handled are left out.
func (c *Client) Workflows(ctx context.Context, cursor string, n int) (page []WorkflowStatus, next string, err error) {
	return workflow.List(ctx, c.protocol, "", cursor, n)
}
