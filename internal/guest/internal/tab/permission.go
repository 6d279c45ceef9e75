package tab

import (
	"context"
	"maps"
	"slices"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Prompting are the permissions for which the browser shows a prompt. The page waits until it is answered.
var Prompting = []string{
	"geolocation", "notifications", "camera", "microphone", "clipboard-read", "clipboard-write", "midi", "midi-sysex", "persistent-storage",
	"storage-access", "idle-detection", "window-management", "local-fonts", "nfc", "local-network-access",
}

// Permission is how one permission is answered.
type Permission struct {
	Name    string
	Setting string // granted, denied or Ask
	Origin  string // empty: all sites; must be empty for Ask
}

// Ask is the setting of a permission for which the browser shows a prompt on the display.
const Ask = "prompt"

// Position is the geolocation that pages receive.
type Position struct {
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
	Accuracy  float64 `json:"accuracy"`
}

// permissionParams are the parameters of the browser. Two names are other permissions with a flag.
func permissionParams(p Permission, context string) map[string]any {
	descriptor := map[string]any{"name": p.Name}
	switch p.Name {
	case "midi-sysex":
		descriptor = map[string]any{"name": "midi", "sysex": true}
	case "clipboard-read", "clipboard-write":
		descriptor["allowWithoutSanitization"], descriptor["allowWithoutGesture"] = false, true
	}
	params := map[string]any{"permission": descriptor, "setting": p.Setting}
	if p.Origin != "" {
		params["origin"] = p.Origin
	}
	if context != "" {
		params["browserContextId"] = context
	}
	return params
}

// SetPermission sets a permission in all contexts.
func (b *Browser) SetPermission(ctx context.Context, p Permission) error {
	b.mu.Lock()
	b.permissions = append(slices.DeleteFunc(b.permissions, func(old Permission) bool {
		return old.Name == p.Name && (old.Origin == p.Origin || p.Setting == Ask)
	}), p)
	contexts := append([]string{""}, slices.Collect(maps.Keys(b.contexts))...)
	b.mu.Unlock()
	for _, id := range contexts {
		if p.Setting == Ask {
			// The browser would answer such a setting itself, with no.
			if err := b.client.Call(ctx, cdp.Browser, "Browser.resetPermissions", contextParams(id), nil); err != nil {
				return err
			}
			b.permitContext(ctx, id)
			continue
		}
		if err := b.client.Call(ctx, cdp.Browser, "Browser.setPermission", permissionParams(p, id), nil); err != nil {
			return err
		}
	}
	return nil
}

func contextParams(id string) map[string]any {
	if id == "" {
		return nil
	}
	return map[string]any{"browserContextId": id}
}

// permitContext applies the settings to a new context.
func (b *Browser) permitContext(ctx context.Context, id string) {
	b.mu.Lock()
	list := slices.Clone(b.permissions)
	b.mu.Unlock()
	for _, p := range list {
		if p.Setting != Ask {
			_ = b.client.Call(ctx, cdp.Browser, "Browser.setPermission", permissionParams(p, id), nil) // it was accepted before
		}
	}
}

// SetPosition sets the geolocation that all pages receive; nil means unavailable.
func (b *Browser) SetPosition(ctx context.Context, p *Position) error {
	b.mu.Lock()
	b.position, b.positioned = p, true
	var sessions []*session
	for _, s := range b.sessions {
		if s.id == s.tab.session { // frames use the position of their page
			sessions = append(sessions, s)
		}
	}
	b.mu.Unlock()
	return b.broadcast(ctx, sessions, command{positionMethod, positionParams(p)})
}

const positionMethod = "Emulation.setGeolocationOverride"

// positionParams returns the parameters of a position. Without a position the browser reports it as unavailable.
func positionParams(p *Position) any {
	if p == nil {
		return map[string]any{}
	}
	return p
}
