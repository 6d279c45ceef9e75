package upstream

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Kind is a kind of feature that a server offers.
type Kind string

// The kinds of features. Resources and templates are named by their URIs.
const (
	Tool     Kind = "tool"
	Prompt   Kind = "prompt"
	Resource Kind = "resource"
	Template Kind = "resource template"
)

// feature identifies a feature by the name under which it is offered.
type feature struct {
	kind Kind
	name string
}

// owners knows which server offers a feature. The first server with a name gets it, so a server
// can neither replace nor remove a feature of another one.
type owners struct {
	mu sync.Mutex
	by map[feature]*mount
}

func (o *owners) claim(f feature, m *mount) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner, taken := o.by[f]; taken {
		return owner == m
	}
	o.by[f] = m
	return true
}

func (o *owners) release(m *mount, kind Kind, names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		if f := (feature{kind, name}); o.by[f] == m {
			delete(o.by, f)
		}
	}
}

func (o *owners) of(kind Kind, name string) *mount {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.by[feature{kind, name}]
}

// offers are the features of one kind that a server offers, by name.
type offers[F any] struct {
	kind   Kind
	add    func(name string, f F)
	remove func(names ...string)
	byName map[string]F
}

// replace offers the features found. It omits names of the program itself and of other servers,
// and removes features that were offered before and no longer exist. refreshing of m is held.
func (o *offers[F]) replace(m *mount, found map[string]F) {
	offered := map[string]F{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if m.s.cfg.Reserved(o.kind, name) || !m.s.owners.claim(feature{o.kind, name}, m) {
			m.s.cfg.Log.Warn("name of an MCP server's feature is already in use", "server", m.Name, "kind", o.kind, "name", name)
			continue
		}
		if old, ok := o.byName[name]; !ok || !sameJSON(old, found[name]) {
			if err := try(func() { o.add(name, found[name]) }); err != nil {
				m.s.cfg.Log.Warn("feature of an MCP server is invalid", "server", m.Name, "kind", o.kind, "name", name, "error", err)
				if !ok {
					m.s.owners.release(m, o.kind, []string{name})
				}
				continue
			}
		}
		offered[name] = found[name]
	}
	var gone []string
	for name := range o.byName {
		if _, ok := offered[name]; !ok {
			gone = append(gone, name)
		}
	}
	m.mu.Lock()
	o.byName = offered
	m.mu.Unlock()
	if len(gone) > 0 {
		o.remove(gone...) // before another server can claim the names
		m.s.owners.release(m, o.kind, gone)
	}
}

func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// try returns a panic of add as an error: the SDK panics if a feature is invalid.
func try(add func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	add()
	return nil
}
