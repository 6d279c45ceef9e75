package page

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

func (s *Service) tabOps() []op.Op {
	return []op.Op{
		op.New(reading(columns(spec("browser_tab_list", "GET /v1/browser/tabs", "list_tabs", "tabs",
			"List the tabs in the order in which they were opened. The active one is the one that the display shows."), "index", "is_active", "title", "url")), s.Tabs),
		op.New(spec("browser_new_tab", "POST /v1/browser/tabs", "create_tab", "tab-new",
			"Open a tab, after all others, and make it the active one."), s.CreateTab),
		op.New(spec("browser_close_tab", "DELETE /v1/browser/tabs/{index}", "close_tab", "tab-close",
			"Close a tab. Closing the last one leaves a blank one."), s.CloseTab),
		op.New(spec("browser_switch_tab", "PUT /v1/browser/tabs/{index}/activate", "activate_tab", "tab-activate",
			"Make a tab the active one."), s.ActivateTab),
		op.New(reading(spec("browser_get_download_list", "GET /v1/browser/downloads", "list_downloads", "downloads",
			"List the downloads since the browser started, oldest first.")), s.Downloads),
		op.New(reading(spec("browser_dialogs", "GET /v1/browser/dialogs", "list_dialogs", "dialogs",
			"List the dialogs that the page has opened (alert, confirm, prompt, beforeunload), and how they were answered.")), s.Dialogs),
		op.New(spec("browser_dialog_policy", "POST /v1/browser/dialogs", "set_dialog_policy", "dialog-policy",
			"Set how dialogs are answered from now on. By default they are dismissed, and pages may be left."), s.SetDialogPolicy),
		op.New(reading(spec("browser_permissions", "GET /v1/browser/permissions", "list_permissions", "permissions",
			"List how permission prompts of pages are answered.")), s.Permissions),
		op.New(spec("browser_permission_policy", "POST /v1/browser/permissions", "set_permissions",
			"permission-policy", "Set how permission prompts of pages are answered from now on: granted, denied, "+
				"or prompt, which asks on the display. By default all are denied, so that no page waits."), s.SetPermissions),
		op.New(reading(spec("browser_contexts", "GET /v1/browser/contexts", "list_contexts", "contexts",
			"List the isolated contexts.")), s.Contexts),
		op.New(spec("browser_context_create", "POST /v1/browser/contexts", "create_context", "context-create",
			"Create an isolated context and open a tab in it: its cookies and storage are its own, so that several "+
				"sign-ins work side by side."), s.CreateContext),
		op.New(destroying(spec("browser_context_delete", "DELETE /v1/browser/contexts/{id}", "delete_context",
			"context-delete", "Close all tabs of an isolated context and delete its data.")), s.DeleteContext),
		op.New(reading(spec("browser_captcha_detect", "GET /v1/browser/captcha/detect", "detect_captcha",
			"captcha-detect", "Detect a captcha on the page that has not been solved.")), s.DetectCaptcha),
		op.New(spec("browser_captcha_wait", "POST /v1/browser/captcha/wait", "wait_for_captcha", "captcha-wait",
			"Wait until a person has solved the captcha on the page."), s.WaitForCaptcha),
	}
}

func destroying(s op.Spec) op.Spec { s.Destructive = true; return s }

// Tab is one tab.
type Tab struct {
	Index   int    `json:"index"`
	Title   string `json:"title"`
	URL     string `json:"url"`
	Active  bool   `json:"is_active"`
	Active2 bool   `json:"active" doc:"The same as is_active"`
	ID      string `json:"id"`
	TabID   string `json:"tab_id" doc:"The same as id"`
	Context string `json:"context,omitempty" doc:"Isolated context of the tab"`
	Crashed bool   `json:"crashed,omitempty" doc:"Whether its page has crashed; reload it"`
}

func (s *Service) describeTab(b *tab.Browser, t *tab.Tab, index int, current *tab.Tab) Tab {
	out := Tab{Index: index, Title: t.Title(), URL: t.URL(), Active: t == current, Active2: t == current, ID: t.ID, TabID: t.ID}
	if _, own := b.Contexts()[t.Context]; own {
		out.Context = t.Context
	}
	out.Crashed = t.Check() != nil
	return out
}

// withBrowser runs fn on the browser as a whole.
func (s *Service) withBrowser(ctx context.Context, fn func(ctx context.Context, b *tab.Browser, recent []string) error) error {
	b, recent, release, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer release()
	bounded, cancel := context.WithTimeout(ctx, navigationTime)
	defer cancel()
	err = fn(bounded, b, recent)
	s.cfg.Browser.HintRestart(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && bounded.Err() != nil {
		return op.Errorf(op.Unavailable, "timed out after %v; try again", navigationTime)
	}
	return toOpError(err)
}

// Tabs lists the tabs.
func (s *Service) Tabs(ctx context.Context, _ op.None) ([]Tab, error) {
	out := []Tab{}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		current, tabs := s.active(b, recent), b.Tabs()
		for i, t := range tabs {
			out = append(out, s.describeTab(b, t, i, current))
		}
		// The browser reports titles late; a page that does not respond has the last one known.
		var all sync.WaitGroup
		for i, t := range tabs {
			all.Go(func() { out[i].Title = s.locate(ctx, t).Title })
		}
		all.Wait()
		return nil
	})
	return out, err
}

// CreateTabIn is what a new tab shows.
type CreateTabIn struct {
	URL     *string `json:"url" doc:"Address to open; default: a blank page" arg:"true"`
	Context *string `json:"context" doc:"Isolated context of the tab"`
}

// CreateTab opens a tab.
func (s *Service) CreateTab(ctx context.Context, in CreateTabIn) (*Tab, error) {
	address := ""
	if in.URL != nil && *in.URL != "" {
		var err error
		if address, err = completeURL(*in.URL); err != nil {
			return nil, err
		}
	}
	var out Tab
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		if c := op.Value(in.Context); c != "" {
			if _, ok := b.Contexts()[c]; !ok {
				return op.Errorf(op.NotFound, "no such context: %q; list the contexts", c)
			}
		}
		t, err := b.Create(ctx, op.Value(in.Context), false)
		if err != nil {
			return err
		}
		s.makeActive(t, recent)
		defer t.Begin()()
		if address != "" && address != "about:blank" {
			if err := t.Navigate(ctx, address, tab.Load); err != nil {
				return s.explainNavigation(ctx, t, address, "load", err)
			}
		}
		out = s.describeTab(b, t, slices.Index(b.Tabs(), t), t)
		out.Title = s.locate(ctx, t).Title
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// TabIn names a tab.
type TabIn struct {
	Index int `path:"index" doc:"Index of the tab"`
}

// Closed says which tab was closed.
type Closed struct {
	Closed int  `json:"closed"`
	Active *int `json:"active" doc:"Index of the tab that is active now"`
}

// CloseTab closes a tab.
func (s *Service) CloseTab(ctx context.Context, in TabIn) (*Closed, error) {
	out := &Closed{Closed: in.Index}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		t, err := s.choose(b, recent, &in.Index)
		if err != nil {
			return err
		}
		if len(b.Tabs()) == 1 { // before the browser's window closes with it
			if _, err := b.Create(ctx, "", false); err != nil {
				return err
			}
		}
		return b.CloseTab(ctx, t)
	})
	if err != nil {
		return nil, err
	}
	err = s.withBrowser(ctx, func(_ context.Context, b *tab.Browser, recent []string) error {
		if i := slices.Index(b.Tabs(), s.active(b, recent)); i >= 0 {
			out.Active = &i
		}
		return nil
	})
	return out, err
}

// ActivateTab brings a tab to the front.
func (s *Service) ActivateTab(ctx context.Context, in TabIn) (*Tab, error) {
	var out Tab
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		t, err := s.choose(b, recent, &in.Index)
		if err != nil {
			return err
		}
		if err := b.Activate(ctx, t); err != nil {
			return err
		}
		s.makeActive(t, recent)
		out = s.describeTab(b, t, in.Index, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// Download is a file that was downloaded.
type Download struct {
	tab.Download
	Filename string  `json:"filename" doc:"The same as suggested_filename"`
	Size     int64   `json:"size" doc:"Bytes received so far"`
	Progress float64 `json:"progress" doc:"From 0 to 1; 0 while the size is unknown"`
}

// Downloads lists the downloads.
func (s *Service) Downloads(ctx context.Context, _ op.None) ([]Download, error) {
	out := []Download{}
	err := s.withBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
		for _, d := range b.Downloads() {
			one := Download{Download: d, Filename: d.Name, Size: d.Received}
			if d.State == "completed" {
				one.Progress = 1
			} else if d.Total > 0 {
				one.Progress = float64(d.Received) / float64(d.Total)
			}
			out = append(out, one)
		}
		return nil
	})
	return out, err
}

// Dialogs lists the dialogs of the tab.
func (s *Service) Dialogs(ctx context.Context, in Here) ([]tab.Dialog, error) {
	out := []tab.Dialog{}
	err := s.withBrowser(ctx, func(_ context.Context, b *tab.Browser, recent []string) error {
		t, err := s.choose(b, recent, in.Tab)
		if err == nil {
			out = append(out, t.Dialogs()...)
		}
		return err
	})
	return out, err
}

// DialogPolicyIn says how to answer dialogs.
type DialogPolicyIn struct {
	Action string  `json:"action" doc:"accept or dismiss" enum:"accept,dismiss"`
	Prompt *string `json:"prompt_text" doc:"Text for prompts that are accepted; default: the page's own"`
}

// DialogPolicy is how dialogs are answered.
type DialogPolicy struct {
	Action string  `json:"action"`
	Prompt *string `json:"prompt_text"`
}

// SetDialogPolicy sets how dialogs are answered. An open one is answered at once.
func (s *Service) SetDialogPolicy(ctx context.Context, in DialogPolicyIn) (*DialogPolicy, error) {
	policy := tab.DialogPolicy{Accept: in.Action == "accept", Prompt: in.Prompt}
	err := s.withBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
		s.kept.set(func(k *kept) { k.dialogs = policy })
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

// Context is an isolated context.
type Context struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Tabs []int  `json:"tabs" doc:"Indexes of its tabs"`
}

// Contexts lists the isolated contexts.
func (s *Service) Contexts(ctx context.Context, _ op.None) ([]Context, error) {
	out := []Context{}
	err := s.withBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
		for id, name := range b.Contexts() {
			out = append(out, describeContext(b, id, name))
		}
		sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
		return nil
	})
	return out, err
}

func describeContext(b *tab.Browser, id, name string) Context {
	c := Context{ID: id, Name: name, Tabs: []int{}}
	for i, t := range b.Tabs() {
		if t.Context == id {
			c.Tabs = append(c.Tabs, i)
		}
	}
	return c
}

// CreateContextIn names a context.
type CreateContextIn struct {
	Name string `json:"name" doc:"Name for people" default:""`
}

// CreateContext creates an isolated context.
func (s *Service) CreateContext(ctx context.Context, in CreateContextIn) (*Context, error) {
	var out Context
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		id, err := b.CreateContext(ctx, in.Name)
		if err != nil {
			return err
		}
		t, err := b.Create(ctx, id, false)
		if err != nil {
			return err
		}
		s.makeActive(t, recent)
		out = describeContext(b, id, in.Name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// ContextIn names a context.
type ContextIn struct {
	ID string `path:"id" doc:"ID of the context"`
}

// DeleteContext deletes an isolated context.
func (s *Service) DeleteContext(ctx context.Context, in ContextIn) (*Context, error) {
	var out Context
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		name, ok := b.Contexts()[in.ID]
		if !ok {
			return op.Errorf(op.NotFound, "no such context: %q; list the contexts", in.ID)
		}
		out = Context{ID: in.ID, Name: name}
		return b.DisposeContext(ctx, in.ID)
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// Captcha describes a captcha.
type Captcha struct {
	Detected bool    `json:"detected"`
	Type     *string `json:"type" doc:"recaptcha, hcaptcha, turnstile, cloudflare, arkose, geetest, datadome, perimeterx, awswaf, yandex, tencent, friendly or image"`
	Selector *string `json:"selector"`
	SiteKey  *string `json:"site_key"`
	URL      string  `json:"url"`
}

// DetectCaptcha detects a captcha.
func (s *Service) DetectCaptcha(ctx context.Context, in Here) (*Captcha, error) {
	out := &Captcha{}
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) (err error) {
		*out, err = detectCaptcha(ctx, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// WaitForCaptchaIn bounds the wait.
type WaitForCaptchaIn struct {
	Timeout      float64 `json:"timeout" doc:"Seconds to wait" default:"60"`
	PollInterval float64 `json:"poll_interval" doc:"Seconds between two looks" default:"2"`
	Tab          *int    `json:"tab" doc:"Index of the tab; default: the active one" minimum:"0"`
}

// Resolved says whether a captcha is solved.
type Resolved struct {
	Resolved bool `json:"resolved"`
}

// WaitForCaptcha waits until no captcha is left.
func (s *Service) WaitForCaptcha(ctx context.Context, in WaitForCaptchaIn) (*Resolved, error) {
	out := &Resolved{}
	limit := in.Timeout + actionTime.Seconds()
	end := time.Now().Add(seconds(in.Timeout))
	err := s.visitFor(asWait(ctx), Where{in.Tab, &limit}, 0, false, func(ctx context.Context, t *tab.Tab) error {
		every := max(seconds(in.PollInterval), 50*time.Millisecond)
		return poll(ctx, every, func() (bool, error) {
			c, err := detectCaptcha(ctx, t)
			if err != nil && !tab.Gone(err) {
				return false, err
			}
			out.Resolved = err == nil && !c.Detected
			return out.Resolved || time.Now().Add(every).After(end), nil
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
