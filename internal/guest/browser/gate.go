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

// maxDiscovery bounds what the browser says of itself; the whole protocol's description has 1.6 MB.
const maxDiscovery = 64 << 20

// serveCDP is the browser's DevTools port for callers outside: /json… and /devtools…, with or without /cdp before them. It
// holds the browser for as long as a connection lives.
func (s *Service) serveCDP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut: // PUT opens tabs
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		refuse(w, http.StatusMethodNotAllowed, "use GET; PUT /json/new opens a tab")
		return
	}
	c, release, err := s.hold(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
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
		// There is one browser. An address from before its restart means the new one.
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
		refuse(w, http.StatusNotFound, "DevTools are at /cdp/json/version, /cdp/json/list and the WebSockets named there")
	}
}

// forward passes a request on to the browser: bytes as they come, in both directions, with nothing piling up in between.
func (s *Service) forward(w http.ResponseWriter, r *http.Request, c *chrome, path string) {
	proxy := httputil.ReverseProxy{
		Transport: s.gate, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: c.host(), Path: path, RawQuery: r.URL.RawQuery}
			p.Out.Host = c.host() // the browser refuses names that might have been pointed at it by a page
			// The origin was checked with the sign-in; the browser knows only its own. Cookies are not its business.
			p.Out.Header.Del("Origin")
			p.Out.Header.Del("Cookie")
			p.Out.Header.Del("Authorization")
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, http.StatusBadGateway, fmt.Sprintf("the browser did not answer: %v; try again", err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// discover answers with what the browser says of itself, its addresses turned into ones that this caller can use.
func (s *Service) discover(w http.ResponseWriter, r *http.Request, c *chrome, path, prefix string) {
	target := url.URL{Scheme: "http", Host: c.host(), Path: path, RawQuery: r.URL.RawQuery}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, target.String(), nil)
	if err != nil {
		refuse(w, http.StatusBadRequest, "the address cannot be read")
		return
	}
	resp, err := s.gate.RoundTrip(req)
	if err != nil {
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the browser did not answer: %v; try again", err))
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery))
	if err != nil {
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the browser's answer was cut off: %v; try again", err))
		return
	}
	if resp.StatusCode == http.StatusOK && !strings.HasPrefix(path, "/json/protocol") {
		if body, err = s.readdress(r, body, c, prefix); err != nil {
			refuse(w, http.StatusInternalServerError, "the browser's answer could not be understood")
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

// readdress turns the addresses in a discovery reply, one object or a list of them, into the caller's.
func (s *Service) readdress(r *http.Request, body []byte, c *chrome, prefix string) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var tree any
	if !json.Valid(body) {
		return body, nil // some answers are a sentence
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
		signed, err := s.signed(r.Context())
		if err != nil {
			return nil, err
		}
		entry["webSocketDebuggerUrl"] = call.URL("ws", prefix+u.Path, signed.Encode())
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

// refuse answers in the form that the server's other refusals have.
func refuse(w http.ResponseWriter, status int, why string) {
	b, err := json.Marshal(map[string]any{"detail": why, "success": false, "message": why, "data": nil})
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b)
}
