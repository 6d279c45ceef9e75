// Package auth is the door of a server: it decides who may come in, before any
// routing, for every method, path and host alike.
//
// It owns the credentials (RS256 bearer tokens, a shared token, an API key, keys
// that a hook knows, one-time tickets and the session cookie that follows a
// ticket), the refusal of
// web pages from elsewhere (other origins, rebound names), and the rules by
// which forwarded headers shape URLs. What it has checked it takes out of
// the request, so nothing behind it can pass a credential on. It refuses
// when in doubt: an unconfigured Guard lets nobody in.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Config says who may come in. The zero value lets nobody in.
type Config struct {
	JWTPublicKey *rsa.PublicKey // verifies RS256 bearer tokens
	Token        string         // shared secret, sent as a bearer token
	APIKey       string         // secret, sent as X-API-Key

	// Identify knows further keys, sent either way. It must compare in constant
	// time. Of its answer all but Via and Operator counts, and KeyID must not be empty.
	Identify func(secret string) (Identity, bool)
	// Recall tells who a KeyID stands for now. It is asked whenever a ticket or
	// a cookie comes whose owner signed in with such a key, so that these end
	// with the key; without it they are not accepted.
	Recall func(keyID string) (Identity, bool)

	// Link exchanges the token of a link for a session of its own. It is asked
	// about a GET of LinkPath with a token in its query; Recall must know the KeyID.
	Link     func(token string) (Link, bool)
	LinkPath string

	// TicketTTL is the life of a ticket; 30 s if zero.
	TicketTTL time.Duration
	// CookieName is the session cookie's name. Empty derives it from the host, port
	// and prefix that the caller uses, because cookies know no ports and two
	// sandboxes on one host would log each other out.
	CookieName string

	// Public names the requests that need no credentials. It is asked only about
	// a target that equals its own path byte for byte. A request let in by it
	// carries nothing of the caller's, so no router can send it elsewhere.
	Public func(method, path string) bool

	// Open lets everybody in as long as no credential is configured. Only
	// names of this machine and PublicHosts are answered then.
	Open bool
	// Insecure, with Open, also answers to bare IP addresses, which cannot be rebound.
	Insecure bool

	AllowedOrigins []string       // other origins whose pages may call; "https://app.example.com"
	PublicHosts    []string       // further names of this server; "*.example.com" for all below
	Trusted        []netip.Prefix // proxies whose X-Forwarded-* are believed

	// Variables names what an operator can set to configure credentials, for error texts.
	Variables []string

	Log *slog.Logger     // nil logs nothing
	Now func() time.Time // nil is time.Now
}

// HasCredentials reports whether anything is configured to sign in with.
func (c Config) HasCredentials() bool {
	return c.JWTPublicKey != nil || c.Token != "" || c.APIKey != "" || c.Identify != nil
}

// String shows no secret.
func (c Config) String() string { return "auth.Config{…}" }

// GoString shows no secret.
func (c Config) GoString() string { return c.String() }

// LogValue shows no secret.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// How an identity was established.
const (
	ViaOpen   = "open"    // no credentials are configured
	ViaJWT    = "jwt"     // bearer token, signed
	ViaToken  = "token"   // bearer token, shared
	ViaAPIKey = "api-key" // X-API-Key
	ViaKey    = "key"     // a key that Identify knows, as bearer token or X-API-Key
	ViaTicket = "ticket"  // one-time ticket in the URL
	ViaCookie = "cookie"  // session that began with a ticket
)

// Identity is who sends a request.
type Identity struct {
	Subject string // the sub claim of the token, or the key's tenant; for tickets and cookies, of whoever asked for the ticket
	Role    string // the key's; empty for all who signed in without one
	KeyID   string // of the key; empty likewise
	Via     string
	// Operator tells that they came with the server's own secret, or that it has none.
	Operator bool
}

// Link is where the token of a link leads.
type Link struct {
	Identity Identity
	// Path is where the caller is sent, behind the prefix; the session counts
	// below Scope, so that it does not replace one that the browser has for the rest.
	Path, Scope string
	Expires     time.Time
}

type identityKey struct{}

// NewContext returns a context that carries id.
func NewContext(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// FromContext returns who sent the request. It is false for public requests
// that came without credentials.
func FromContext(ctx context.Context) (Identity, bool) {
	id, ok := ctx.Value(identityKey{}).(Identity)
	return id, ok
}

// Guard checks requests. It is safe for concurrent use and needs no closing.
type Guard struct {
	c       Config
	open    bool
	token   *[sha256.Size]byte // nil: not configured
	apiKey  *[sha256.Size]byte
	jwt     *jwt.Parser
	tickets *ticketStore
	session [32]byte // signs cookies; new at every start
	origins map[string]bool
}

// New makes a Guard. It starts nothing.
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
	g := &Guard{
		c:       c,
		open:    c.Open && !c.HasCredentials(),
		token:   digest(c.Token),
		apiKey:  digest(c.APIKey),
		jwt:     newParser(c.Now),
		tickets: newTicketStore(c.TicketTTL, c.Now),
		origins: make(map[string]bool, len(c.AllowedOrigins)),
	}
	for _, o := range c.AllowedOrigins {
		g.origins[strings.ToLower(strings.TrimSuffix(o, "/"))] = true
	}
	_, _ = rand.Read(g.session[:]) // never fails
	return g
}

// Wrap puts the guard before next.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.allowOrigin(w, r)
		no := g.forbidden(r)
		if no == nil && g.preflight(w, r) {
			return
		}
		var a admission
		if no == nil {
			a, no = g.admit(r)
		}
		switch {
		case no != nil && g.public(r):
			next.ServeHTTP(w, bare(r))
		case no != nil:
			g.refuse(w, r, no)
		default:
			a.serve(w, next)
		}
	})
}

// Issue makes a one-time ticket for the identity in ctx.
func (g *Guard) Issue(ctx context.Context) (ticket string, expiresIn time.Duration, err error) {
	id, _ := FromContext(ctx)
	ticket, err = g.tickets.issue(id)
	return ticket, g.c.TicketTTL, err
}
