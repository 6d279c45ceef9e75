package sandbox

import "context"

// Budget reserves quota for bytes before a provider stores them for the caller of Create or ImportImage. An
// error ends the call, and the provider stores nothing. A negative number releases quota of bytes that
// were not stored.
type Budget func(bytes int64) error

type budgetKey struct{}

// WithBudget limits the bytes that calls with this context store.
func WithBudget(ctx context.Context, b Budget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// BudgetOf returns the budget of a call; nil if it has none.
func BudgetOf(ctx context.Context) Budget {
	b, _ := ctx.Value(budgetKey{}).(Budget)
	return b
}
