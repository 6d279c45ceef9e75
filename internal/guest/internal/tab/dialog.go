package tab

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// DialogPolicy is how dialogs are answered. The zero value dismisses all except beforeunload, which is always accepted.
type DialogPolicy struct {
	Accept bool
	Prompt *string // text for accepted prompts; nil: their default
}

// Dialog is an alert, confirm, prompt or beforeunload of a page.
type Dialog struct {
	Type     string    `json:"type" doc:"alert, confirm, prompt or beforeunload"`
	Message  string    `json:"message"`
	Default  string    `json:"default_value"`
	URL      string    `json:"url"`
	Accepted bool      `json:"accepted"`
	Open     bool      `json:"open" doc:"Whether the dialog is still open"`
	Time     time.Time `json:"timestamp"`
	session  cdp.SessionID
	answered bool
}

// SetDialogPolicy sets how later dialogs are answered.
func (b *Browser) SetDialogPolicy(p DialogPolicy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy = p
}

// DialogPolicy returns how dialogs are answered.
func (b *Browser) DialogPolicy() DialogPolicy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.policy
}

// Dialogs lists the dialogs of the tab, oldest first.
func (t *Tab) Dialogs() []Dialog {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	list := slices.Clone(t.dialogs)
	if t.dialog != nil {
		list = append(list, *t.dialog)
	}
	return list
}

func (t *Tab) dialogOpens(e cdp.Event) {
	p := decode[struct {
		URL     string `json:"url"`
		Message string `json:"message"`
		Type    string `json:"type"`
		Default string `json:"defaultPrompt"`
	}](e)
	d := &Dialog{Type: p.Type, Message: clip(p.Message), Default: clip(p.Default), URL: p.URL, Open: true,
		Time: time.Now(), session: e.Session}
	t.dialog = d
	if t.busy > 0 {
		t.b.spawn(func(context.Context) { t.b.answer(t, d) })
	}
	t.b.notify()
}

func (t *Tab) dialogCloses(e cdp.Event) {
	p := decode[struct {
		Result bool `json:"result"`
	}](e)
	if d := t.dialog; d != nil {
		d.Accepted, d.Open = p.Result, false
		t.dialogs = append(t.dialogs, *d)
		if len(t.dialogs) > maxDialogs {
			t.dialogs = t.dialogs[1:]
		}
		t.dialog = nil
	}
	t.b.notify()
}

// answer answers a dialog once, according to the policy.
func (b *Browser) answer(t *Tab, d *Dialog) {
	b.mu.Lock()
	policy, done := b.policy, d.answered || t.dialog != d
	d.answered = true
	b.mu.Unlock()
	if done {
		return
	}
	params := map[string]any{"accept": policy.Accept || d.Type == "beforeunload"}
	if policy.Accept && d.Type == "prompt" {
		params["promptText"] = d.Default
		if policy.Prompt != nil {
			params["promptText"] = *policy.Prompt
		}
	}
	ctx, cancel := context.WithTimeout(b.life, replyTime)
	defer cancel()
	// An error means that another client has answered it.
	_ = b.client.Call(ctx, d.session, "Page.handleJavaScriptDialog", params, nil)
}

// chooser is an intercepted file dialog.
type chooser struct {
	session cdp.SessionID
	Node    int64 `json:"backendNodeId"`
	Mode    string
}

func (t *Tab) chooserOpens(e cdp.Event) {
	c := decode[chooser](e)
	c.session = e.Session
	t.choosers = append(t.choosers, c)
	t.b.notify()
}

// InterceptChooser intercepts file dialogs for AwaitChooser until the result is called.
func (t *Tab) InterceptChooser(ctx context.Context) (func(), error) {
	t.b.mu.Lock()
	t.choosers = nil
	t.b.mu.Unlock()
	err := t.Call(ctx, "Page.setInterceptFileChooserDialog", map[string]any{"enabled": true}, nil)
	return func() {
		_ = t.Call(context.WithoutCancel(ctx), "Page.setInterceptFileChooserDialog", map[string]any{"enabled": false}, nil)
	}, err
}

// AwaitChooser waits for a file dialog and returns its input element.
func (t *Tab) AwaitChooser(ctx context.Context) (s cdp.SessionID, node int64, err error) {
	err = t.b.await(ctx, func() (bool, error) {
		if len(t.choosers) > 0 {
			s, node = t.choosers[0].session, t.choosers[0].Node
		}
		return len(t.choosers) > 0, t.check()
	})
	return s, node, err
}

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}

// rawText formats a remote object as the console does.
func rawText(raw json.RawMessage) string {
	var o struct {
		Type        string          `json:"type"`
		Subtype     string          `json:"subtype"`
		Value       json.RawMessage `json:"value"`
		Unserial    string          `json:"unserializableValue"`
		Description string          `json:"description"`
		Preview     *preview        `json:"preview"`
	}
	if json.Unmarshal(raw, &o) != nil {
		return ""
	}
	var text string
	switch {
	case json.Unmarshal(o.Value, &text) == nil && o.Type == "string":
		return text
	case o.Preview != nil && o.Subtype != "error":
		return o.Preview.text()
	case o.Unserial != "":
		return o.Unserial
	case o.Description != "":
		return o.Description
	case o.Value != nil:
		return string(o.Value)
	}
	return o.Type
}
