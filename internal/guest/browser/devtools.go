package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// maxDiscovery bounds a discovery reply; the description of the whole protocol has 1.6 MB.
const maxDiscovery = 64 << 20

// serveCDP serves the browser's DevTools port to callers outside: /json… and /devtools…, with or without the prefix /cdp. It
// holds the browser as long as the connection lives.
func (s *Service) serveCDP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut: // PUT opens tabs
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		writeError(w, http.StatusMethodNotAllowed, "use GET; PUT /json/new opens a tab")
		return
	}
	c, release, err := s.hold(r.Context())
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer release()
	path, prefix := r.URL.Path, ""
	if rest, ok := strings.CutPrefix(path, "/cdp"); ok {
		path, prefix = rest, "/cdp"
	}
	upgrade := strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	switch {
	case upgrade && (path == "" || path == "/" || strings.HasPrefix(path, "/devtools/browser")):
		// There is only one browser. A URL from before a restart means the new one.
		path = c.path
	case path == "" || path == "/":
		path = "/json/version"
	}
	switch {
	case path == "/json" || strings.HasPrefix(path, "/json/"):
		s.discover(w, r, c, strings.TrimSuffix(path, "/"), prefix)
	case strings.HasPrefix(path, "/devtools/"):
		s.forward(w, r, c, path)
	default:
		writeError(w, http.StatusNotFound, "no such path; DevTools are at /cdp/json/version and /cdp/json/list")
	}
}

// forward forwards a request to the browser: bytes as they come, in both directions, unbuffered.
func (s *Service) forward(w http.ResponseWriter, r *http.Request, c *chrome, path string) {
	proxy := httputil.ReverseProxy{
		Transport: s.transport, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: c.host(), Path: path, RawQuery: r.URL.RawQuery}
			p.Out.Host = c.host() // the browser refuses other names as a protection against DNS rebinding
			// Authentication has checked the origin; the browser accepts only its own. Credentials are not its business.
			p.Out.Header.Del("Origin")
			p.Out.Header.Del("Cookie")
			p.Out.Header.Del("Authorization")
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser did not respond: %v; try again", err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// discover forwards a discovery reply of the browser with URLs that the caller can reach.
func (s *Service) discover(w http.ResponseWriter, r *http.Request, c *chrome, path, prefix string) {
	target := url.URL{Scheme: "http", Host: c.host(), Path: path, RawQuery: r.URL.RawQuery}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, target.String(), nil)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid URL")
		return
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser did not respond: %v; try again", err))
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery))
	if err != nil {
		writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser's reply was truncated: %v; try again", err))
		return
	}
	if resp.StatusCode == http.StatusOK && !strings.HasPrefix(path, "/json/protocol") {
		if body, err = s.rewriteURLs(r, body, c, prefix); err != nil {
			writeError(w, http.StatusInternalServerError, "cannot parse the browser's reply")
			return
		}
	}
	h := w.Header()
	h.Set("Content-Type", resp.Header.Get("Content-Type"))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(resp.StatusCode)
	if r.Method != http.MethodHead {
		w.Write(body)
	}
}

// rewriteURLs replaces the URLs in a discovery reply, an object or a list, with ones that the caller can reach.
func (s *Service) rewriteURLs(r *http.Request, body []byte, c *chrome, prefix string) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var tree any
	if !json.Valid(body) {
		return body, nil // some replies are plain text
	}
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	list, ok := tree.([]any)
	if !ok {
		list = []any{tree}
	}
	call := op.CallOf(r.Context())
	for _, item := range list {
		entry, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text, _ := entry["webSocketDebuggerUrl"].(string)
		u, err := url.Parse(text)
		if text == "" || err != nil {
			delete(entry, "devtoolsFrontendUrl")
			continue
		}
		query, err := s.ticketQuery(r.Context())
		if err != nil {
			return nil, err
		}
		entry["webSocketDebuggerUrl"] = call.URL("ws", prefix+u.Path, query.Encode())
		if tab, ok := strings.CutPrefix(u.Path, "/devtools/page/"); ok {
			if page := s.inspector(r.Context(), tab); page != nil {
				entry["devtoolsFrontendUrl"] = *page
			}
		} else {
			delete(entry, "devtoolsFrontendUrl")
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "   ")
	err := enc.Encode(tree)
	return out.Bytes(), err
}

// writeError writes an error in the form of the server's other errors.
func writeError(w http.ResponseWriter, status int, why string) {
	b, err := json.Marshal(map[string]any{"detail": why, "success": false, "message": why, "data": nil})
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b)
}
