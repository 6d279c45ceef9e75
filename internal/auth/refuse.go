package auth

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/card"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// refusal describes why a request is rejected. Its texts contain no credential.
type refusal struct {
	status int
	reason string // for the log; one of a fixed set
	detail string // for the caller
	next   string // page to open after sign-in; empty: the requested page
	visit  bool   // the reply has the form that E2B's clients expect
}

func (g *Guard) unauthorized(why string) *refusal {
	var methods []string
	if g.c.JWTPublicKey != nil || g.c.Token != "" || g.c.Identify != nil {
		methods = append(methods, "Authorization: Bearer <token>")
	}
	if g.c.APIKey != "" || len(g.keys.sandbox) > 0 || g.c.Identify != nil {
		methods = append(methods, "X-API-Key: <key>")
	}
	detail := why + ". No credentials are configured, so no caller can authenticate"
	if len(methods) > 0 {
		detail = why + ". Send " + strings.Join(methods, " or ") + ", or open the page with ?ticket= from POST /tickets"
	}
	return &refusal{status: http.StatusUnauthorized, reason: why, detail: detail}
}

// queryHint adds a hint for callers that send a token in the URL, which logs and histories
// would store.
func (n *refusal) queryHint(u *url.URL) {
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		key, _, _ := strings.Cut(part, "=")
		switch strings.ToLower(key) {
		case "token", "access_token", "api_key", "apikey":
			n.detail += ". A token in the query is never accepted"
			return
		}
	}
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, no *refusal) {
	g.c.Log.Info("request rejected", "status", no.status, "reason", no.reason, "method", shorten(r.Method), "path",
		shorten(HidePass(r.URL.Path)), "remote", r.RemoteAddr)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if no.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="cove"`)
	}
	if to := g.signInElsewhere(r, no); to != "" {
		h.Set("Location", to)
		h.Set("Referrer-Policy", "no-referrer")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	if origin.IsNavigation(r) || isForm(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Referrer-Policy", "same-origin") // the form must be sent with its origin
		w.WriteHeader(no.status)
		_, _ = fmt.Fprint(w, g.page(r, no))
		return
	}
	h.Set("Content-Type", "application/json")
	origin.Confine(h, origin.Data)
	w.WriteHeader(no.status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // keeps "<token>" readable
	if no.visit {
		_ = e.Encode(map[string]any{"code": no.status, "message": no.detail})
		return
	}
	_ = e.Encode(map[string]string{"detail": no.detail})
}

// signInElsewhere returns the URL where a person signs in to a site. It is empty for a rejected
// ticket, which would cause a redirect loop.
func (g *Guard) signInElsewhere(r *http.Request, no *refusal) string {
	if no.status != http.StatusUnauthorized || !origin.IsNavigation(r) || len(takeTickets(r.Clone(r.Context()))) > 0 {
		return ""
	}
	return g.c.SignInURL(r, Base(r, g.c.Trusted))
}

const pagePolicy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; base-uri " +
	"'none'; frame-ancestors 'none'"

// pageText is the page of a refusal: title, content, icon and logo. formText is the content of the sign-in
// page: error, base path, next page, detail, lifetime of a ticket, header and base URL.
var (
	//go:embed page.html
	pageText string
	//go:embed form.html
	formText string
)

// formatPage returns a page of this package with a title and content.
func formatPage(title, content string) string {
	return fmt.Sprintf(pageText, title, content, card.Icon, card.Logo)
}

// page returns the page that a person sees instead of JSON.
func (g *Guard) page(r *http.Request, no *refusal) string {
	detail := html.EscapeString(no.detail)
	if no.status != http.StatusUnauthorized || !g.c.HasCredentials() {
		return formatPage("Access denied", "<p>"+detail+".</p>")
	}
	header := `-H "Authorization: Bearer $TOKEN"`
	if g.c.JWTPublicKey == nil && g.c.Token == "" && g.c.Identify == nil {
		header = `-H "X-API-Key: $KEY"`
	}
	base := Base(r, g.c.Trusted)
	wrong, next := "", no.next
	if r.Method == http.MethodPost {
		wrong = `<p class="bad" role="alert">This key is not valid. Check it, or request a new one.</p>`
	} else {
		// The query is removed, because it may contain a credential.
		next = strings.TrimLeft(withoutPass(r.URL.EscapedPath()), "/")
	}
	return formatPage("Sign in", fmt.Sprintf(formText, wrong, html.EscapeString(base.EscapedPath()),
		html.EscapeString(next), detail, g.c.TicketTTL, header, html.EscapeString(base.String())))
}

// isForm reports whether the request submits the sign-in form.
func isForm(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == signInPath && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// shorten quotes text of a caller, truncated.
func shorten(s string) string {
	const maxLength = 120
	if len(s) > maxLength {
		s = s[:maxLength] + "…"
	}
	return strconv.Quote(s)
}
