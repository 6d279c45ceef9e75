package tab

import (
	"context"
	"encoding/base64"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Route answers or aborts requests whose URL matches.
type Route struct {
	Pattern string
	Match   func(url string) bool
	Abort   bool
	Status  int
	Headers map[string]string
	Body    string
}

// Credentials are sent to sites that require HTTP authentication.
type Credentials struct{ User, Password string }

// Rules change the requests of all pages.
type Rules struct {
	Headers map[string]string            // added to every request
	Scoped  map[string]map[string]string // added to requests to an origin
	Routes  []Route                      // the latest matching route applies
	Login   map[string]Credentials       // by origin; "" applies to all
}

type command struct {
	method string
	params any
}

func (r Rules) intercepts() bool { return len(r.Scoped)+len(r.Routes)+len(r.Login) > 0 }

// commands set up a page for the rules.
func (r Rules) commands() []command {
	var list []command
	if len(r.Headers) > 0 {
		list = append(list, command{"Network.setExtraHTTPHeaders", map[string]any{"headers": r.Headers}})
	}
	// Without interception the browser would prompt for a password in a window.
	pattern := map[string]any{"urlPattern": "*", "resourceType": "Document"}
	if r.intercepts() {
		pattern = map[string]any{"urlPattern": "*"}
	}
	return append(list, command{"Fetch.enable", map[string]any{"patterns": []any{pattern}, "handleAuthRequests": true}})
}

// Rules returns the rules.
func (b *Browser) Rules() Rules {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rules.clone()
}

func (r Rules) clone() Rules {
	r.Headers, r.Scoped, r.Routes, r.Login = maps.Clone(r.Headers), maps.Clone(r.Scoped), slices.Clone(r.Routes), maps.Clone(r.Login)
	return r
}

// ChangeRules changes the rules of all pages and returns when they are in effect. If change returns an error, nothing changes.
func (b *Browser) ChangeRules(ctx context.Context, change func(*Rules) error) error {
	b.mu.Lock()
	next := b.rules.clone()
	if err := change(&next); err != nil {
		b.mu.Unlock()
		return err
	}
	previous := b.rules
	b.rules = next
	sessions := slices.Collect(maps.Values(b.sessions))
	b.mu.Unlock()
	list := next.commands()
	if len(previous.Headers) > 0 && len(next.Headers) == 0 {
		list = append(list, command{"Network.setExtraHTTPHeaders", map[string]any{"headers": map[string]string{}}})
	}
	return b.broadcast(ctx, sessions, list...)
}

// requestPaused decides about a request. b.mu is held.
func (t *Tab) requestPaused(e cdp.Event) {
	p := decode[struct {
		ID      string `json:"requestId"`
		Request struct {
			URL     string            `json:"url"`
			Headers map[string]string `json:"headers"`
		} `json:"request"`
	}](e)
	method, params := t.b.rules.decide(p.Request.URL, p.Request.Headers)
	params["requestId"] = p.ID
	b := t.b
	b.spawn(func(ctx context.Context) { _ = b.client.Call(ctx, e.Session, method, params, nil) })
}

func (r Rules) decide(address string, headers map[string]string) (string, map[string]any) {
	for _, route := range slices.Backward(r.Routes) {
		if !route.Match(address) {
			continue
		}
		if route.Abort {
			return "Fetch.failRequest", map[string]any{"errorReason": "BlockedByClient"}
		}
		return "Fetch.fulfillRequest", map[string]any{
			"responseCode": route.Status, "responseHeaders": headerList(route.Headers),
			"body": base64.StdEncoding.EncodeToString([]byte(route.Body)),
		}
	}
	scoped := r.Scoped[Origin(address)]
	if len(scoped) == 0 {
		return "Fetch.continueRequest", map[string]any{}
	}
	merged := map[string]string{}
	for k, v := range headers {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(scoped)), func(s string) bool { return strings.EqualFold(s, k) }) {
			merged[k] = v
		}
	}
	maps.Copy(merged, scoped)
	return "Fetch.continueRequest", map[string]any{"headers": headerList(merged)}
}

func headerList(h map[string]string) []map[string]string {
	list := []map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(h)) {
		list = append(list, map[string]string{"name": k, "value": h[k]})
	}
	return list
}

// Origin returns the normalized origin of a URL, empty if it has none.
func Origin(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return ""
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return strings.ToLower(u.Scheme) + "://" + host
}

// authRequired answers an HTTP authentication challenge, once per request. b.mu is held.
func (t *Tab) authRequired(e cdp.Event) {
	p := decode[struct {
		ID      string `json:"requestId"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}](e)
	b := t.b
	login, ok := b.rules.Login[Origin(p.Request.URL)]
	if !ok {
		login, ok = b.rules.Login[""]
	}
	answer := map[string]any{"response": "CancelAuth"}
	if ok && t.log.firstAuth(p.ID) {
		answer = map[string]any{"response": "ProvideCredentials", "username": login.User, "password": login.Password}
	}
	b.spawn(func(ctx context.Context) {
		_ = b.client.Call(ctx, e.Session, "Fetch.continueWithAuth", map[string]any{"requestId": p.ID, "authChallengeResponse": answer}, nil)
	})
}

// firstAuth reports whether no credentials were sent for a request. After wrong credentials the site sends another challenge.
func (l *requestLog) firstAuth(id string) bool {
	if l.extra == nil {
		l.byKey, l.extra = map[string]*Request{}, map[string]map[string]string{}
	}
	k := "auth " + id
	if _, seen := l.extra[k]; seen {
		return false
	}
	l.extra[k] = map[string]string{}
	return true
}
