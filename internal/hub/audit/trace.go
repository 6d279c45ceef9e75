package audit

import (
	"context"
	"log/slog"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// Trace wraps an operation, so that each call is a span of a trace.
func (r *Recorder) Trace(o op.Op) op.Op {
	return r.Tracer.Op(o, func(ctx context.Context, err error) (span.Status, []slog.Attr) {
		code, _ := codeOf(err)
		return span.Status(code), Attrs(op.CallOf(ctx))
	})
}

// EndSpan ends the span of a call; a nil span is ignored.
func EndSpan(ctx context.Context, s *span.Span, err error) {
	if s == nil {
		return
	}
	s.Set(Attrs(op.CallOf(ctx))...)
	code, _ := codeOf(err)
	s.End(span.Status(code))
}

// Attrs describe a call in its span.
func Attrs(call *op.Call) []slog.Attr {
	return []slog.Attr{slog.String("cove.tenant", call.Subject), slog.String("cove.sandbox", call.Target),
		slog.String("cove.request", call.ID)}
}
