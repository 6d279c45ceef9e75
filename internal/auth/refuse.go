package auth

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// refusal is why a request may not go on. Neither text holds a credential.
type refusal struct {
	status int
	reason string // for the log; one of few
	detail string // for the caller
}

func (g *Guard) unauthorized(why string) *refusal {
	var ways []string
	if g.c.JWTPublicKey != nil || g.c.Token != "" || g.c.Identify != nil {
		ways = append(ways, "Authorization: Bearer <token>")
	}
	if g.c.APIKey != "" || g.c.Identify != nil {
		ways = append(ways, "X-API-Key: <key>")
	}
	detail := why + ". No credentials are configured, so nobody can sign in"
	if len(ways) > 0 {
		detail = why + ". Send " + strings.Join(ways, " or ") + ", or open the page with ?ticket= from POST /tickets"
	}
	return &refusal{status: http.StatusUnauthorized, reason: why, detail: detail}
}

// queryHint helps those who put a token into the URL, where logs and histories
// would keep it.
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
	g.c.Log.Info("request refused", "status", no.status, "reason", no.reason, "method", shorten(r.Method), "path", shorten(r.URL.Path), "remote", r.RemoteAddr)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if no.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="cove"`)
	}
	if navigation(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		w.WriteHeader(no.status)
		_, _ = fmt.Fprint(w, g.page(r, no))
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // "<token>" is to be read by people
	_ = e.Encode(map[string]string{"detail": no.detail})
}

const pageText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
pre{background:#f3f3f3;padding:.8rem;overflow:auto}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#262626}}</style>
</head><body><h1>%[1]s</h1><p>%[2]s.</p>%[3]s</body></html>
`

const ticketText = `<p>To open this page in a browser, ask for a ticket and add it to the address within %s. It works once; a cookie carries on from there.</p>
<pre>curl -X POST %s %s/tickets</pre>
<p>Then open this address with <code>?ticket=…</code> at its end.</p>`

// page is what a person sees instead of JSON.
func (g *Guard) page(r *http.Request, no *refusal) string {
	if no.status != http.StatusUnauthorized {
		return fmt.Sprintf(pageText, "Not allowed", html.EscapeString(no.detail), "")
	}
	how := ""
	if g.c.HasCredentials() {
		header := `-H "Authorization: Bearer $TOKEN"`
		if g.c.JWTPublicKey == nil && g.c.Token == "" && g.c.Identify == nil {
			header = `-H "X-API-Key: $KEY"`
		}
		how = fmt.Sprintf(ticketText, g.c.TicketTTL, header, html.EscapeString(Base(r, g.c.Trusted).String()))
	}
	return fmt.Sprintf(pageText, "Sign-in needed", html.EscapeString(no.detail), how)
}

// shorten quotes what a caller sent, in one line of bounded length.
func shorten(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(s)
}
