package page

import (
	"context"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// denied is how a permission is answered that nobody has set.
const denied = "denied"

// maxPermissions bounds the settings.
const maxPermissions = 500

// Permission is how a permission prompt is answered.
type Permission struct {
	Permission string `json:"permission"`
	Setting    string `json:"setting" doc:"granted, denied or prompt"`
	Origin     string `json:"origin" doc:"Site that it is for; empty: all"`
}

// applyPermissions denies what pages could ask for, apart from what was set. A browser that does not know one of
// the permissions does not ask for it.
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

// Permissions lists how permission prompts are answered: what was set, and the default of all others.
func (s *Service) Permissions(context.Context, op.None) ([]Permission, error) {
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	out := []Permission{}
	for _, name := range tab.Prompting {
		if !slices.ContainsFunc(s.kept.permissions, func(p tab.Permission) bool { return p.Name == name && p.Origin == "" }) {
			out = append(out, Permission{name, denied, ""})
		}
	}
	for _, p := range s.kept.permissions {
		out = append(out, Permission{p.Name, p.Setting, p.Origin})
	}
	return out, nil
}

// PermissionsIn says how permission prompts are answered.
type PermissionsIn struct {
	Permissions []string     `json:"permissions" minItems:"1" maxItems:"50" doc:"Permissions: geolocation, notifications, camera, microphone, clipboard-read, clipboard-write and others"`
	Setting     string       `json:"setting" enum:"granted,denied,prompt" default:"granted" doc:"granted, denied, or prompt: ask on the display, for all sites"`
	Origin      string       `json:"origin" default:"" nullable:"true" doc:"Site that it is for, such as https://example.com; default: all"`
	Geolocation *Geolocation `json:"geolocation" doc:"Where pages are told that the browser is; without it they are told that this is unavailable"`
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
				text += "; known are " + strings.Join(tab.Prompting, ", ")
			}
			return nil, op.Errorf(op.Invalid, "%s", text)
		}
		list = append(list, tab.Permission{Name: name, Setting: in.Setting, Origin: in.Origin})
	}
	if in.Setting == tab.Ask && in.Origin != "" {
		return nil, op.Errorf(op.Invalid, "the setting %q is for all sites; leave out origin, or grant or deny it for this site", tab.Ask)
	}
	places := slices.Contains(in.Permissions, "geolocation")
	if in.Geolocation != nil && !places {
		return nil, op.Errorf(op.Invalid, "geolocation is a position for the permission \"geolocation\"; add that to permissions")
	}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		for _, p := range list {
			if err := b.SetPermission(ctx, p); err != nil {
				return op.Errorf(op.Unavailable, "the browser refuses the permission %q: %w", p.Name, err)
			}
			if err := s.keepPermission(p); err != nil {
				return err
			}
		}
		if !places {
			return nil
		}
		position := (*tab.Position)(in.Geolocation)
		s.kept.set(func(k *kept) { k.position, k.positioned = position, true })
		return b.SetPosition(ctx, position)
	})
	if err != nil {
		return nil, err
	}
	return s.Permissions(ctx, op.None{})
}

func (s *Service) keepPermission(p tab.Permission) (err error) {
	s.kept.set(func(k *kept) {
		k.permissions = slices.DeleteFunc(k.permissions, func(old tab.Permission) bool {
			return old.Name == p.Name && (old.Origin == p.Origin || p.Setting == tab.Ask)
		})
		if len(k.permissions) >= maxPermissions {
			err = op.Errorf(op.Exhausted, "there are already %d settings of permissions; set them for all sites instead", maxPermissions)
			return
		}
		k.permissions = append(k.permissions, p)
	})
	return err
}

func quote(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return `"` + s + `"`
}
