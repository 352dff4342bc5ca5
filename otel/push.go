package otel

import (
	"context"
	"maps"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
)

// Push returns a middleware that makes a producer span of each push, whatever the number of its jobs. The span ends
// when Redis has answered. Its context goes into the headers of the jobs. A job that has the header traceparent keeps
// it, and the span has a link to that context. A nil provider stands for the global provider.
//
// The middleware belongs into Config.Middlewares of a client or, for the pushes of a single queue, into
// PushRules.Middlewares or node.QueueConfig.PushMiddlewares.
//
// If an equal payload of the id waits already, the jobs merge and the headers of the waiting payload stay. The handler
// call then belongs to the earlier push, and the span of the later push counts the merge.
//
// A job must not be refused for a header that its sender did not give. So a job goes without a trace if its headers
// would exceed lowkiq.MaxHeaderBytes, or if its payload leaves less than that below lowkiq.MaxPayloadBytes.
func Push(provider trace.TracerProvider) queue.Middleware {
	tracer := newTracer(provider)
	return func(name string, next queue.Pusher) queue.Pusher {
		return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
			if len(jobs) == 0 {
				return next(ctx, jobs)
			}
			ctx, span := tracer.Start(ctx, "push "+name, trace.WithSpanKind(trace.SpanKindProducer),
				trace.WithAttributes(system, semconv.MessagingOperationName("push"), semconv.MessagingOperationTypeSend, semconv.MessagingDestinationName(name)),
				trace.WithLinks(linkJobs(jobs)...))
			defer span.End()
			if len(jobs) == 1 {
				span.SetAttributes(idKey.String(jobs[0].ID))
			} else {
				span.SetAttributes(semconv.MessagingBatchMessageCount(len(jobs)))
			}
			results, err := next(ctx, addTrace(ctx, jobs))
			recordResults(span, results, err)
			return results, err
		}
	}
}

// recordResults gives the span of a push its outcome.
func recordResults(span trace.Span, results []queue.Result, err error) {
	merged, failed := 0, 0
	for i := range results {
		if results[i].Merged {
			merged++
		}
		if results[i].Err != nil {
			failed++
		}
	}
	setCount(span, mergedKey, merged)
	setCount(span, failedKey, failed)
	if err != nil {
		setError(span, err)
	}
}

// linkJobs returns a link for each job that has a trace of its own.
func linkJobs(jobs []lowkiq.Push) (links []trace.Link) {
	for i := range jobs {
		if from := contextOf(jobs[i].Header); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from, Attributes: []attribute.KeyValue{idKey.String(jobs[i].ID)}})
		}
	}
	return links
}

// contextOf returns the span context in headers. It is invalid if they have none that can be read.
func contextOf(header map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(format.Extract(context.Background(), propagation.MapCarrier(header)))
}

// addTrace returns jobs with the trace of ctx. It leaves out jobs that have a trace of their own or no room.
func addTrace(ctx context.Context, jobs []lowkiq.Push) []lowkiq.Push {
	own := propagation.MapCarrier{}
	format.Inject(ctx, own)
	if header, err := lowkiq.NewHeader(own); header == "" || err != nil {
		return jobs
	}
	jobs = slices.Clone(jobs)
	for i := range jobs {
		job := &jobs[i]
		switch {
		case job.Header["traceparent"] != "" || len(job.Payload)+lowkiq.MaxHeaderBytes > lowkiq.MaxPayloadBytes:
			continue
		case len(job.Header) == 0:
			job.Header = own // the jobs may share it
			continue
		}
		both := maps.Clone(job.Header)
		delete(both, "tracestate") // without its traceparent it has no meaning
		maps.Copy(both, own)
		if _, err := lowkiq.NewHeader(both); err == nil {
			job.Header = both
		}
	}
	return jobs
}
