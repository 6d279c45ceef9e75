package span

import (
	"context"
	"log/slog"

	"github.com/cove-sandbox/cove/internal/op"
)

// Op makes each call of an operation a span. About tells, when it has ended, how,
// and what else is worth telling. Without a tracer the operation stays as it is.
func (t *Tracer) Op(o op.Op, about func(ctx context.Context, err error) (Status, []slog.Attr)) op.Op {
	if t == nil {
		return o
	}
	end := func(ctx context.Context, s *Span, err error) {
		status, attrs := about(ctx, err)
		s.Set(attrs...)
		s.End(status)
	}
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			ctx, s := t.Start(ctx, o.Name)
			out, err := call(ctx, in)
			end(ctx, s, err)
			return out, err
		}
	}
	if pump := o.Pump; pump != nil {
		o.Pump = func(ctx context.Context, in any, send func(op.Event) error) error {
			ctx, s := t.Start(ctx, o.Name)
			err := pump(ctx, in, send)
			end(ctx, s, err)
			return err
		}
	}
	return o
}
