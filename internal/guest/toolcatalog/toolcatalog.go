// Package toolcatalog defines the tools of a sandbox: the operations that are tools, and their
// names, descriptions and results.
//
// It owns no process and no state, and refers to operations by their routes. There are two
// families of names: the listed one, and an older one with different arguments, which is callable
// too.
package toolcatalog

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// Instructions describe to a model when to use which tool.
const Instructions = `This is your own Linux computer: files, a shell, Python, JavaScript and a browser share one file system.
- Run a command: bash_exec. Keep a directory, variables or an interactive program between commands: terminal_execute.
- Compute, analyze data or draw a plot: code_execute; pass session_id to keep variables.
- Read and change files: file_read, file_write, file_str_replace_editor; find things with file_grep and file_glob.
- Read a web page or document as text: markitdown_convert. Click and type on a page: browser_navigate, then browser_click and browser_type.
- View the screen: browser_gui_screenshot. Use mouse and keyboard: browser_actions.
Long results are truncated and describe how to read the rest. Lines are counted from 1. Paths are absolute or relative to the workspace.`

// servers are the names of the groups of tools.
var servers = []string{"browser", "file", "shell", "code", "sandbox", "markitdown"}

// Servers returns the names of the groups of tools.
func Servers() []string { return slices.Clone(servers) }

// serverOf returns the group of an operation.
func serverOf(o op.Op) string {
	switch o.Tag {
	case "browser", "display", "clipboard", "cdp", "page":
		return "browser"
	case "file", "watch", "files":
		return "file"
	case "shell", "bash":
		return "shell"
	case "jupyter", "nodejs", "node", "code":
		return "code"
	case "util":
		return "markitdown"
	}
	switch noun, _, _ := strings.Cut(o.Name, "_"); noun {
	case "browser", "clipboard", "display":
		return "browser"
	case "file", "watch":
		return "file"
	}
	return "sandbox"
}

// routes finds operations by their routes.
type routes map[string]op.Op

func newRoutes(table []op.Op) routes {
	r := routes{}
	for _, o := range table {
		if o.Call != nil {
			r[o.Route] = o
		}
	}
	return r
}

// Tools returns the tools of a sandbox with these operations. Named pictures are stored in the
// album.
func Tools(table []op.Op, album *Album) []toolset.Tool {
	r := newRoutes(table)
	b := browser{routes: r, album: album}
	all := append(r.listed(), b.tools()...)
	taken := map[string]bool{}
	for _, t := range all {
		taken[t.Name] = true
	}
	for _, o := range table {
		if o.Call == nil || o.NoTool {
			continue
		}
		t := toolset.Tool{Op: o, Server: serverOf(o), Render: renderers[o.Route],
			World: reachesOut(o.Route), Doc: plainDoc(o.Doc)}
		if slices.ContainsFunc(all, func(other toolset.Tool) bool { return other.Op.Route == o.Route && other.Name != o.Name }) {
			t.Older = true // it is listed under another name
		}
		if !taken[o.Name] {
			all = append(all, t)
		}
	}
	return slices.Concat(all, r.older(), b.olderTools())
}

// plainDoc removes sentences about HTTP from the description of an operation.
func plainDoc(doc string) string {
	var kept []string
	for _, sentence := range strings.SplitAfter(doc, ". ") {
		if !slices.ContainsFunc([]string{"stream=true", "HTTP", "ETag", "multipart", "response header", "GET /",
			"POST /", "SSE", "streamed and supports", "query"}, func(word string) bool { return strings.Contains(sentence, word) }) {
			kept = append(kept, sentence)
		}
	}
	return strings.TrimSpace(strings.Join(kept, ""))
}

// reachesOut reports whether an operation can have effects outside the sandbox, as commands and
// pages can.
func reachesOut(route string) bool {
	for _, prefix := range []string{"POST /v1/bash/exec", "POST /v1/bash/write", "POST /v1/shell/exec",
		"POST /v1/shell/write", "POST /v1/jupyter/execute", "POST /v1/nodejs/execute", "POST /v1/code/execute",
		"POST /v1/util/", "POST /v1/browser/", "PUT /v1/browser/", "POST /v1/skills/", "POST /v1/sandbox/hooks"} {
		if strings.HasPrefix(route, prefix) {
			return true
		}
	}
	return false
}

// call runs an operation for a tool that combines several. The result is decoded JSON.
func (r routes) call(ctx context.Context, route string, args map[string]any) (any, error) {
	out, err := r.output(ctx, route, args)
	if err != nil {
		return nil, err
	}
	raw, err := op.JSON(out)
	if err != nil {
		return nil, err
	}
	var tree any
	err = json.Unmarshal(raw, &tree)
	return tree, err
}

// output is call for operations whose output is bytes.
func (r routes) output(ctx context.Context, route string, args map[string]any) (any, error) {
	o, ok := r[route]
	if !ok {
		return nil, op.Errorf(op.Unavailable, "the operation %q is not available in this sandbox", route)
	}
	for name, v := range args {
		if v == nil {
			delete(args, name)
		}
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	in, err := o.Bind(op.Input{Flat: true, JSON: raw})
	if err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	return o.Call(ctx, in)
}

// has reports whether all routes exist.
func (r routes) has(all ...string) bool {
	for _, route := range all {
		if _, ok := r[route]; !ok {
			return false
		}
	}
	return true
}

// spec describes a tool that combines other operations and has no route.
func spec(name, doc string) op.Spec {
	return op.Spec{Name: name, Route: "POST /mcp", Tag: "mcp", Doc: doc}
}
