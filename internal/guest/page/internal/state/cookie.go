// Package state reads and writes the stored state of the browser: cookies, local and session storage, IndexedDB.
package state

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service reads and writes stored state.
type Service struct{ d *driver.Driver }

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service { return &Service{d} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Columns(driver.Spec("browser_cookies", "GET /v1/browser/cookies", "get_cookies", "cookies",
			"List the cookies of all sites or of selected URLs, including HttpOnly cookies."), "name", "value",
			"domain", "path", "expires")), s.Cookies),
		op.New(driver.Spec("browser_cookies_set", "POST /v1/browser/cookies", "set_cookies", "cookies-set",
			"Set cookies. Each has name and value, and url, or domain and path."), s.SetCookies),
		op.New(driver.Destructive(driver.Spec("browser_cookies_clear", "DELETE /v1/browser/cookies", "clear_cookies",
			"cookies-clear", "Delete all cookies.")), s.ClearCookies),
		op.New(driver.Spec("browser_state_save", "POST /v1/browser/state/save", "save_state", "state-save",
			"Save cookies, local and session storage and IndexedDB of all sites to a file that Playwright can read."), s.SaveState),
		op.New(driver.Spec("browser_state_load", "POST /v1/browser/state/load", "load_state", "state-load",
			"Load cookies and storage from a file that was saved by state-save or by Playwright."), s.LoadState),
	}
}

// Cookie is a cookie in the format of Playwright.
type Cookie struct {
	Name     string  `json:"name"`
	Value    string  `json:"value"`
	Domain   string  `json:"domain"`
	Path     string  `json:"path"`
	Expires  float64 `json:"expires" doc:"Unix time in seconds; -1 for a session cookie"`
	HTTPOnly bool    `json:"httpOnly"`
	Secure   bool    `json:"secure"`
	SameSite string  `json:"sameSite" doc:"Strict, Lax or None"`
}

// CookiesIn selects cookies.
type CookiesIn struct {
	URLs    *string `query:"urls" doc:"Comma-separated URLs; returns only cookies that requests to them send"`
	Context *string `query:"context" doc:"Isolated context"`
}

// inContext are the parameters that select a context.
func inContext(id *string) map[string]any {
	if id == nil || *id == "" {
		return map[string]any{}
	}
	return map[string]any{"browserContextId": *id}
}

func readCookies(ctx context.Context, b *tab.Browser, id *string) ([]Cookie, error) {
	var r struct {
		Cookies []struct {
			Cookie
			Session bool `json:"session"`
		} `json:"cookies"`
	}
	if err := b.Client().Call(ctx, cdp.Browser, "Storage.getCookies", inContext(id), &r); err != nil {
		return nil, err
	}
	list := []Cookie{}
	for _, c := range r.Cookies {
		if c.Session {
			c.Expires = -1
		}
		if c.SameSite == "" {
			c.SameSite = "Lax" // how the browser treats it
		}
		list = append(list, c.Cookie)
	}
	return list, nil
}

// Cookies lists cookies.
func (s *Service) Cookies(ctx context.Context, in CookiesIn) ([]Cookie, error) {
	var urls []*url.URL
	for part := range strings.SplitSeq(op.Value(in.URLs), ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		u, err := url.Parse(part)
		if err != nil || u.Host == "" {
			return nil, op.Errorf(op.Invalid, "invalid URL %q; use URLs such as https://example.com/", part)
		}
		urls = append(urls, u)
	}
	out := []Cookie{}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		list, err := readCookies(ctx, b, in.Context)
		for _, c := range list {
			if len(urls) == 0 || slices.ContainsFunc(urls, c.appliesTo) {
				out = append(out, c)
			}
		}
		return err
	})
	return out, err
}

// appliesTo reports whether a request to the URL sends the cookie.
func (c Cookie) appliesTo(u *url.URL) bool {
	host, domain := strings.ToLower(u.Hostname()), strings.ToLower(c.Domain)
	if bare, ok := strings.CutPrefix(domain, "."); ok {
		if host != bare && !strings.HasSuffix(host, domain) {
			return false
		}
	} else if host != domain {
		return false
	}
	path := u.Path
	if path == "" {
		path = "/"
	}
	if c.Path != "/" && path != c.Path && !strings.HasPrefix(path, strings.TrimSuffix(c.Path, "/")+"/") {
		return false
	}
	return !c.Secure || u.Scheme == "https" || host == "localhost" || host == "127.0.0.1"
}

// SetCookiesIn are cookies.
type SetCookiesIn struct {
	Cookies []map[string]any `json:"cookies" doc:"Objects: name, value, url or domain; optional path, expires, httpOnly, secure, sameSite"`
	Context *string          `json:"context" doc:"Isolated context"`
}

// Count is the number of changed cookies.
type Count struct {
	Count int `json:"count"`
}

// SetCookies sets cookies.
func (s *Service) SetCookies(ctx context.Context, in SetCookiesIn) (*Count, error) {
	var params []map[string]any
	for i, c := range in.Cookies {
		p, err := cdp.CookieParam(c)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "cookies[%d]: %w", i, err)
		}
		params = append(params, p)
	}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		return b.Client().SetCookies(ctx, inContext(in.Context), params)
	})
	if err != nil {
		return nil, err
	}
	return &Count{len(params)}, nil
}

// ClearCookiesIn selects a context.
type ClearCookiesIn struct {
	Context *string `query:"context" doc:"Isolated context"`
}

// ClearCookies deletes all cookies.
func (s *Service) ClearCookies(ctx context.Context, in ClearCookiesIn) (*Count, error) {
	out := &Count{}
	err := s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		list, err := readCookies(ctx, b, in.Context)
		if err != nil {
			return err
		}
		out.Count = len(list)
		return b.Client().Call(ctx, cdp.Browser, "Storage.clearCookies", inContext(in.Context), nil)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
