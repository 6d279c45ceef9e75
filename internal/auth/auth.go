// Package auth authenticates the requests of a server, before any routing, for every
// method, path and host.
//
// It owns the credentials (RS256 bearer tokens, a shared token, an API key, keys that a
// hook identifies, one-time tickets and the session cookie that replaces a ticket), the
// rejection of requests from foreign web pages (other origins, DNS rebinding), and the
// use of forwarded headers in URLs. It removes verified credentials from the request, so
// that no handler can leak them. It rejects by default: an unconfigured Guard admits no
// request.
package auth

import (
	"context"
	"crypto/rsa"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// Config configures which requests are admitted. The zero value admits none.
type Config struct {
	JWTPublicKey *rsa.PublicKey // verifies RS256 bearer tokens
	Issuer       string         // iss claim that bearer tokens must have; empty: any
	Audience     string         // aud claim that bearer tokens must contain; empty: any
	Token        string         // shared secret, sent as a bearer token
	APIKey       string         // secret, sent as X-API-Key

	// SandboxKeys are accepted as X-AIO-API-Key, X-API-Key, a bearer token or ?api_key=, as
	// clients of the public sandbox image send them.
	SandboxKeys []string

	// Identify identifies further keys, sent as a bearer token or as X-API-Key. It must
	// compare in constant time. It must set KeyID; Via and Operator are ignored.
	Identify func(secret string) (Identity, bool)
	// Recall returns the current owner of a KeyID. It is called for every ticket and
	// cookie whose owner authenticated with such a key, so that they expire with the
	// key. Without Recall they are not accepted.
	Recall func(keyID string) (Identity, bool)

	// Link exchanges the token of a link for a session. It is called for a GET of LinkPath
	// with a token in its query; Recall must know the KeyID.
	Link     func(token string) (Link, bool)
	LinkPath string

	// Site returns the site that a request addresses by its host name: untrusted content on
	// a separate origin. Empty means the server itself. A site accepts only sessions that
	// started on it, and they are valid only there.
	Site func(*http.Request) string
	// SignInURL returns the URL to which a site redirects a browser without a session. base
	// is the URL of the site. Empty means no redirect.
	SignInURL func(r *http.Request, base *url.URL) string
	// FindPass returns the pass in an escaped path, empty if there is none.
	FindPass func(path string) string

	// Visit identifies the sender of a request by a credential that is valid only for the
	// target of the request. known is false if the request has none; then other credentials
	// are tried, and err and id are ignored. err is shown to the sender. It must compare in
	// constant time. It is also called if no credential is configured. If err wraps ErrForbidden,
	// the response is 403 instead of 401.
	Visit func(*http.Request) (id Identity, known bool, err error)
	// VisitHeaders are the headers with such credentials. They are removed.
	VisitHeaders []string

	// TicketTTL is the lifetime of a ticket; 30 s if zero.
	TicketTTL time.Duration
	// CookieName is the name of the session cookie. If it is empty, the name is derived
	// from the host, port and prefix that the caller uses. Cookies ignore ports, so two
	// sandboxes on one host would end each other's sessions.
	CookieName string

	// Public reports whether a request needs no credentials. It is called only for a
	// target that equals its own path byte for byte. Everything else that the caller sent
	// is removed from an admitted request, so that no router can misdirect it.
	Public func(method, path string) bool

	// Open admits all callers if no credential is configured. Then only requests for names
	// of this machine and PublicHosts are served.
	Open bool
	// Users, with Open, are the IDs of the local users that are admitted over TCP. Nil means
	// all users. Connections must be announced with ConnContext.
	Users []int
	// Insecure, with Open, also serves requests for IP addresses, which DNS rebinding cannot
	// use.
	Insecure bool

	AllowedOrigins []string       // other origins whose pages may call, such as "https://app.example.com"
	PublicHosts    []string       // additional names of this server; "*.example.com" matches all subdomains
	Trusted        []netip.Prefix // proxies whose X-Forwarded-* headers are used

	// Variables are the names of the variables that configure credentials, for errors.
	Variables []string

	Log *slog.Logger     // nil means no log
	Now func() time.Time // nil means time.Now
}

// HasCredentials reports whether any credential is configured.
func (c Config) HasCredentials() bool {
	return c.JWTPublicKey != nil || c.Token != "" || c.APIKey != "" || len(c.SandboxKeys) > 0 || c.Identify != nil
}

// String reveals no secret.
func (c Config) String() string { return "auth.Config{…}" }

// GoString reveals no secret.
func (c Config) GoString() string { return c.String() }

// LogValue reveals no secret.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// How an identity was established.
const (
	ViaOpen   = "open"    // no credentials are configured
	ViaJWT    = "jwt"     // bearer token, signed
	ViaToken  = "token"   // bearer token, shared
	ViaAPIKey = "api-key" // X-API-Key
	ViaKey    = "key"     // a key that Identify identifies, as bearer token or X-API-Key
	ViaTicket = "ticket"  // one-time ticket in the URL
	ViaCookie = "cookie"  // session that started with a ticket or link
	ViaPass   = "pass"    // pass in the path, for a page without an origin
	ViaVisit  = "visit"   // credential that is valid for what the request addresses
)

// ErrForbidden is an error of Visit for a target that requires a separate credential.
var ErrForbidden = errors.New("forbidden")

// Identity is the sender of a request.
type Identity struct {
	Subject string // sub claim of the token, or tenant of the key; for tickets and cookies, of the ticket's issuer
	Role    string // role of the key; empty without a key
	KeyID   string // ID of the key; empty without a key
	Via     string
	Site    string // the only site where the session is valid; empty: the server itself
	// Operator is set if the sender used a secret of the server, or if the server has none.
	Operator bool
}

// Link is the target of a link.
type Link struct {
	Identity Identity
	// The caller is redirected to Path, below the prefix. The session is valid only below
	// Scope, so that it does not replace another session of the browser.
	Path, Scope string
	Expires     time.Time
}

type identityKey struct{}

// NewContext returns a context that carries id.
func NewContext(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns the sender of the request. It returns false for public requests
// without credentials.
func FromContext(ctx context.Context) (Identity, bool) {
	id, ok := ctx.Value(identityKey{}).(Identity)
	return id, ok
}

// Guard authenticates requests. It is safe for concurrent use and need not be closed.
type Guard struct {
	c       Config
	open    bool
	keys    *keyring
	cookies *cookies
	origins *origins
	tickets *ticketStore
	passes  *passStore
	started sessions
}

// New returns a Guard. It starts nothing.
func New(c Config) *Guard {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TicketTTL <= 0 {
		c.TicketTTL = 30 * time.Second
	}
	if c.Public == nil {
		c.Public = func(string, string) bool { return false }
	}
	if c.Site == nil {
		c.Site = func(*http.Request) string { return "" }
	}
	if c.SignInURL == nil {
		c.SignInURL = func(*http.Request, *url.URL) string { return "" }
	}
	if c.Visit == nil {
		c.Visit = func(*http.Request) (Identity, bool, error) { return Identity{}, false, nil }
	}
	if c.FindPass == nil {
		c.FindPass = func(string) string { return "" }
	}
	return &Guard{
		c:       c,
		open:    c.Open && !c.HasCredentials(),
		keys:    newKeyring(c),
		cookies: newCookies(c.CookieName, c.Now),
		origins: newOrigins(c),
		tickets: newTicketStore(c.Now),
		passes:  newPassStore(),
	}
}

// Wrap returns a handler that passes admitted requests to next.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, passed := g.passes.find(g.c.FindPass(r.URL.EscapedPath()), g.c.Now())
		if passed {
			allowOpaque(w, r)
		} else {
			g.origins.allowOrigin(w, r)
		}
		no := g.forbidden(r, passed)
		if passed && no == nil && g.isCopied(r, p) {
			origin.Redirect(w, Base(r, g.c.Trusted).Path+withoutPass(r.URL.EscapedPath()), r.URL.RawQuery)
			return
		}
		if no == nil && (g.origins.preflight(w, r, passed) || !passed && g.serveSession(w, r)) {
			return
		}
		var a admission
		switch {
		case no != nil:
		case passed:
			a, no = g.admitPass(r, p)
		default:
			a, no = g.admit(r)
		}
		switch {
		case no != nil && g.public(r):
			next.ServeHTTP(w, stripped(r))
		case no != nil:
			g.refuse(w, r, no)
		default:
			g.serve(w, a, next)
		}
	})
}

// Issue issues a one-time ticket for the identity in ctx. A session that starts with the
// ticket ends with the session in ctx.
func (g *Guard) Issue(ctx context.Context) (ticket string, expiresIn time.Duration, err error) {
	id, _ := FromContext(ctx)
	return g.issue(ctx, id)
}

// IssueFor issues a one-time ticket that starts a session on one site.
func (g *Guard) IssueFor(ctx context.Context, site string) (ticket string, err error) {
	id, _ := FromContext(ctx)
	id.Site = site
	ticket, _, err = g.issue(ctx, id)
	return ticket, err
}

func (g *Guard) issue(ctx context.Context, id Identity) (string, time.Duration, error) {
	now := g.c.Now()
	s, _ := sessionOf(ctx, now)
	life := min(g.c.TicketTTL, s.end.Sub(now))
	if life <= 0 {
		return "", 0, ErrSessionOver
	}
	ticket, err := g.tickets.issue(ticket{owner: id, session: s, expires: now.Add(life)})
	return ticket, life, err
}
