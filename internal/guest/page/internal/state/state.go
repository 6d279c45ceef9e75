package state

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// StateIn is a file with state.
type StateIn struct {
	Path    string  `json:"path" doc:"Path of the file"`
	Context *string `json:"context" doc:"Isolated context"`
}

// StateFile describes a file with state.
type StateFile struct {
	Path    string `json:"path"`
	Cookies int    `json:"cookies"`
	Origins int    `json:"origins"`
}

// storedState is Playwright's storage state, extended by session storage and IndexedDB.
type storedState struct {
	Cookies []Cookie        `json:"cookies"`
	Origins []originStorage `json:"origins"`
}

type originStorage struct {
	Origin    string          `json:"origin"`
	Local     []storageItem   `json:"localStorage"`
	Session   []storageItem   `json:"sessionStorage,omitempty"`
	Databases json.RawMessage `json:"databases,omitempty"` // of IndexedDB
}

type storageItem struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// empty reports whether there is nothing to store.
func (o originStorage) empty() bool {
	return len(o.Local)+len(o.Session) == 0 && (len(o.Databases) == 0 || string(o.Databases) == "[]")
}

// engineStorage is storage in the format of the engine.
type engineStorage struct {
	Origin    string          `json:"origin"`
	Local     []storageItem   `json:"localStorage"`
	Session   []storageItem   `json:"sessionStorage"`
	Databases json.RawMessage `json:"indexedDB"`
}

// maxState is the maximum size of a file with state.
const maxState = 256 << 20

// SaveState saves cookies and storage.
func (s *Service) SaveState(ctx context.Context, in StateIn) (*StateFile, error) {
	path, err := s.d.OutputPath(in.Path)
	if err != nil {
		return nil, err
	}
	out := &StateFile{Path: path}
	err = s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		cookies, err := readCookies(ctx, b, in.Context)
		if err != nil {
			return err
		}
		origins, err := readOrigins(ctx, b, op.Value(in.Context))
		if err != nil {
			return err
		}
		out.Cookies, out.Origins = len(cookies), len(origins)
		return driver.WriteJSON(path, 0o600, storedState{cookies, origins})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// readOrigins reads the storage of the origins of all open and closed pages.
func readOrigins(ctx context.Context, b *tab.Browser, id string) ([]originStorage, error) {
	found := map[string]originStorage{}
	for _, t := range b.Tabs() {
		if !inSameContext(b, t, id) {
			continue
		}
		end := t.Begin()
		for _, f := range t.Frames() {
			var e engineStorage
			if f.Document() == "" || !isWeb(f.URL()) || locate.Run(ctx, f, &e, "readStorage") != nil {
				continue
			}
			o := originStorage{e.Origin, e.Local, append(found[e.Origin].Session, e.Session...), e.Databases}
			found[e.Origin] = o
		}
		end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	var missing []string
	for _, origin := range b.Origins() {
		if _, ok := found[origin]; !ok {
			missing = append(missing, origin)
		}
	}
	err := visitOrigins(ctx, b, id, missing, func(t *tab.Tab, origin string) error {
		var e engineStorage
		err := locate.Run(ctx, t.Main(), &e, "readStorage")
		if err == nil {
			found[origin] = originStorage{origin, e.Local, nil, e.Databases}
		}
		return err
	})
	list := []originStorage{}
	for _, o := range found {
		if !o.empty() {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b originStorage) int { return strings.Compare(a.Origin, b.Origin) })
	return list, err
}

func isWeb(address string) bool {
	return strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://")
}

// inSameContext reports whether a tab belongs to an isolated context, or to none if id is empty.
func inSameContext(b *tab.Browser, t *tab.Tab, id string) bool {
	if id != "" {
		return t.Context == id
	}
	_, isolated := b.Contexts()[t.Context]
	return !isolated
}

// statePath is the path of a blank page that is shown for an origin. The request is not sent to the server.
const statePath = "/.aio-storage"

// visitOrigins shows a blank page of each origin in a hidden tab and runs fn there.
func visitOrigins(ctx context.Context, b *tab.Browser, id string, origins []string,
	fn func(t *tab.Tab, origin string) error) error {
	if len(origins) == 0 {
		return nil
	}
	route := tab.Route{
		Pattern: statePath, Match: func(u string) bool { return strings.HasSuffix(u, statePath) },
		Status: 200, Headers: map[string]string{"Content-Type": "text/html"}, Body: "<!doctype html>",
	}
	err := b.ChangeRules(ctx, func(r *tab.Rules) error { r.Routes = append(r.Routes, route); return nil })
	if err != nil {
		return err
	}
	defer func() {
		_ = b.ChangeRules(context.WithoutCancel(ctx), func(r *tab.Rules) error {
			r.Routes = slices.DeleteFunc(r.Routes, func(one tab.Route) bool { return one.Pattern == statePath })
			return nil
		})
	}()
	t, err := b.Create(ctx, id, true)
	if err != nil {
		return err
	}
	defer func() { _ = b.CloseTab(context.WithoutCancel(ctx), t) }()
	if err := t.Call(ctx, "Network.setBypassServiceWorker", map[string]any{"bypass": true}, nil); err != nil {
		return err
	}
	for _, origin := range origins {
		if err := t.Navigate(ctx, origin+statePath, tab.Commit); err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue // the URL list blocks the origin
		}
		if err := fn(t, origin); err != nil {
			return err
		}
	}
	return nil
}

// LoadState loads cookies and storage.
func (s *Service) LoadState(ctx context.Context, in StateIn) (*StateFile, error) {
	path, err := s.d.Resolve(in.Path)
	if err != nil {
		return nil, err
	}
	state, err := readState(path)
	if err != nil {
		return nil, err
	}
	var cookies []map[string]any
	for _, c := range state.Cookies {
		p := map[string]any{"name": c.Name, "value": c.Value, "domain": c.Domain, "path": c.Path, "httpOnly": c.HTTPOnly, "secure": c.Secure}
		if c.SameSite != "" {
			p["sameSite"] = c.SameSite
		}
		if c.Expires > 0 {
			p["expires"] = c.Expires
		}
		cookies = append(cookies, p)
	}
	err = s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		if err := b.Client().SetCookies(ctx, inContext(in.Context), cookies); err != nil {
			return err
		}
		return writeOrigins(ctx, b, op.Value(in.Context), state.Origins)
	})
	if err != nil {
		return nil, err
	}
	return &StateFile{path, len(state.Cookies), len(state.Origins)}, nil
}

func readState(path string) (storedState, error) {
	var state storedState
	info, err := os.Stat(path)
	if err != nil {
		return state, op.Errorf(op.NotFound, "cannot read the state file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxState {
		return state, op.Errorf(op.Invalid, "%q is not a file with saved state", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return state, op.Errorf(op.Denied, "cannot read the state file: %w", err)
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return state, op.Errorf(op.Invalid, "%q is not a file with saved state: %w", path, err)
	}
	for _, o := range state.Origins {
		if !isWeb(o.Origin) || tab.Origin(o.Origin) != strings.ToLower(o.Origin) {
			return state, op.Errorf(op.Invalid, "%q has the invalid origin %q", path, o.Origin)
		}
	}
	return state, nil
}

func writeOrigins(ctx context.Context, b *tab.Browser, id string, origins []originStorage) error {
	var names []string
	session := map[string][]storageItem{}
	stored := map[string]engineStorage{}
	for _, o := range origins {
		names = append(names, o.Origin)
		stored[o.Origin] = engineStorage(o)
		if len(o.Session) > 0 {
			session[o.Origin] = o.Session
		}
	}
	err := visitOrigins(ctx, b, id, names, func(t *tab.Tab, origin string) error {
		return locate.Run(ctx, t.Main(), nil, "writeStorage", stored[origin], false)
	})
	if err != nil || len(session) == 0 {
		return err
	}
	// Session storage belongs to a tab, so each tab receives it when it first shows the origin.
	items, err := json.Marshal(session)
	if err != nil {
		return err
	}
	return b.AddScript(ctx, "(() => { try { const items = ("+string(items)+
		")[location.origin]; if (items && !sessionStorage.length) for (const i of items) "+
		"sessionStorage.setItem(i.name, i.value); } catch { /* no storage here */ } })()")
}
