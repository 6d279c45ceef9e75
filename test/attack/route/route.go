// Package route lists the addresses that a browser can visit at both programs, from their
// tables of operations. A route without an example fails the test, so that every route is
// tested.
package route

import (
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app"
	"github.com/cove-sandbox/cove/internal/app/cove"
	"github.com/cove-sandbox/cove/internal/config"
)

// Kinds of targets.
const (
	Call    = "call"    // replies with a value or bytes
	Stream  = "stream"  // can reply with events that do not end
	Socket  = "socket"  // is a WebSocket
	Handler = "handler" // a page, a file of a page, or a proxy
)

// Target is one address of a program.
type Target struct {
	Op   string `json:"op"`
	Kind string `json:"kind"`
	Path string `json:"path"` // with its query
	// Hot targets can show content of an attacker: all attacks are tried on them.
	Hot bool `json:"hot"`
}

// Examples are values for the parameters of routes.
type Examples struct {
	// Files are the paths of the attacker's files. A query parameter "path" gets each of them.
	Files []string
	// Values are values of parameters, by operation and name ("skills_content.name"), or by name alone.
	Values map[string]string
	// Below are the paths below a route that ends with {x...}, by operation.
	Below map[string][]string
}

// Sandbox returns the operations of a sandbox.
func Sandbox(t testing.TB) *op.Table {
	t.Helper()
	a, err := app.NewAio(config.Aio{Listen: "127.0.0.1:8080"}, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a.Table
}

// Hub returns the operations of a hub.
func Hub(t testing.TB) *op.Table {
	t.Helper()
	h, err := cove.New(config.Cove{Listen: "127.0.0.1:10000"}, nil, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return h.Table
}

// Markup is a value that runs if a page contains it.
const Markup = `"><img src=x onerror="globalThis.sweep&&sweep()"><script>globalThis.sweep&&sweep()</script>`

var parameter = regexp.MustCompile(`{([^}.$]*)(\.\.\.)?}`)

// Targets returns the addresses of all routes of a table for GET: with the examples, and once
// with markup in every parameter.
func Targets(t testing.TB, table *op.Table, with Examples) []Target {
	t.Helper()
	var all []Target
	add := func(o op.Op, path string, hot bool) {
		target := Target{Op: o.Name, Kind: kindOf(o), Path: path, Hot: hot}
		if !slices.Contains(all, target) {
			all = append(all, target)
		}
	}
	for _, o := range table.All() {
		for _, r := range append([]string{o.Route}, o.Also...) {
			method, path, found := strings.Cut(r, " ")
			if !found {
				method, path = "", r
			}
			if method != "" && method != http.MethodGet {
				continue
			}
			hot := o.Handler != nil || o.Binary
			for _, full := range with.fill(t, o, strings.TrimSuffix(path, "{$}")) {
				add(o, full, hot)
			}
			add(o, markup(o, strings.TrimSuffix(path, "{$}")), false)
		}
	}
	return all
}

func kindOf(o op.Op) string {
	switch {
	case o.Handler != nil:
		return Handler
	case o.Duplex != nil:
		return Socket
	case o.Stream != nil:
		return Stream
	}
	return Call
}

// fill returns the addresses of one route.
func (e Examples) fill(t testing.TB, o op.Op, path string) []string {
	t.Helper()
	paths := []string{""}
	last := 0
	for _, at := range parameter.FindAllStringSubmatchIndex(path, -1) {
		name, rest := path[at[2]:at[3]], at[4] >= 0
		values := []string{url.PathEscape(e.value(o.Name, name))}
		if rest {
			values = e.below(t, o.Name)
		} else if values[0] == "" {
			t.Errorf("the route %s %s has no example for {%s}; add one", o.Name, path, name)
		}
		paths = join(paths, path[last:at[0]], values)
		last = at[1]
	}
	paths = join(paths, path[last:], []string{""})
	return join(paths, "", e.queries(t, o))
}

func (e Examples) value(operation, name string) string {
	if v, ok := e.Values[operation+"."+name]; ok {
		return v
	}
	return e.Values[name]
}

// below returns the paths below a handler. Files of pages need no example: the result is their page
// and a path that leads out of their folder.
func (e Examples) below(t testing.TB, operation string) []string {
	t.Helper()
	if list, ok := e.Below[operation]; ok {
		return list
	}
	if !strings.HasSuffix(operation, "_asset") && operation != "vnc_page" {
		t.Errorf("the route %s has no examples of paths below it; add some", operation)
	}
	return []string{"index.html", "..%2f..%2f..%2f" + strings.ReplaceAll(strings.TrimPrefix(e.Files[0], "/"), "/", "%2f")}
}

// queries returns the queries of one operation: for each of the attacker's files, if it takes a path.
func (e Examples) queries(t testing.TB, o op.Op) []string {
	t.Helper()
	in := o.In()
	if in == nil {
		return []string{""}
	}
	q, path := url.Values{}, ""
	for _, f := range in.AllFields() {
		switch v := e.value(o.Name, f.Name); {
		case f.Source != op.Query:
		case f.Name == "path":
			path = f.Name
		case v != "":
			q.Set(f.Name, v)
		case f.Required:
			t.Errorf("the operation %s has no example for the parameter %q; add one", o.Name, f.Name)
		}
	}
	if path == "" {
		return []string{query(q)}
	}
	var list []string
	for _, file := range e.Files {
		q.Set(path, file)
		list = append(list, query(q))
	}
	return list
}

func query(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// markup returns the address of a route with markup in every parameter.
func markup(o op.Op, path string) string {
	path = parameter.ReplaceAllLiteralString(path, url.PathEscape(Markup))
	q := url.Values{"x": {Markup}}
	if in := o.In(); in != nil {
		for _, f := range in.AllFields() {
			if f.Source == op.Query {
				q.Set(f.Name, Markup)
			}
		}
	}
	return path + "?" + q.Encode()
}

func join(heads []string, middle string, tails []string) (all []string) {
	for _, head := range heads {
		for _, tail := range tails {
			all = append(all, head+middle+tail)
		}
	}
	return all
}
