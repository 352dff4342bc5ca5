package otel

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lowkiq/lowkiq"
)

// Handle returns a middleware that makes a consumer span of each handler call, for node.QueueConfig.Middlewares. The
// span has a link to the push of each payload with a readable header traceparent. The context of the handler has the
// span, so pushes and requests of the handler belong to it. Its follow-ups (lowkiq.Answer.Then) get the headers of the
// span, unless they have a traceparent of their own. A nil provider stands for the global provider.
//
// The push is also the parent of the span if the batch has a single payload and ctx has no span. So such a call is part
// of the trace of its push, and so is each retry. Other calls begin a trace, because a span has at most one parent.
//
// The status is Error if jobs have failed, are to be buried, or if the handler panicked. A postponed job is not an
// error.
func Handle(provider trace.TracerProvider) func(lowkiq.Handler) lowkiq.Handler {
	tracer := newTracer(provider)
	return func(next lowkiq.Handler) lowkiq.Handler {
		return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) (answer error) {
			ctx, span := startCall(ctx, tracer, batch)
			returned := false
			defer func() {
				if !returned {
					span.SetStatus(codes.Error, "the handler panicked")
					span.SetAttributes(semconv.ErrorTypeKey.String("panic"))
				}
				span.End()
			}()
			answer = next.Handle(ctx, batch)
			returned = true
			traceFollowUps(ctx, batch)
			recordAnswer(span, batch, answer)
			return answer
		})
	}
}

// traceFollowUps adds the trace of a handler call to its follow-ups, as Push does with pushes.
func traceFollowUps(ctx context.Context, batch *lowkiq.Batch) {
	batch.ChangeFollowUps(func(_ string, push *lowkiq.Push) { *push = addTrace(ctx, []lowkiq.Push{*push})[0] })
}

// startCall starts the span of a handler call.
func startCall(ctx context.Context, tracer trace.Tracer, batch *lowkiq.Batch) (context.Context, trace.Span) {
	attributes := []attribute.KeyValue{
		system, semconv.MessagingOperationName("handle"), semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(batch.Shard.Queue), semconv.MessagingDestinationPartitionID(strconv.Itoa(batch.Shard.Index)),
	}
	links, payloads := linkPayloads(batch)
	if payloads == 1 {
		attributes = append(attributes, idKey.String(batch.Jobs[0].ID))
		if len(links) == 1 && !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext)
		}
	} else {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(payloads))
	}
	if len(batch.Jobs) == 1 {
		attributes = append(attributes, attemptKey.Int(batch.Jobs[0].RetryCount+2))
	}
	return tracer.Start(ctx, "handle "+batch.Shard.Queue, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attributes...), trace.WithLinks(links...))
}

// linkPayloads returns a link for each payload with a trace, and the number of all payloads.
func linkPayloads(batch *lowkiq.Batch) (links []trace.Link, payloads int) {
	for i := range batch.Jobs {
		job := &batch.Jobs[i]
		payloads += len(job.Payloads)
		for k := range job.Payloads {
			header := job.Payloads[k].Header
			if !strings.Contains(string(header), `"traceparent":`) { // most payloads have none, and are not parsed
				continue
			}
			if from := contextOf(header.Map()); from.IsValid() {
				links = append(links, trace.Link{SpanContext: from, Attributes: []attribute.KeyValue{idKey.String(job.ID)}})
			}
		}
	}
	return links, payloads
}

// recordAnswer gives the span of a handler call its outcome.
func recordAnswer(span trace.Span, batch *lowkiq.Batch, answer error) {
	if answer == nil {
		return
	}
	failed, postponed := countJobs(batch, answer)
	setCount(span, failedKey, failed)
	setCount(span, postponedKey, postponed)
	if failed > 0 {
		setError(span, answer)
	}
}

// countJobs returns the number of jobs that an answer fails, and the number that it postpones.
func countJobs(batch *lowkiq.Batch, answer error) (failed, postponed int) {
	named, ok := findFailed(answer)
	unknown := len(named)
	for i := range batch.Jobs {
		err := answer
		if ok {
			var isNamed bool
			if err, isNamed = named[batch.Jobs[i].ID]; !isNamed {
				continue
			}
			unknown--
		}
		if isPostponed(err) {
			postponed++
		} else {
			failed++
		}
	}
	if unknown > 0 { // the node fails the whole batch
		return len(batch.Jobs), 0
	}
	return failed, postponed
}

// findFailed returns the Failed of an answer. An answer that joins it with other errors is about all jobs.
func findFailed(answer error) (named lowkiq.Failed, ok bool) {
	for ; answer != nil; answer = errors.Unwrap(answer) {
		if named, ok = answer.(lowkiq.Failed); ok {
			return named, true
		}
	}
	return nil, false
}

// isPostponed reports whether the error of a job, or of all jobs, postpones without a failure.
func isPostponed(err error) bool {
	if errors.As(err, new(lowkiq.Failed)) { // among other errors, see findFailed
		return false
	}
	return errors.As(err, new(lowkiq.Postpone)) || errors.As(err, new(lowkiq.Throttle))
}
