// Package prompt sets how the dialogs and permission prompts of pages are answered. The settings apply to every browser until
// the service ends.
package prompt

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service answers dialogs and permission prompts.
type Service struct {
	d *driver.Driver

	mu          sync.Mutex
	dialogs     tab.DialogPolicy
	permissions []tab.Permission
	position    *tab.Position // nil: unavailable
	positioned  bool          // position was set
}

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service {
	s := &Service{d: d}
	d.OnConnect(s.apply)
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Spec("browser_dialogs", "GET /v1/browser/dialogs", "list_dialogs", "dialogs",
			"List the dialogs that the page opened (alert, confirm, prompt, beforeunload) and how they were answered.")), s.Dialogs),
		op.New(driver.Spec("browser_dialog_policy", "POST /v1/browser/dialogs", "set_dialog_policy", "dialog-policy",
			"Set how later dialogs are answered. By default they are dismissed, except those that ask whether to leave a page."), s.SetDialogPolicy),
		op.New(driver.ReadOnly(driver.Spec("browser_permissions", "GET /v1/browser/permissions", "list_permissions", "permissions",
			"List how permission prompts of pages are answered.")), s.Permissions),
		op.New(driver.Spec("browser_permission_policy", "POST /v1/browser/permissions", "set_permissions",
			"permission-policy", "Set how later permission prompts of pages are answered: granted, denied, or "+
				"prompt, which asks on the display. By default all are denied, so that no page waits."), s.SetPermissions),
	}
}

// apply applies the settings to a new browser.
func (s *Service) apply(ctx context.Context, b *tab.Browser) error {
	s.mu.Lock()
	dialogs, permissions, position, positioned := s.dialogs, slices.Clone(s.permissions), s.position, s.positioned
	s.mu.Unlock()
	b.SetDialogPolicy(dialogs)
	if err := applyPermissions(ctx, b, permissions); err != nil || !positioned {
		return err
	}
	return b.SetPosition(ctx, position)
}

// denied is the default setting of a permission.
const denied = "denied"

// maxPermissions is the maximum number of settings.
const maxPermissions = 500

// Permission is how a permission prompt is answered.
type Permission struct {
	Permission string `json:"permission"`
	Setting    string `json:"setting" doc:"granted, denied or prompt"`
	Origin     string `json:"origin" doc:"Site of the setting; empty: all sites"`
}

// applyPermissions applies the settings and denies all other permissions. Errors are ignored: a browser that does not know a
// permission does not prompt for it.
func applyPermissions(ctx context.Context, b *tab.Browser, set []tab.Permission) error {
	for _, name := range tab.Prompting {
		if err := b.SetPermission(ctx, tab.Permission{Name: name, Setting: denied}); err != nil && ctx.Err() != nil {
			return err
		}
	}
	for _, p := range set {
		if err := b.SetPermission(ctx, p); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// Permissions lists the settings of permissions, including defaults.
func (s *Service) Permissions(context.Context, op.None) ([]Permission, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Permission{}
	for _, name := range tab.Prompting {
		if !slices.ContainsFunc(s.permissions, func(p tab.Permission) bool { return p.Name == name && p.Origin == "" }) {
			out = append(out, Permission{name, denied, ""})
		}
	}
	for _, p := range s.permissions {
		out = append(out, Permission{p.Name, p.Setting, p.Origin})
	}
	return out, nil
}

// PermissionsIn sets how permission prompts are answered.
type PermissionsIn struct {
	Permissions []string     `json:"permissions" minItems:"1" maxItems:"50" doc:"Permissions such as geolocation, camera or clipboard-read"`
	Setting     string       `json:"setting" enum:"granted,denied,prompt" default:"granted" doc:"prompt asks on the display, for all sites"`
	Origin      string       `json:"origin" default:"" nullable:"true" doc:"Site, such as https://example.com; default: all sites"`
	Geolocation *Geolocation `json:"geolocation" doc:"Position that pages receive; default: position unavailable"`
}

// Geolocation is a position on earth.
type Geolocation struct {
	Latitude  float64 `json:"latitude" minimum:"-90" maximum:"90" doc:"Degrees north"`
	Longitude float64 `json:"longitude" minimum:"-180" maximum:"180" doc:"Degrees east"`
	Accuracy  float64 `json:"accuracy" default:"10" minimum:"0" doc:"Meters"`
}

// SetPermissions sets how permission prompts are answered.
func (s *Service) SetPermissions(ctx context.Context, in PermissionsIn) ([]Permission, error) {
	if in.Origin != "" {
		origin := tab.Origin(in.Origin)
		if origin == "" {
			return nil, op.Errorf(op.Invalid, "invalid origin %q; use a scheme and a host, such as https://example.com", in.Origin)
		}
		in.Origin = origin
	}
	var list []tab.Permission
	for _, name := range in.Permissions {
		if !slices.Contains(tab.Prompting, name) {
			text := "unknown permission " + quote(name)
			if near := spell.Nearest(name, tab.Prompting); near != "" {
				text += "; did you mean " + quote(near) + "?"
			} else {
				text += "; use one of " + strings.Join(tab.Prompting, ", ")
			}
			return nil, op.Errorf(op.Invalid, "%s", text)
		}
		list = append(list, tab.Permission{Name: name, Setting: in.Setting, Origin: in.Origin})
	}
	if in.Setting == tab.Ask && in.Origin != "" {
		return nil, op.Errorf(op.Invalid, "the setting %q applies to all sites; omit origin, or use granted or denied for this site", tab.Ask)
	}
	locates := slices.Contains(in.Permissions, "geolocation")
	if in.Geolocation != nil && !locates {
		return nil, op.Errorf(op.Invalid, "geolocation requires the permission \"geolocation\"; add it to permissions")
	}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		for _, p := range list {
			if err := b.SetPermission(ctx, p); err != nil {
				return op.Errorf(op.Unavailable, "the browser rejected the permission %q: %w", p.Name, err)
			}
			if err := s.store(p); err != nil {
				return err
			}
		}
		if !locates {
			return nil
		}
		position := (*tab.Position)(in.Geolocation)
		s.mu.Lock()
		s.position, s.positioned = position, true
		s.mu.Unlock()
		return b.SetPosition(ctx, position)
	})
	if err != nil {
		return nil, err
	}
	return s.Permissions(ctx, op.None{})
}

// store keeps a setting for later browsers.
func (s *Service) store(p tab.Permission) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permissions = slices.DeleteFunc(s.permissions, func(old tab.Permission) bool {
		return old.Name == p.Name && (old.Origin == p.Origin || p.Setting == tab.Ask)
	})
	if len(s.permissions) >= maxPermissions {
		return op.Errorf(op.Exhausted, "permission limit reached (%d); set permissions for all sites instead", maxPermissions)
	}
	s.permissions = append(s.permissions, p)
	return nil
}

func quote(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return `"` + s + `"`
}
