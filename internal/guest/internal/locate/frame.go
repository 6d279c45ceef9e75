package locate

import (
	"context"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Evaluate evaluates a trusted expression in the page itself.
func Evaluate(ctx context.Context, t *tab.Tab, expression string, result any) error {
	return t.Browser().Client().Evaluate(ctx, t.Session(), expression, result)
}

// RetryStale repeats a query without side effects if its document was replaced in the meantime.
func RetryStale(ctx context.Context, query func() error) error {
	for {
		err := query()
		if err == nil || ctx.Err() != nil || !tab.IsStale(err) {
			return err
		}
	}
}

// EachFrame runs a query in all frames. Only an error in the main frame counts: other frames may be removed or not respond.
func EachFrame(ctx context.Context, t *tab.Tab, query func(f *tab.Frame) error) error {
	main := t.Main()
	if err := RetryStale(ctx, func() error { main = t.Main(); return query(main) }); err != nil {
		return err
	}
	for _, f := range t.Frames() {
		if f != main && f.Document() != "" {
			if err := query(f); err != nil && ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}
