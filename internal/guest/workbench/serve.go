package workbench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/filesystem/subpath"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// maxProbe is how much of a response is read to find the mark of a working page.
const maxProbe = 256 << 10

// exitTime is how long a visit without a response waits for the exit of the program to be detected.
const exitTime = 5 * time.Second

// ServeHTTP shows the waiting page while the program starts, and then forwards requests to the program.
func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.s.begin() {
		http.Error(w, errStopping.Error(), http.StatusServiceUnavailable)
		return
	}
	defer p.s.work.Done()
	path := strings.TrimPrefix(r.URL.EscapedPath(), p.path)
	if path == "" {
		redirect(w, r, strings.TrimPrefix(p.path, "/")+"/")
		return
	}
	if origin.IsLinked(r) && (r.URL.RawQuery != "" || path != "/") && !origin.IsFramed(r) {
		// Another site must not select what the program opens.
		origin.Redirect(w, baseOf(r).Path+p.path+"/", "")
		return
	}
	visit := p.entry(path) && origin.IsVisit(r)
	if visit && lacksOrigin(r) {
		p.servePage(w, r, path, "", "none")
		return
	}
	if visit && path == "/" && r.URL.RawQuery == "" && origin.IsFramed(r) && hasPass(baseOf(r)) {
		p.servePage(w, r, path, "", "framed") // the page checks whether the program can run in the frame
		return
	}
	if visit && p.servedPage(w, r, path) {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.s.life, cancel)()
	in, release, err := p.component.Acquire(ctx)
	if err != nil {
		w.Header().Set("Retry-After", "2")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer release()
	// A response may start before the request ends.
	http.NewResponseController(w).EnableFullDuplex()
	h := w.Header()
	h.Del("X-Content-Type-Options")
	h["Content-Type"] = nil // so that the server does not guess it
	f := p.forwarder(in, path, baseOf(r))
	if visit {
		f.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
			if !in.endedWithin(r.Context(), exitTime) || !p.servedPage(w, r, path) {
				p.refuse(w, r, err)
			}
		}
	}
	f.ServeHTTP(&writer{w, ctx}, r.WithContext(ctx))
}

// servedPage shows the waiting page if the program is not ready or there is a note, and reports whether it did. A note is shown
// once.
func (p *program) servedPage(w http.ResponseWriter, r *http.Request, path string) bool {
	note, show := p.wantsPage()
	if show {
		p.startSoon()
		p.servePage(w, r, path, note, "own")
	}
	return show
}

// endedWithin waits until the end of an instance that does not respond is detected.
func (in *instance) endedWithin(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-in.Done():
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// redirect redirects to a relative address, which works under any prefix, and keeps the query.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// baseOf returns the URL of the sandbox as the client sees it.
func baseOf(r *http.Request) *url.URL {
	if base := op.CallOf(r.Context()).Base; base != nil {
		return base
	}
	return &url.URL{Scheme: "http", Host: r.Host}
}

// wantsPage reports whether to show the waiting page, with a note that is shown only once.
func (p *program) wantsPage() (note string, show bool) {
	ready := p.component.State().Phase == proc.Ready
	p.mu.Lock()
	defer p.mu.Unlock()
	note, p.note = p.note, ""
	if note == "" && !ready && p.last != nil && p.last.Err() != nil {
		note = fmt.Sprintf("%s ended unexpectedly (%v) and is restarting. %s", p.title, p.last.Err(), p.keeps)
		p.last = nil // report it only once
	}
	return note, note != "" || !ready
}

// lacksOrigin reports whether a page has no separate origin, because its path contains a pass. Without an origin it has
// neither storage nor cookies, and these programs do not work.
func lacksOrigin(r *http.Request) bool {
	return !origin.HasOwn(r.Context()) && hasPass(baseOf(r))
}

// hasPass reports whether a URL contains a pass, as in a frame of a page of another origin.
func hasPass(base *url.URL) bool {
	return slices.ContainsFunc(strings.Split(base.Path, "/"), auth.IsPass)
}

// servePage shows the page that waits for the program. has is the origin of the page: own, none, or framed, which is its own
// origin in a frame of another one.
func (p *program) servePage(w http.ResponseWriter, r *http.Request, path, note, has string) {
	page, err := fs.ReadFile(p.s.cfg.Pages, "workbench/index.html")
	if err != nil {
		http.Error(w, "cannot read the page", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy",
		"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'")
	if hasPass(baseOf(r)) { // only the page that received the pass knows it
		origin.DropAncestors(h)
	}
	w.WriteHeader(http.StatusOK)
	up := strings.Repeat("../", strings.Count(p.path+path, "/")-1)
	for _, pair := range [][2]string{{"{{up}}", up}, {"{{name}}", p.name}, {"{{title}}", p.title}, {"{{origin}}", has}, {"{{note}}", note}} {
		page = bytes.ReplaceAll(page, []byte(pair[0]), []byte(html.EscapeString(pair[1])))
	}
	w.Write(page)
}

// startSoon starts the program in the background unless it runs.
func (p *program) startSoon() {
	switch p.component.State().Phase {
	case proc.Ready, proc.Starting, proc.Absent:
		return
	}
	if !p.s.begin() {
		return
	}
	go func() {
		defer p.s.work.Done()
		if _, release, err := p.component.Acquire(p.s.life); err == nil {
			release()
		}
	}()
}

// forwarder forwards a request to an instance. It connects only to the socket of the instance, independent of path and headers
// of the request.
func (p *program) forwarder(in *instance, path string, base *url.URL) *httputil.ReverseProxy {
	site := subpath.Site{Host: base.Host, Path: base.Path + p.path}
	return &httputil.ReverseProxy{
		Transport: in.transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = &url.URL{Scheme: "http", Host: p.name, RawQuery: r.In.URL.RawQuery}
			subpath.SetPath(r.Out.URL, path)
			r.Out.Host = r.In.Host // programs compare it with the origin
			dropSessions(r.Out)
			r.Out.Header.Del("X-Forwarded-Prefix")
			r.Out.Header.Set("X-Forwarded-Proto", base.Scheme)
			r.Out.Header.Set("X-Forwarded-Host", base.Host)
			if p.request != nil {
				p.request(r)
			}
		},
		ModifyResponse: func(res *http.Response) error {
			h := res.Header
			h.Del("X-Request-Id") // the server has set its own
			for name := range h {
				if strings.HasPrefix(name, "Access-Control-") { // authentication decides which origins may read this
					delete(h, name)
				}
			}
			subpath.DropCookies(h, auth.CookiePrefix)
			site.RewriteLocations(h)
			site.Confine(h)
			switch {
			case hasPass(base):
				origin.DropAncestors(h)
			case strings.HasPrefix(h.Get("Content-Type"), "text/html"):
				origin.Confine(h, "frame-ancestors 'self'")
			}
			return nil
		},
		ErrorHandler: p.refuse,
	}
}

// refuse responds that the program does not respond.
func (p *program) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.s.cfg.Log.Debug("program does not respond", "program", p.name, "error", err)
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, p.title+" ended or does not respond; reload the page to restart it", http.StatusBadGateway)
}

// dropSessions removes session cookies of the sandbox from a request.
func dropSessions(r *http.Request) {
	cookies := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range cookies {
		if !strings.HasPrefix(c.Name, auth.CookiePrefix) {
			r.AddCookie(c)
		}
	}
}

// responds reports whether a page of the program works.
func (in *instance) responds(ctx context.Context, path, mark string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://program"+path, nil)
	if err != nil {
		return false
	}
	res, err := in.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxProbe))
	return err == nil && res.StatusCode == http.StatusOK && bytes.Contains(b, []byte(mark))
}

// writer closes a WebSocket when the context of its request ends, even if the client neither reads nor writes.
type writer struct {
	http.ResponseWriter
	ctx context.Context
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(w.ctx, func() { conn.Close() })
	return conn, rw, nil
}
