package hub

import (
	"context"
	"log/slog"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/span"
)

// traced makes an operation a span of a trace.
func (h *Hub) traced(o op.Op) op.Op {
	if h.cfg.Tracer == nil {
		return o
	}
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			ctx, s := h.cfg.Tracer.Start(ctx, o.Name)
			out, err := call(ctx, in)
			h.ended(ctx, s, err)
			return out, err
		}
	}
	if pump := o.Pump; pump != nil {
		o.Pump = func(ctx context.Context, in any, send func(op.Event) error) error {
			ctx, s := h.cfg.Tracer.Start(ctx, o.Name)
			err := pump(ctx, in, send)
			h.ended(ctx, s, err)
			return err
		}
	}
	return o
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
