// Package workflow answers one question: when have all pushes of a set ended? A [Workflow] is a set of pushes to any
// queues. When all of them are done, it makes a push. When it cannot go on, it makes another push.
//
// A workflow is an id of the built-in queue lowkiq.workflows (protocol.Workflows), and each node handles that queue. [Start]
// is one push. The handler (handler.go) keeps a state for the id and calls step (step.go), which is a pure function of the
// state and of messages. Messages are the requests of programs and the ends of members. Members leave as follow-ups of the
// handler's runs, and each end of a member is a follow-up to the workflow, so each is counted exactly once.
package workflow
