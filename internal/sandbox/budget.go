package sandbox

import "context"

// Budget reserves room for bytes that a provider is about to store for the caller of Create
// or ImportImage. An error ends the call, and the provider keeps nothing of it. A negative
// number returns room for bytes that were not kept after all.
type Budget func(bytes int64) error

type budgetKey struct{}

// WithBudget bounds what the calls with this context store.
func WithBudget(ctx context.Context, b Budget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// BudgetOf returns the budget of a call; nil if it has none.
func BudgetOf(ctx context.Context) Budget {
	b, _ := ctx.Value(budgetKey{}).(Budget)
	return b
}
