package otel

import (
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation scope of all spans.
const scope = "github.com/lowkiq/lowkiq/otel"

// The attributes that the conventions do not have.
const (
	idKey        = attribute.Key("messaging.lowkiq.id")
	attemptKey   = attribute.Key("messaging.lowkiq.attempt")
	mergedKey    = attribute.Key("messaging.lowkiq.merged")
	failedKey    = attribute.Key("messaging.lowkiq.failed")
	postponedKey = attribute.Key("messaging.lowkiq.postponed")
)

var (
	system = semconv.MessagingSystemKey.String("lowkiq")
	format propagation.TraceContext
)

// newTracer returns the tracer of a provider. nil stands for the global provider.
func newTracer(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
}

// maxStatusBytes bounds the description of a status. An answer may have an error for each job of a batch.
const maxStatusBytes = 1 << 10

// setError gives a span the status Error.
func setError(span trace.Span, err error) {
	text := err.Error()
	if len(text) > maxStatusBytes {
		text = text[:maxStatusBytes] + "..."
	}
	span.SetAttributes(semconv.ErrorType(err))
	span.SetStatus(codes.Error, strings.ToValidUTF8(text, "\ufffd"))
}

// setCount sets an attribute unless n is 0.
func setCount(span trace.Span, key attribute.Key, n int) {
	if n > 0 {
		span.SetAttributes(key.Int(n))
	}
}
