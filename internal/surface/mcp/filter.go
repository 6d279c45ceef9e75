package mcp

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// filter selects the tools that a client sees.
type filter struct {
	all     bool
	older   bool
	names   []string // patterns with * and ?
	servers []string
}

// parseFilter reads the query of an address: tools=all, tools=older, tools=a,b_*,
// servers=file,shell or search=file.
func parseFilter(query string) filter {
	q, err := url.ParseQuery(query)
	if err != nil {
		return filter{}
	}
	var f filter
	for _, name := range splitAll(q["tools"]) {
		switch name {
		case "all":
			f.all = true
		case "older":
			f.older = true
		default:
			f.names = append(f.names, name)
		}
	}
	f.servers = splitAll(slices.Concat(q["servers"], q["server"], q["search"]))
	return f
}

func splitAll(values []string) []string {
	var all []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

// lists reports whether a tool is in the list.
func (f filter) lists(t toolset.Tool) bool {
	if f.servers != nil && !slices.Contains(f.servers, t.Server) {
		return false
	}
	switch {
	case f.matches(t.Name):
		return true
	case f.names != nil && !f.all && !f.older:
		return false
	case t.Older:
		return f.older
	case f.older && !f.all:
		return false
	}
	return f.all || f.servers != nil || t.Core
}

// listsForwarded reports whether a tool of another server is in the list.
func (f filter) listsForwarded(server, name string) bool {
	if f.servers != nil && !slices.Contains(f.servers, server) {
		return false
	}
	return f.names == nil && !f.older || f.all || f.matches(name)
}

func (f filter) matches(name string) bool {
	return slices.ContainsFunc(f.names, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}
