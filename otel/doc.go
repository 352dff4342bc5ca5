// Package otel answers one question: which push caused a handler call, and what did the call push in turn? It makes
// OpenTelemetry spans of pushes and handler calls. It is a module of its own, so that lowkiq does not depend on
// OpenTelemetry.
//
// [Push] is a middleware of pushes and [Handle] a middleware of handlers:
//
//	client, err := queue.Open(queue.Config{Redis: url, Middlewares: []queue.Middleware{otel.Push(provider)}})
//	rules := node.QueueConfig{Name: "orders", Middlewares: []node.Middleware{otel.Handle(provider)}}
//
// The context of a push's span travels with the payload, in the headers traceparent and tracestate (W3C Trace Context).
// So a trace also continues in handlers in other languages.
//
// Spans follow the semantic conventions for messaging, version 1.43.0:
//
//	attribute                            push  handle  value
//	messaging.system                     x     x       lowkiq
//	messaging.operation.name             x     x       push or handle; the span's name is this and the queue
//	messaging.operation.type             x     x       send or process; the span's kind is producer or consumer
//	messaging.destination.name           x     x       the queue
//	messaging.destination.partition.id         x       the index of the shard
//	messaging.batch.message_count        x     x       the number of payloads, unless it is 1
//	messaging.lowkiq.id                  x     x       the id, if the payload is alone; each link has it, too
//	messaging.lowkiq.attempt                   x       the number of the attempt, if the job is alone; from 1
//	messaging.lowkiq.merged              x             the number of jobs that merged with waiting payloads, unless it is 0
//	messaging.lowkiq.failed              x     x       the number of jobs that are not stored or have failed, unless it is 0
//	messaging.lowkiq.postponed                 x       the number of jobs that the handler postponed, unless it is 0
//	error.type                           x     x       the type of the error, if jobs have failed; the span's status is then Error
//
// Ids and texts of errors thus appear in traces, as they do in lists, pages and logs.
package otel
