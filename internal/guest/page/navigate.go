package page

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

func (s *Service) navigationOps() []op.Op {
	return []op.Op{
		op.New(spec("browser_navigate", "POST /v1/browser/page/navigate", "navigate", "navigate",
			"Open a URL in the tab and wait until it has loaded. Returns the URL after redirects, the title and the HTTP status."), s.Navigate),
		op.New(spec("browser_go_back", "POST /v1/browser/page/back", "go_back", "back", "Go back in the history of the tab."), s.Back),
		op.New(spec("browser_go_forward", "POST /v1/browser/page/forward", "go_forward", "forward",
			"Go forward in the history of the tab."), s.Forward),
		op.New(spec("browser_reload", "POST /v1/browser/page/reload", "reload", "reload",
			"Reload the page. Also revives a page that has crashed or hangs."), s.Reload),
		op.New(spec("browser_wait", "POST /v1/browser/page/wait", "wait", "wait",
			"Wait for something: an element's state, a load state, a URL, a quiet network, a download, a "+
				"function's true value, a request, a response, or just a time."), s.Wait),
	}
}

// NavigateIn is a URL to open.
type NavigateIn struct {
	URL       string   `json:"url" doc:"Address to open; https:// is assumed if it has no scheme"`
	WaitUntil string   `json:"wait_until" doc:"When the navigation counts as done" enum:"load,domcontentloaded,networkidle,commit" default:"load"`
	Timeout   *float64 `json:"timeout" doc:"Seconds to wait" default:"30"`
	Tab       *int     `json:"tab" doc:"Index of the tab; default: the active one" minimum:"0"`
}

// Location is where a tab is.
type Location struct {
	URL    string `json:"url"`
	Title  string `json:"title"`
	Status *int   `json:"status,omitempty" doc:"HTTP status of the page, if it came over HTTP"`
}

// loadStates maps the names that callers use to those of the browser.
var loadStates = map[string]string{
	"": tab.Load, "load": tab.Load, "domcontentloaded": tab.DOMContentLoaded, "networkidle": tab.NetworkIdle,
	"network_idle": tab.NetworkIdle, "commit": tab.Commit,
}

// navigationTime is how long a navigation may take unless told otherwise.
const navigationTime = 30 * time.Second

// Navigate opens a URL.
func (s *Service) Navigate(ctx context.Context, in NavigateIn) (Location, error) {
	address, err := completeURL(in.URL)
	if err != nil {
		return Location{}, err
	}
	var out Location
	err = s.visitFor(ctx, Where{in.Tab, in.Timeout}, navigationTime, true, func(ctx context.Context, t *tab.Tab) error {
		err := t.Navigate(ctx, address, loadStates[in.WaitUntil])
		if err != nil {
			return s.explainNavigation(ctx, t, address, in.WaitUntil, err)
		}
		out = s.locate(ctx, t)
		return nil
	})
	return out, err
}

// completeURL adds the scheme that people leave out.
func completeURL(address string) (string, error) {
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
		return "", op.Errorf(op.Invalid, "%q is not a URL; use an address such as https://example.com/", address)
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(address, "//"), "/")
	name, _, _ := strings.Cut(host, ":")
	if host == "" || strings.ContainsAny(host, " \t<>\"") {
		return "", op.Errorf(op.Invalid, "%q is not a URL; use an address such as https://example.com/", address)
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || strings.Trim(name, "0123456789.") == "" {
		return "http://" + strings.TrimPrefix(address, "//"), nil
	}
	return "https://" + strings.TrimPrefix(address, "//"), nil
}

// explainNavigation says why a navigation failed, and stops one that has not begun to show anything.
func (s *Service) explainNavigation(ctx context.Context, t *tab.Tab, address, until string, err error) error {
	if failed, ok := errors.AsType[*tab.NavigationError](err); ok {
		if failed.Download {
			return op.Errorf(op.Conflict, "%q is a download, not a page; it is being saved to %s: wait for it with "+
				"type download", address, s.cfg.Browser.Downloads())
		}
		return op.Errorf(op.Unavailable, "cannot open %q: %s", address, reason(failed.Text))
	}
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), context.Canceled) {
		return err
	}
	fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	if t.Navigating() {
		t.Stop(fresh)
		return op.Errorf(op.Unavailable, "timed out: %q did not respond in time; check the address, or raise timeout", address)
	}
	return op.Errorf(op.Unavailable,
		"timed out: %q is shown, but did not reach the state %q; use it as it is, or wait for %q only", address, until, "commit")
}

// reasons explains the browser's network errors.
var reasons = []struct{ code, text string }{
	{"ERR_NAME_NOT_RESOLVED", "the host name does not exist"},
	{"ERR_CONNECTION_REFUSED", "nothing listens at this address"},
	{"ERR_CONNECTION_RESET", "the server closed the connection"},
	{"ERR_CONNECTION_CLOSED", "the server closed the connection"},
	{"ERR_EMPTY_RESPONSE", "the server sent no response"},
	{"ERR_CERT_DATE_INVALID", "certificate error: the server's certificate has expired or is not valid yet"},
	{"ERR_CERT_AUTHORITY_INVALID", "certificate error: the server's certificate is not signed by a known authority"},
	{"ERR_CERT_COMMON_NAME_INVALID", "certificate error: the server's certificate is for another host name"},
	{"ERR_CERT", "certificate error: the server's certificate is not valid"},
	{"ERR_SSL", "the server does not speak TLS correctly; try http://"},
	{"ERR_TOO_MANY_REDIRECTS", "the server redirects in a circle"},
	{"ERR_UNSAFE_PORT", "the browser refuses this port, which belongs to another protocol"},
	{"ERR_BLOCKED_BY_ADMINISTRATOR", "the URL list of this sandbox blocks it"},
	{"ERR_BLOCKED_BY_CLIENT", "a route or the URL list of this sandbox blocks it"},
	{"ERR_PROXY_CONNECTION_FAILED", "the proxy does not respond"},
	{"ERR_TUNNEL_CONNECTION_FAILED", "the proxy refused the connection"},
	{"ERR_INTERNET_DISCONNECTED", "the sandbox has no network"},
	{"ERR_INVALID_AUTH_CREDENTIALS", "the server did not accept the credentials"},
	{"ERR_FILE_NOT_FOUND", "the file does not exist"},
	{"ERR_ABORTED", "the navigation was canceled, for example by another one or because the server sent no page"},
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

// locate describes where a tab is. A page that does not respond has no title.
func (s *Service) locate(ctx context.Context, t *tab.Tab) Location {
	out := Location{URL: t.URL(), Title: t.Title()}
	if ctx.Err() == nil && t.IsReady() {
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		_ = locate.Evaluate(ctx, t, "document.title", &out.Title)
	}
	if status := t.MainStatus(); status != 0 {
		out.Status = &status
	}
	return out
}

// Back goes back in the history.
func (s *Service) Back(ctx context.Context, in Where) (Location, error) { return s.travel(ctx, in, -1) }

// Forward goes forward in the history.
func (s *Service) Forward(ctx context.Context, in Where) (Location, error) {
	return s.travel(ctx, in, 1)
}

func (s *Service) travel(ctx context.Context, in Where, by int) (Location, error) {
	var out Location
	err := s.visitFor(ctx, in, navigationTime, true, func(inner context.Context, t *tab.Tab) error {
		there, err := t.Travel(inner, by)
		if err != nil {
			return err
		}
		if !there {
			op.Say(ctx, "The history has no further entry in this direction; the page stays as it is")
		}
		out = s.locate(inner, t)
		return nil
	})
	return out, err
}

// Reload reloads the page.
func (s *Service) Reload(ctx context.Context, in Where) (Location, error) {
	var out Location
	err := s.visitFor(ctx, in, navigationTime, true, func(ctx context.Context, t *tab.Tab) error {
		if t.Check() == nil {
			s.free(ctx, t) // a page in an endless loop would never notice
		}
		if err := t.Reload(ctx); err != nil {
			return err
		}
		out = s.locate(ctx, t)
		return nil
	})
	return out, err
}
