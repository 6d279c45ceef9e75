package hub

import (
	"context"
	"log/slog"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/span"
)

// traced makes an operation a span of a trace.
func (h *Hub) traced(o op.Op) op.Op {
	return h.cfg.Tracer.Op(o, func(ctx context.Context, err error) (span.Status, []slog.Attr) {
		code, _ := codeOf(err)
		return span.Status(code), about(op.CallOf(ctx))
	})
}

// ended ends the span of a call.
func (h *Hub) ended(ctx context.Context, s *span.Span, err error) {
	if s == nil {
		return
	}
	call := op.CallOf(ctx)
	s.Set(about(call)...)
	code, _ := codeOf(err)
	s.End(span.Status(code))
}

func about(call *op.Call) []slog.Attr {
	return []slog.Attr{slog.String("cove.tenant", call.Subject), slog.String("cove.sandbox", call.Target), slog.String("cove.request", call.ID)}
}
