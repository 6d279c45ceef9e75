// Package network controls and lists what pages transfer: headers, credentials, routes, requests, HAR files and downloads.
package network

import (
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service controls requests of pages. Its rules apply to every browser until the service ends.
type Service struct {
	d *driver.Driver

	mu    sync.Mutex
	rules tab.Rules
}

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service {
	s := &Service{d: d}
	d.OnConnect(s.apply)
	return s
}

// Ops lists the operations on requests.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.Spec("browser_network_headers", "POST /v1/browser/network/headers", "set_extra_headers",
			"network-headers", "Set headers of all later requests. Replaces the previous set; an empty set clears it."), s.SetHeaders),
		op.New(driver.Spec("browser_network_scoped_headers", "POST /v1/browser/network/scoped_headers", "set_scoped_headers",
			"network-scoped-headers", "Set headers of later requests to one origin. Replaces the previous "+
				"set of the origin; an empty set clears it."), s.SetScopedHeaders),
		op.New(driver.Spec("browser_network_credentials", "POST /v1/browser/network/credentials", "set_credentials",
			"network-credentials", "Set the user name and password for sites that require HTTP "+
				"authentication."), s.SetCredentials),
		op.New(driver.Spec("browser_network_route", "POST /v1/browser/network/route", "add_route", "network-route",
			"Answer or abort requests whose URL matches a pattern. The latest matching route applies."), s.AddRoute),
		op.New(driver.Spec("browser_network_route_remove", "DELETE /v1/browser/network/route", "remove_route",
			"network-route-remove", "Remove all routes with a pattern."), s.RemoveRoute),
		op.New(driver.ReadOnly(driver.Columns(driver.Spec("browser_network_requests", "GET /v1/browser/network/requests", "get_requests",
			"network-requests", "List the requests of the tab, oldest first."), "method", "status", "resource_type",
			"size", "duration_ms", "url")), s.Requests),
		op.New(driver.Spec("browser_network_har", "POST /v1/browser/network/export_har", "export_har", "network-export-har",
			"Write the requests of the tab to a HAR 1.2 file."), s.ExportHAR),
	}
}

// HeadersIn are headers of requests.
type HeadersIn struct {
	Headers map[string]string `json:"headers" doc:"Names and values"`
}

// Headers are the current headers.
type Headers struct {
	Origin  string            `json:"origin,omitempty"`
	Headers map[string]string `json:"headers"`
}

func checkHeaders(h map[string]string) error {
	for k, v := range h {
		if !httpguts.ValidHeaderFieldName(k) || !httpguts.ValidHeaderFieldValue(v) {
			return op.Errorf(op.Invalid, "invalid header %q: %q", k, v)
		}
	}
	return nil
}

// apply applies the rules to a new browser.
func (s *Service) apply(ctx context.Context, b *tab.Browser) error {
	s.mu.Lock()
	rules := s.rules
	s.mu.Unlock()
	if len(rules.Headers)+len(rules.Scoped)+len(rules.Routes)+len(rules.Login) == 0 {
		return nil
	}
	return b.ChangeRules(ctx, func(r *tab.Rules) error { *r = rules; return nil })
}

// changeRules changes the rules of this browser and later ones.
func (s *Service) changeRules(ctx context.Context, change func(*tab.Rules) error) error {
	return s.d.WithBrowser(ctx, func(ctx context.Context, b *tab.Browser, _ []string) error {
		if err := b.ChangeRules(ctx, change); err != nil {
			return err
		}
		rules := b.Rules()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rules = rules
		return nil
	})
}

// SetHeaders sets headers for all requests.
func (s *Service) SetHeaders(ctx context.Context, in HeadersIn) (*Headers, error) {
	if err := checkHeaders(in.Headers); err != nil {
		return nil, err
	}
	err := s.changeRules(ctx, func(r *tab.Rules) error { r.Headers = in.Headers; return nil })
	if err != nil {
		return nil, err
	}
	return &Headers{Headers: in.Headers}, nil
}

// ScopedHeadersIn are headers of requests to an origin.
type ScopedHeadersIn struct {
	Origin  string            `json:"origin" doc:"Scheme, host and port, such as https://api.example.com"`
	Headers map[string]string `json:"headers" doc:"Names and values"`
}

// SetScopedHeaders sets headers for an origin.
func (s *Service) SetScopedHeaders(ctx context.Context, in ScopedHeadersIn) (*Headers, error) {
	origin := tab.Origin(in.Origin)
	if origin == "" {
		return nil, op.Errorf(op.Invalid, "invalid origin %q; use scheme and host, such as https://api.example.com", in.Origin)
	}
	if err := checkHeaders(in.Headers); err != nil {
		return nil, err
	}
	err := s.changeRules(ctx, func(r *tab.Rules) error {
		scoped := maps.Clone(r.Scoped)
		if scoped == nil {
			scoped = map[string]map[string]string{}
		}
		scoped[origin] = in.Headers
		if len(in.Headers) == 0 {
			delete(scoped, origin)
		}
		r.Scoped = scoped
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Headers{Origin: origin, Headers: in.Headers}, nil
}

// CredentialsIn are a user name and password.
type CredentialsIn struct {
	Origin   string `json:"origin" doc:"Site of the credentials; empty: all sites" default:""`
	Username string `json:"username" doc:"User name; empty: remove the credentials"`
	Password string `json:"password" doc:"Password" default:""`
}

// Credentials reports whether credentials are set for a site.
type Credentials struct {
	Origin string `json:"origin"`
	Set    bool   `json:"set"`
}

// SetCredentials sets the credentials of sites.
func (s *Service) SetCredentials(ctx context.Context, in CredentialsIn) (*Credentials, error) {
	origin := ""
	if in.Origin != "" {
		if origin = tab.Origin(in.Origin); origin == "" {
			return nil, op.Errorf(op.Invalid, "invalid origin %q; use scheme and host, such as https://example.com", in.Origin)
		}
	}
	err := s.changeRules(ctx, func(r *tab.Rules) error {
		login := maps.Clone(r.Login)
		if login == nil {
			login = map[string]tab.Credentials{}
		}
		login[origin] = tab.Credentials{User: in.Username, Password: in.Password}
		if in.Username == "" {
			delete(login, origin)
		}
		r.Login = login
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Credentials{origin, in.Username != ""}, nil
}

// RouteResponse is the response of a route.
type RouteResponse struct {
	Status      int               `json:"status" doc:"HTTP status" default:"200"`
	Headers     map[string]string `json:"headers,omitempty" doc:"Response headers"`
	Body        string            `json:"body" doc:"Response body" default:""`
	ContentType string            `json:"content_type" doc:"Media type of the body" default:"text/plain"`
}

// RouteIn is a route.
type RouteIn struct {
	Pattern  string         `json:"url_pattern" doc:"Part of the URL, glob such as **/api/*, or /regex/" alias:"pattern"`
	Response *RouteResponse `json:"response" doc:"Response to send"`
	Abort    bool           `json:"abort" doc:"Abort matching requests" default:"false"`
	Body     *string        `json:"response_body" doc:"Shorthand for response.body"`
	Status   *int           `json:"response_status" doc:"Shorthand for response.status"`
}

// Routes are the patterns of all routes.
type Routes struct {
	Pattern string   `json:"url_pattern"`
	Routes  []string `json:"routes" doc:"All patterns, latest last"`
}

// maxRoutes is the maximum number of routes.
const maxRoutes = 200

// AddRoute adds a route.
func (s *Service) AddRoute(ctx context.Context, in RouteIn) (*Routes, error) {
	match, err := tab.URLMatcher(in.Pattern, true)
	if err != nil {
		return nil, err
	}
	if in.Response == nil && (in.Body != nil || in.Status != nil) {
		in.Response = &RouteResponse{Status: http.StatusOK, ContentType: "text/plain", Body: op.Value(in.Body)}
		if in.Status != nil {
			in.Response.Status = *in.Status
		}
	}
	if in.Response == nil && !in.Abort {
		return nil, op.Errorf(op.Invalid, "the route has no effect; send response, or set abort to true")
	}
	route := tab.Route{Pattern: in.Pattern, Match: match, Abort: in.Abort}
	if in.Response != nil && !in.Abort {
		if in.Response.Status < 100 || in.Response.Status > 599 {
			return nil, op.Errorf(op.Invalid, "invalid status %d; use 100 to 599", in.Response.Status)
		}
		if err := checkHeaders(in.Response.Headers); err != nil {
			return nil, err
		}
		route.Status, route.Body, route.Headers = in.Response.Status, in.Response.Body, map[string]string{}
		typed := false
		for k, v := range in.Response.Headers {
			route.Headers[k] = v
			typed = typed || strings.EqualFold(k, "Content-Type")
		}
		if !typed {
			route.Headers["Content-Type"] = in.Response.ContentType
		}
	}
	out := &Routes{Pattern: in.Pattern}
	err = s.changeRules(ctx, func(r *tab.Rules) error {
		if len(r.Routes) >= maxRoutes {
			return op.Errorf(op.Exhausted, "route limit reached (%d); remove routes", maxRoutes)
		}
		r.Routes = append(r.Routes, route)
		out.Routes = patterns(r.Routes)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func patterns(routes []tab.Route) []string {
	list := []string{}
	for _, r := range routes {
		list = append(list, r.Pattern)
	}
	return list
}

// RemoveRouteIn selects routes.
type RemoveRouteIn struct {
	Pattern string `json:"url_pattern" doc:"Pattern as it was added" alias:"pattern"`
}

// RemoveRoute removes a route.
func (s *Service) RemoveRoute(ctx context.Context, in RemoveRouteIn) (*Routes, error) {
	out := &Routes{Pattern: in.Pattern}
	err := s.changeRules(ctx, func(r *tab.Rules) error {
		n := len(r.Routes)
		r.Routes = slices.DeleteFunc(r.Routes, func(route tab.Route) bool { return route.Pattern == in.Pattern })
		if len(r.Routes) == n {
			return op.Errorf(op.NotFound, "no route for %q; there are %d: %s", in.Pattern, n, strings.Join(patterns(r.Routes), ", "))
		}
		out.Routes = patterns(r.Routes)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// RequestsIn selects requests.
type RequestsIn struct {
	Filter *string `query:"filter" doc:"Part of the URL"`
	Limit  int     `query:"limit" doc:"Maximum number of requests; the newest are returned" default:"100"`
	BodyOf *string `query:"body_of" doc:"ID of one request to return with its response body"`
	driver.Here
}

// Request is a request of a page.
type Request struct {
	tab.Request
	Body   *string `json:"response_body,omitempty"`
	Base64 *bool   `json:"response_body_base64,omitempty" doc:"Whether response_body is base64"`
}

// Requests lists requests.
func (s *Service) Requests(ctx context.Context, in RequestsIn) ([]Request, error) {
	out := []Request{}
	err := s.d.VisitWith(ctx, in.Where(), driver.Options{AllowFailed: true}, func(ctx context.Context, t *tab.Tab) error {
		for _, r := range t.Requests() {
			if f := op.Value(in.Filter); f != "" && !strings.Contains(r.URL, f) || in.BodyOf != nil && r.ID != *in.BodyOf {
				continue
			}
			out = append(out, Request{Request: r})
		}
		out = out[max(0, len(out)-max(in.Limit, 0)):]
		if in.BodyOf == nil {
			return nil
		}
		if len(out) == 0 {
			return op.Errorf(op.NotFound, "no request %q; list the requests", *in.BodyOf)
		}
		last := &out[len(out)-1]
		body, err := t.ResponseBody(ctx, last.Request)
		if err != nil {
			return op.Errorf(op.NotFound, "the browser no longer has the body of this response")
		}
		text, encoded := string(body), false
		if !utf8.Valid(body) {
			text, encoded = base64.StdEncoding.EncodeToString(body), true
		}
		last.Body, last.Base64 = &text, &encoded
		return nil
	})
	return out, err
}
