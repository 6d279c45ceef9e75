package prompt

import (
	"context"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Dialogs lists the dialogs of the tab.
func (s *Service) Dialogs(ctx context.Context, in driver.Here) ([]tab.Dialog, error) {
	out := []tab.Dialog{}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		t, err := s.d.Tab(ctx, b, recent, in.Tab)
		if err == nil {
			out = append(out, t.Dialogs()...)
		}
		return err
	})
	return out, err
}

// DialogPolicyIn sets how dialogs are answered.
type DialogPolicyIn struct {
	Action string  `json:"action" doc:"accept or dismiss" enum:"accept,dismiss"`
	Prompt *string `json:"prompt_text" doc:"Text for accepted prompts; default: the default of the page"`
}

// DialogPolicy is how dialogs are answered.
type DialogPolicy struct {
	Action string  `json:"action"`
	Prompt *string `json:"prompt_text"`
}

// SetDialogPolicy sets how dialogs are answered. An open dialog is answered immediately.
func (s *Service) SetDialogPolicy(ctx context.Context, in DialogPolicyIn) (*DialogPolicy, error) {
	policy := tab.DialogPolicy{Accept: in.Action == "accept", Prompt: in.Prompt}
	err := s.d.WithBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
		s.mu.Lock()
		s.dialogs = policy
		s.mu.Unlock()
		b.SetDialogPolicy(policy)
		for _, t := range b.Tabs() {
			t.Begin()()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &DialogPolicy{in.Action, in.Prompt}, nil
}
