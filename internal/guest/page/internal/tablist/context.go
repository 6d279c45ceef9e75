package tablist

import (
	"context"
	"sort"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// ContextOps lists the operations on isolated contexts.
func (s *Service) ContextOps() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Spec("browser_contexts", "GET /v1/browser/contexts", "list_contexts", "contexts",
			"List the isolated contexts.")), s.Contexts),
		op.New(driver.Spec("browser_context_create", "POST /v1/browser/contexts", "create_context", "context-create",
			"Create an isolated context and open a tab in it. A context has separate cookies and storage, so that "+
				"several accounts can be signed in."), s.CreateContext),
		op.New(driver.Destructive(driver.Spec("browser_context_delete", "DELETE /v1/browser/contexts/{id}", "delete_context",
			"context-delete", "Close all tabs of an isolated context and delete its data.")), s.DeleteContext),
	}
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
	err := s.d.WithBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
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

// CreateContextIn are options of a new context.
type CreateContextIn struct {
	Name string `json:"name" doc:"Display name" default:""`
}

// CreateContext creates an isolated context.
func (s *Service) CreateContext(ctx context.Context, in CreateContextIn) (*Context, error) {
	var out Context
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, recent []string) error {
		id, err := b.CreateContext(ctx, in.Name)
		if err != nil {
			return err
		}
		t, err := b.Create(ctx, id, false)
		if err != nil {
			return err
		}
		s.d.SetActive(t, recent)
		out = describeContext(b, id, in.Name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// ContextIn selects a context.
type ContextIn struct {
	ID string `path:"id" doc:"ID of the context"`
}

// DeleteContext deletes an isolated context.
func (s *Service) DeleteContext(ctx context.Context, in ContextIn) (*Context, error) {
	var out Context
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		name, ok := b.Contexts()[in.ID]
		if !ok {
			return op.Errorf(op.NotFound, "no context %q; list the contexts", in.ID)
		}
		out = Context{ID: in.ID, Name: name}
		return b.DisposeContext(ctx, in.ID)
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}
