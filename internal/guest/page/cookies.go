package page

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/cookie"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

func (s *Service) stateOps() []op.Op {
	return []op.Op{
		op.New(reading(columns(spec("browser_cookies", "GET /v1/browser/cookies", "get_cookies", "cookies",
			"List the cookies, of all sites or of given URLs, also those that scripts cannot see."), "name", "value",
			"domain", "path", "expires")), s.Cookies),
		op.New(spec("browser_cookies_set", "POST /v1/browser/cookies", "set_cookies", "cookies-set",
			"Set cookies. Each has name and value, and url, or domain and path."), s.SetCookies),
		op.New(destroying(spec("browser_cookies_clear", "DELETE /v1/browser/cookies", "clear_cookies",
			"cookies-clear", "Delete all cookies.")), s.ClearCookies),
		op.New(spec("browser_state_save", "POST /v1/browser/state/save", "save_state", "state-save",
			"Save cookies, local and session storage and IndexedDB of all sites to a file that Playwright can read, too."), s.SaveState),
		op.New(spec("browser_state_load", "POST /v1/browser/state/load", "load_state", "state-load",
			"Load cookies and storage from a file that was saved before, or by Playwright."), s.LoadState),
	}
}

// Cookie is a cookie in Playwright's form.
type Cookie struct {
	Name     string  `json:"name"`
	Value    string  `json:"value"`
	Domain   string  `json:"domain"`
	Path     string  `json:"path"`
	Expires  float64 `json:"expires" doc:"Unix time in seconds; -1 means that the cookie ends with the browser"`
	HTTPOnly bool    `json:"httpOnly"`
	Secure   bool    `json:"secure"`
	SameSite string  `json:"sameSite" doc:"Strict, Lax or None"`
}

// CookiesIn selects cookies.
type CookiesIn struct {
	URLs    *string `query:"urls" doc:"URLs separated by commas: only the cookies that requests to them would send"`
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
			return nil, op.Errorf(op.Invalid, "invalid URL %q; use addresses such as https://example.com/", part)
		}
		urls = append(urls, u)
	}
	out := []Cookie{}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
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
	Cookies []map[string]any `json:"cookies" doc:"Objects with name and value, url or domain and path, and optionally expires, httpOnly, secure, sameSite"`
	Context *string          `json:"context" doc:"Isolated context"`
}

// Count is how many things were changed.
type Count struct {
	Count int `json:"count"`
}

// SetCookies sets cookies.
func (s *Service) SetCookies(ctx context.Context, in SetCookiesIn) (*Count, error) {
	var params []map[string]any
	for i, c := range in.Cookies {
		p, err := cookie.Param(c)
		if err != nil {
			return nil, op.Errorf(op.Invalid, "cookies[%d]: %w", i, err)
		}
		params = append(params, p)
	}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		return storeCookies(ctx, b, in.Context, params)
	})
	if err != nil {
		return nil, err
	}
	return &Count{len(params)}, nil
}

func storeCookies(ctx context.Context, b *tab.Browser, id *string, cookies []map[string]any) error {
	return cookie.Send(ctx, b.Client(), inContext(id), cookies)
}

// ClearCookiesIn selects a context.
type ClearCookiesIn struct {
	Context *string `query:"context" doc:"Isolated context"`
}

// ClearCookies deletes all cookies.
func (s *Service) ClearCookies(ctx context.Context, in ClearCookiesIn) (*Count, error) {
	out := &Count{}
	err := s.withBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
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
