package span

import (
	"context"
	"log/slog"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Op returns the operation with a span around each call. outcome returns the status and the
// attributes of a finished call. A nil tracer returns the operation unchanged.
func (t *Tracer) Op(o op.Op, outcome func(ctx context.Context, err error) (Status, []slog.Attr)) op.Op {
	if t == nil {
		return o
	}
	return t.wrap(o, outcome)
}

func (t *Tracer) wrap(o op.Op, outcome func(ctx context.Context, err error) (Status, []slog.Attr)) op.Op {
	name := o.Name // not o itself: closures would keep a copy of it for every operation
	end := func(ctx context.Context, s *Span, err error) {
		status, attrs := outcome(ctx, err)
		s.Set(attrs...)
		s.End(status)
	}
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			ctx, s := t.Start(ctx, name)
			out, err := call(ctx, in)
			end(ctx, s, err)
			return out, err
		}
	}
	if stream := o.Stream; stream != nil {
		o.Stream = func(ctx context.Context, in any, send func(op.Event) error) error {
			ctx, s := t.Start(ctx, name)
			err := stream(ctx, in, send)
			end(ctx, s, err)
			return err
		}
	}
	return o
}
