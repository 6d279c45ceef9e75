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

// maxProbe is how much of a reply is read to find the mark of a working page.
const maxProbe = 256 << 10

// deathTime is how long a visit that gets no reply waits for the news that the program has ended.
const deathTime = 5 * time.Second

// ServeHTTP shows that the program starts, or forwards to it.
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
		// Another site must not choose what the program opens.
		origin.Redirect(w, baseOf(r).Path+p.path+"/", "")
		return
	}
	visit := p.entry(path) && origin.IsVisit(r)
	if visit && lacksOrigin(r) {
		p.servePage(w, r, path, "", "none")
		return
	}
	if visit && path == "/" && r.URL.RawQuery == "" && origin.IsFramed(r) && hasPass(baseOf(r)) {
		p.servePage(w, r, path, "", "framed") // it finds out whether the program can run there
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
	// Otherwise a response that starts before the request ends would wait for it.
	http.NewResponseController(w).EnableFullDuplex()
	h := w.Header()
	h.Del("X-Content-Type-Options")
	h["Content-Type"] = nil // so that the server does not guess it
	f := p.forwarder(in, path, baseOf(r))
	if visit {
		f.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
			if !in.endedWithin(r.Context(), deathTime) || !p.servedPage(w, r, path) {
				p.refuse(w, r, err)
			}
		}
	}
	f.ServeHTTP(&writer{w, ctx}, r.WithContext(ctx))
}

// servedPage shows our page if the program is not ready, or if people have to be told something, and reports whether
// it did. What has to be told is told once.
func (p *program) servedPage(w http.ResponseWriter, r *http.Request, path string) bool {
	note, show := p.wantsPage()
	if show {
		p.startSoon()
		p.servePage(w, r, path, note, "own")
	}
	return show
}

// endedWithin waits for the end of an instance that does not reply, which is known a moment later than it happens.
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

// redirect redirects to a relative address, which is right below any prefix, and keeps the query.
func redirect(w http.ResponseWriter, r *http.Request, to string) {
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// baseOf is the URL of the sandbox as the caller sees it.
func baseOf(r *http.Request) *url.URL {
	if base := op.CallOf(r.Context()).Base; base != nil {
		return base
	}
	return &url.URL{Scheme: "http", Host: r.Host}
}

// wantsPage reports whether our page is shown in place of the program's, with a note that is shown only once.
func (p *program) wantsPage() (note string, show bool) {
	ready := p.component.State().Phase == proc.Ready
	p.mu.Lock()
	defer p.mu.Unlock()
	note, p.note = p.note, ""
	if note == "" && !ready && p.last != nil && p.last.Err() != nil {
		note = fmt.Sprintf("%s ended unexpectedly (%v) and is started again. %s", p.title, p.last.Err(), p.keeps)
		p.last = nil // has been told
	}
	return note, note != "" || !ready
}

// lacksOrigin reports whether a page is shown at a bare address, where it has no origin: neither storage nor
// cookies, without which these programs do not work. Its path has a pass then.
func lacksOrigin(r *http.Request) bool {
	return !origin.HasOwn(r.Context()) && hasPass(baseOf(r))
}

// hasPass reports whether a page is reached by a pass, as in a frame of a page of another origin.
func hasPass(base *url.URL) bool {
	return slices.ContainsFunc(strings.Split(base.Path, "/"), auth.IsPass)
}

// servePage shows the page that waits for the program. has says which
// origin the page has: its own, none, or its own in a frame of another.
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
	if hasPass(baseOf(r)) { // only the page that it was given to knows it
		origin.DropAncestors(h)
	}
	w.WriteHeader(http.StatusOK)
	up := strings.Repeat("../", strings.Count(p.path+path, "/")-1)
	for _, pair := range [][2]string{{"{{up}}", up}, {"{{name}}", p.name}, {"{{title}}", p.title}, {"{{origin}}", has}, {"{{note}}", note}} {
		page = bytes.ReplaceAll(page, []byte(pair[0]), []byte(html.EscapeString(pair[1])))
	}
	w.Write(page)
}

// startSoon starts the program in the background if it does not run.
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

// forwarder forwards one request to an instance. Only the instance's own socket can be reached, whatever the path and
// the headers of the request say.
func (p *program) forwarder(in *instance, path string, base *url.URL) *httputil.ReverseProxy {
	site := subpath.Site{Host: base.Host, Path: base.Path + p.path}
	return &httputil.ReverseProxy{
		Transport: in.transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = &url.URL{Scheme: "http", Host: p.name, RawQuery: r.In.URL.RawQuery}
			subpath.SetPath(r.Out.URL, path)
			r.Out.Host = r.In.Host // with which programs compare origins
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
				if strings.HasPrefix(name, "Access-Control-") { // the sign-in says who may read this
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

// refuse says that the program does not reply.
func (p *program) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.s.cfg.Log.Debug("program does not reply", "program", p.name, "error", err)
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, p.title+" has just ended or does not reply; load the page again, which starts it", http.StatusBadGateway)
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

// answers reports whether a page of the program can be loaded.
func (in *instance) answers(ctx context.Context, path, mark string) bool {
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

// writer closes a WebSocket when its request must end, even if the client neither reads nor writes.
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
