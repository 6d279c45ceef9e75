// Package navigation navigates tabs: it opens URLs, moves in the history and reloads.
package navigation

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service navigates tabs.
type Service struct{ d *driver.Driver }

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service { return &Service{d} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.Spec("browser_navigate", "POST /v1/browser/page/navigate", "navigate", "navigate",
			"Open a URL in the tab and wait until it is loaded. Returns the URL after redirects, the title and the HTTP status."), s.Navigate),
		op.New(driver.Spec("browser_go_back", "POST /v1/browser/page/back", "go_back", "back", "Go back in the history of the tab."), s.Back),
		op.New(driver.Spec("browser_go_forward", "POST /v1/browser/page/forward", "go_forward", "forward",
			"Go forward in the history of the tab."), s.Forward),
		op.New(driver.Spec("browser_reload", "POST /v1/browser/page/reload", "reload", "reload",
			"Reload the page. Also recovers a page that crashed or does not respond."), s.Reload),
	}
}

// NavigateIn is a URL to open.
type NavigateIn struct {
	URL       string   `json:"url" doc:"URL to open; the default scheme is https"`
	WaitUntil string   `json:"wait_until" doc:"State to wait for" enum:"load,domcontentloaded,networkidle,commit" default:"load"`
	Timeout   *float64 `json:"timeout" doc:"Timeout in seconds" default:"30"`
	Tab       *int     `json:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
}

// Location is the page that a tab shows.
type Location struct {
	URL    string `json:"url"`
	Title  string `json:"title"`
	Status *int   `json:"status,omitempty" doc:"HTTP status of the page, if it was loaded over HTTP"`
}

// Navigate opens a URL.
func (s *Service) Navigate(ctx context.Context, in NavigateIn) (Location, error) {
	address, err := CompleteURL(in.URL)
	if err != nil {
		return Location{}, err
	}
	var out Location
	state, _ := tab.LoadState(in.WaitUntil)
	o := driver.Options{Limit: driver.NavigationTime, AllowFailed: true, Repeat: true}
	err = s.d.VisitWith(ctx, driver.Where{Tab: in.Tab, Timeout: in.Timeout}, o, func(ctx context.Context, t *tab.Tab) error {
		if err := t.Navigate(ctx, address, state); err != nil {
			return Explain(ctx, s.d, t, address, in.WaitUntil, err)
		}
		out = describe(ctx, t)
		return nil
	})
	return out, err
}

// visit runs a navigation, which also works in a tab whose page has failed.
func (s *Service) visit(ctx context.Context, w driver.Where, fn func(context.Context, *tab.Tab) error) error {
	return s.d.VisitWith(ctx, w, driver.Options{Limit: driver.NavigationTime, AllowFailed: true}, fn)
}

// CompleteURL adds the scheme if it is missing.
func CompleteURL(address string) (string, error) {
	address = strings.TrimSpace(address)
	u, err := url.Parse(address)
	if err == nil && u.Scheme != "" && (u.Host != "" || u.Opaque != "" || u.Scheme == "file" || u.Scheme == "about" ||
		u.Scheme == "data") && !strings.Contains(u.Scheme, ".") && u.Scheme != "localhost" {
		if u.Scheme == "javascript" {
			return "", op.Errorf(op.Invalid, "javascript: URLs cannot be opened; use evaluate")
		}
		return address, nil
	}
	if strings.Contains(address, "://") {
		return "", op.Errorf(op.Invalid, "%q is not a URL; use a URL such as https://example.com/", address)
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(address, "//"), "/")
	name, _, _ := strings.Cut(host, ":")
	if host == "" || strings.ContainsAny(host, " \t<>\"") {
		return "", op.Errorf(op.Invalid, "%q is not a URL; use a URL such as https://example.com/", address)
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || strings.Trim(name, "0123456789.") == "" {
		return "http://" + strings.TrimPrefix(address, "//"), nil
	}
	return "https://" + strings.TrimPrefix(address, "//"), nil
}

// Explain turns the error of a navigation into one for the caller. It stops a navigation that has not shown anything yet.
func Explain(ctx context.Context, d *driver.Driver, t *tab.Tab, address, until string, err error) error {
	if failed, ok := errors.AsType[*tab.NavigationError](err); ok {
		if failed.Download {
			return op.Errorf(op.Conflict, "%q is a download, not a page; it is being saved to %q: wait for it with "+
				"type download", address, d.Downloads())
		}
		return op.Errorf(op.Unavailable, "cannot open %q: %s", address, reason(failed.Text))
	}
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), context.Canceled) {
		return err
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), driver.ProbeTime)
	defer cancel()
	if t.Navigating() {
		t.Stop(stop)
		return op.Errorf(op.Unavailable, "timed out: %q did not respond in time; check the URL or increase timeout", address)
	}
	return op.Errorf(op.Unavailable, "timed out: %q is shown but did not reach the state %q; "+
		"continue with the page as it is, or set wait_until to %q", address, until, "commit")
}

// reasons explains the browser's network errors.
var reasons = []struct{ code, text string }{
	{"ERR_NAME_NOT_RESOLVED", "the host name does not exist"},
	{"ERR_CONNECTION_REFUSED", "no server listens at this address"},
	{"ERR_CONNECTION_RESET", "the server closed the connection"},
	{"ERR_CONNECTION_CLOSED", "the server closed the connection"},
	{"ERR_EMPTY_RESPONSE", "the server sent no response"},
	{"ERR_CERT_DATE_INVALID", "certificate error: the server's certificate has expired or is not valid yet"},
	{"ERR_CERT_AUTHORITY_INVALID", "certificate error: the server's certificate is not signed by a known authority"},
	{"ERR_CERT_COMMON_NAME_INVALID", "certificate error: the server's certificate is for another host name"},
	{"ERR_CERT", "certificate error: the server's certificate is not valid"},
	{"ERR_SSL", "the server does not speak TLS correctly; try http://"},
	{"ERR_TOO_MANY_REDIRECTS", "the server redirects in a loop"},
	{"ERR_UNSAFE_PORT", "the browser blocks this port, which is reserved for another protocol"},
	{"ERR_BLOCKED_BY_ADMINISTRATOR", "the URL list of this sandbox blocks it"},
	{"ERR_BLOCKED_BY_CLIENT", "a route or the URL list of this sandbox blocks it"},
	{"ERR_PROXY_CONNECTION_FAILED", "the proxy does not respond"},
	{"ERR_TUNNEL_CONNECTION_FAILED", "the proxy refused the connection"},
	{"ERR_INTERNET_DISCONNECTED", "the sandbox has no network"},
	{"ERR_INVALID_AUTH_CREDENTIALS", "the server did not accept the credentials"},
	{"ERR_FILE_NOT_FOUND", "the file does not exist"},
	{"ERR_ABORTED", "the navigation was canceled, for example by another navigation or because the server sent no page"},
}

func reason(text string) string {
	code := strings.TrimPrefix(text, "net::")
	for _, r := range reasons {
		if strings.HasPrefix(code, r.code) {
			return r.text + " (" + code + ")"
		}
	}
	return code
}

// describe returns the location of a tab.
func describe(ctx context.Context, t *tab.Tab) Location {
	out := Location{URL: t.URL(), Title: driver.Title(ctx, t)}
	if status := t.MainStatus(); status != 0 {
		out.Status = &status
	}
	return out
}

// Back goes back in the history.
func (s *Service) Back(ctx context.Context, in driver.Where) (Location, error) {
	return s.travel(ctx, in, -1)
}

// Forward goes forward in the history.
func (s *Service) Forward(ctx context.Context, in driver.Where) (Location, error) {
	return s.travel(ctx, in, 1)
}

func (s *Service) travel(ctx context.Context, in driver.Where, by int) (Location, error) {
	var out Location
	err := s.visit(ctx, in, func(inner context.Context, t *tab.Tab) error {
		found, err := t.Travel(inner, by)
		if err != nil {
			return err
		}
		if !found {
			op.Say(ctx, "The history has no further entry in this direction; the page is unchanged")
		}
		out = describe(inner, t)
		return nil
	})
	return out, err
}

// Reload reloads the page.
func (s *Service) Reload(ctx context.Context, in driver.Where) (Location, error) {
	var out Location
	err := s.visit(ctx, in, func(ctx context.Context, t *tab.Tab) error {
		driver.Interrupt(ctx, t) // a page in an endless loop never handles the reload
		if err := t.Reload(ctx); err != nil {
			return err
		}
		out = describe(ctx, t)
		return nil
	})
	return out, err
}
