package page

import (
	"context"
	"sync"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// kept are the settings of callers. They outlive the browser, which may be restarted at any time.
type kept struct {
	mu      sync.Mutex
	dialogs tab.DialogPolicy
	rules   tab.Rules

	permissions []tab.Permission
	position    *tab.Position
	positioned  bool
}

func (k *kept) set(change func(*kept)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k)
}

// apply makes a new browser follow the settings.
func (k *kept) apply(ctx context.Context, b *tab.Browser) error {
	k.mu.Lock()
	dialogs, rules := k.dialogs, k.rules
	permissions, position, positioned := k.permissions, k.position, k.positioned
	k.mu.Unlock()
	b.SetDialogPolicy(dialogs)
	if err := applyPermissions(ctx, b, permissions); err != nil {
		return err
	}
	if positioned {
		if err := b.SetPosition(ctx, position); err != nil {
			return err
		}
	}
	if len(rules.Headers)+len(rules.Scoped)+len(rules.Routes)+len(rules.Login) == 0 {
		return nil
	}
	return b.ChangeRules(ctx, func(r *tab.Rules) error { *r = rules; return nil })
}
