// Package origin keeps untrusted content off the origin of a server.
//
// Browsers give every page the rights of its origin: scheme, host and port. A page that was
// produced in a sandbox must therefore never be shown on the origin of the API. The package
// owns the detection of such content, the headers that confine it, and the redirect to a
// separate origin. It does not authenticate callers.
package origin

import (
	"context"
	"net/http"
	"strings"
)

// Policies of untrusted content.
const (
	// Opaque lets a page run, but without the origin of the host that serves it.
	Opaque = "sandbox allow-scripts allow-forms allow-popups allow-popups-to-escape-sandbox allow-modals " +
		"allow-downloads allow-pointer-lock allow-presentation"
	// Inert shows a document without origin and scripts.
	Inert = "sandbox"
	// Data is for responses that are never documents.
	Data = "default-src 'none'; frame-ancestors 'none'; sandbox"
)

// policyHeader confines a document.
const policyHeader = "Content-Security-Policy"

// IsVisit reports whether a browser requests a document, in a window or a frame, which would
// get the rights of this origin. Over plain HTTP, where browsers send no Sec-Fetch-Mode, it
// checks headers that every browser sends. Compare IsNavigation.
func IsVisit(r *http.Request) bool {
	if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html") && strings.Contains(r.UserAgent(), "Mozilla/")
}

// IsNavigation reports whether the reply should be a page for a person. Any program can send
// these headers: use IsVisit to decide what may run on an origin.
func IsNavigation(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.Method == http.MethodGet && (mode == "" || mode == "navigate") &&
		r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// IsFramed reports whether a document is for a frame. Browsers do not send it cookies of
// another host.
func IsFramed(r *http.Request) bool {
	dest := r.Header.Get("Sec-Fetch-Dest")
	return dest != "" && dest != "document"
}

// IsLinked reports whether a page of another origin made the browser open the URL of a
// request. Browsers report it, and no page can forge it.
func IsLinked(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		return false
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "same-origin" && site != "none" {
			return true
		}
	}
	return false
}

// LoadsCode reports whether a page executes the response: as a script, style, worker or
// plug-in.
func LoadsCode(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Dest") {
	case "script", "style", "worker", "sharedworker", "serviceworker", "audioworklet", "paintworklet", "object", "embed", "xslt", "manifest":
		return true
	}
	return r.Header.Get("Service-Worker") != ""
}

// Redirect redirects a browser to another URL of the same content. The response is not cached.
func Redirect(w http.ResponseWriter, to, query string) {
	if query != "" {
		to += "?" + query
	}
	h := w.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// Confine adds a policy to a response. Browsers enforce all policies of a response, so no
// policy can override another.
func Confine(h http.Header, policy string) { h.Add(policyHeader, policy) }

// DropHostWide removes headers that apply to a whole host or domain, which a site shares with
// other sites.
func DropHostWide(h http.Header) {
	h.Del("Clear-Site-Data")
	h.Del("Strict-Transport-Security")
	h.Del("Public-Key-Pins")
}

// DropAncestors allows pages without an origin to frame a response. A policy cannot name them.
func DropAncestors(h http.Header) {
	h.Del("X-Frame-Options")
	for i, policy := range h[policyHeader] {
		var kept []string
		for directive := range strings.SplitSeq(policy, ";") {
			if name, _, _ := strings.Cut(strings.TrimSpace(directive), " "); !strings.EqualFold(name, "frame-ancestors") {
				kept = append(kept, directive)
			}
		}
		h[policyHeader][i] = strings.Join(kept, ";")
	}
}

// IsActive reports whether a browser treats a media type as a document that can contain
// scripts.
func IsActive(media string) bool {
	media, _, _ = strings.Cut(media, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "text/html" || media == "text/xml" || media == "application/xml" || media == "text/xsl" ||
		strings.HasSuffix(media, "+xml") || media == "multipart/related" || media == "message/rfc822" || media == "multipart/x-mixed-replace"
}

type ownKey struct{}

// WithOwn marks the context of a request for content with a separate host name.
func WithOwn(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

// HasOwn reports whether WithOwn has marked the context.
func HasOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }
