// Package tablist lists, opens, closes and activates tabs, and manages isolated contexts.
package tablist

import (
	"context"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
)

// Service manages the tabs of the browser.
type Service struct{ d *driver.Driver }

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service { return &Service{d} }

// Ops lists the operations on tabs.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Columns(driver.Spec("browser_tab_list", "GET /v1/browser/tabs", "list_tabs", "tabs",
			"List the tabs in the order in which they were opened. The display shows the active tab."), "index", "is_active",
			"title", "url")), s.Tabs),
		op.New(driver.Spec("browser_new_tab", "POST /v1/browser/tabs", "create_tab", "tab-new",
			"Open a tab at the end of the list and activate it."), s.CreateTab),
		op.New(driver.Spec("browser_close_tab", "DELETE /v1/browser/tabs/{index}", "close_tab", "tab-close",
			"Close a tab. A blank tab replaces the last one."), s.CloseTab),
		op.New(driver.Spec("browser_switch_tab", "PUT /v1/browser/tabs/{index}/activate", "activate_tab", "tab-activate",
			"Activate a tab."), s.ActivateTab),
	}
}

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
	Crashed bool   `json:"crashed,omitempty" doc:"Whether the page crashed and must be reloaded"`
}

func describeTab(b *tab.Browser, t *tab.Tab, index int, current *tab.Tab) Tab {
	out := Tab{Index: index, Title: t.Title(), URL: t.URL(), Active: t == current, Active2: t == current, ID: t.ID, TabID: t.ID}
	if _, isolated := b.Contexts()[t.Context]; isolated {
		out.Context = t.Context
	}
	out.Crashed = t.Check() != nil
	return out
}

// Tabs lists the tabs.
func (s *Service) Tabs(ctx context.Context, _ op.None) ([]Tab, error) {
	out := []Tab{}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		current, tabs := s.d.Active(b, recent), b.Tabs()
		for i, t := range tabs {
			out = append(out, describeTab(b, t, i, current))
		}
		var all sync.WaitGroup
		for i, t := range tabs {
			all.Go(func() { out[i].Title = driver.Title(ctx, t) })
		}
		all.Wait()
		return nil
	})
	return out, err
}

// CreateTabIn are options of a new tab.
type CreateTabIn struct {
	URL     *string `json:"url" doc:"URL to open; default: a blank page" arg:"true"`
	Context *string `json:"context" doc:"Isolated context of the tab"`
}

// CreateTab opens a tab.
func (s *Service) CreateTab(ctx context.Context, in CreateTabIn) (*Tab, error) {
	address := ""
	if in.URL != nil && *in.URL != "" {
		var err error
		if address, err = navigation.CompleteURL(*in.URL); err != nil {
			return nil, err
		}
	}
	var out Tab
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		if c := op.Value(in.Context); c != "" {
			if _, ok := b.Contexts()[c]; !ok {
				return op.Errorf(op.NotFound, "no context %q; list the contexts", c)
			}
		}
		t, err := b.Create(ctx, op.Value(in.Context), false)
		if err != nil {
			return err
		}
		s.d.SetActive(t, recent)
		defer t.Begin()()
		if address != "" && address != "about:blank" {
			if err := t.Navigate(ctx, address, tab.Load); err != nil {
				return navigation.Explain(ctx, s.d, t, address, "load", err)
			}
		}
		out = describeTab(b, t, slices.Index(b.Tabs(), t), t)
		out.Title = driver.Title(ctx, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// TabIn selects a tab.
type TabIn struct {
	Index int `path:"index" doc:"Index of the tab"`
}

// Closed describes the closed tab.
type Closed struct {
	Closed int  `json:"closed"`
	Active *int `json:"active" doc:"Index of the active tab"`
}

// CloseTab closes a tab.
func (s *Service) CloseTab(ctx context.Context, in TabIn) (*Closed, error) {
	out := &Closed{Closed: in.Index}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		t, err := s.d.Tab(ctx, b, recent, &in.Index)
		if err != nil {
			return err
		}
		if len(b.Tabs()) == 1 { // before the window of the browser is closed with it
			if _, err := b.Create(ctx, "", false); err != nil {
				return err
			}
		}
		return b.CloseTab(ctx, t)
	})
	if err != nil {
		return nil, err
	}
	err = s.d.WithBrowser(ctx, func(_ context.Context, b *tab.Browser, recent []string) error {
		if i := slices.Index(b.Tabs(), s.d.Active(b, recent)); i >= 0 {
			out.Active = &i
		}
		return nil
	})
	return out, err
}

// ActivateTab activates a tab.
func (s *Service) ActivateTab(ctx context.Context, in TabIn) (*Tab, error) {
	var out Tab
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		t, err := s.d.Tab(ctx, b, recent, &in.Index)
		if err != nil {
			return err
		}
		if err := b.Activate(ctx, t); err != nil {
			return err
		}
		s.d.SetActive(t, recent)
		out = describeTab(b, t, in.Index, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}
