package mcp

import (
	"context"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

// shelf has one file, one skill and one other resource, which are empty.
type shelf struct{}

func (shelf) List(context.Context) ([]toolset.File, error) { return nil, nil }

func (shelf) Read(context.Context, string, int64) ([]byte, string, error) {
	return nil, "text/plain", nil
}

func (shelf) Watch(context.Context, string, func()) (func() error, error) {
	return func() error { return nil }, nil
}

type skills struct{}

func (skills) List(context.Context) ([]toolset.Skill, error) { return nil, nil }

func (skills) Read(context.Context, string) (string, error) { return "", nil }

type others struct{}

func (others) Offers() []toolset.Resource {
	return []toolset.Resource{{URI: "console://logs", Name: "logs"}, {URI: "screenshot://{+name}", Name: "screenshot"}}
}

func (others) List(context.Context) ([]toolset.Resource, error) { return nil, nil }

func (others) Read(context.Context, string, int64) ([]byte, string, error) { return nil, "", nil }

// TestNamesOfTheProgram: other servers cannot offer tools and resources that are the program's own.
func TestNamesOfTheProgram(t *testing.T) {
	t.Parallel()
	h := New(Config{Ops: toys, Files: shelf{}, Skills: skills{}, Resources: others{},
		Guide: func(context.Context) (string, error) { return "", nil }})
	t.Cleanup(func() { h.Close() })
	for _, x := range []struct {
		kind upstream.Kind
		name string
		own  bool
	}{
		{upstream.Tool, "text", true},
		{upstream.Tool, "hidden", false},
		{upstream.Prompt, "text", false},
		{upstream.Resource, "sandbox://llms.txt", true},
		{upstream.Resource, "console://logs", true},
		{upstream.Resource, "CONSOLE://logs", true},
		{upstream.Resource, "screenshot://a", true},
		{upstream.Resource, "skill://pdf", true},
		{upstream.Resource, "file:///etc/hosts", true},
		{upstream.Resource, "file://localhost/etc/hosts", true},
		{upstream.Resource, "file://other-host/etc/hosts", false},
		{upstream.Resource, "test://a", false},
		{upstream.Template, "file:///{path}", true},
		{upstream.Template, "file://{host}/x", false},
		{upstream.Template, "skill://{name}", true},
		{upstream.Template, "{+uri}", false},
	} {
		if got := h.reserves(x.kind, x.name); got != x.own {
			t.Errorf("%s %s: got %v, want %v", x.kind, x.name, got, x.own)
		}
	}
}
