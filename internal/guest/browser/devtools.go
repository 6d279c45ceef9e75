package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// serveCDP serves DevTools to callers as the browser does on a port: /json… and /devtools…, with or without the prefix
// /cdp. It keeps the browser running while the connection is open.
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
	tab, isTab := strings.CutPrefix(path, "/devtools/page/")
	switch {
	case upgrade && (path == "" || path == "/" || strings.HasPrefix(path, "/devtools/browser")):
		// There is only one browser. A URL from before a restart selects the new one.
		c.serveSocket(w, r, "")
	case upgrade && isTab && tab != "":
		c.serveSocket(w, r, tab)
	case path == "" || path == "/":
		s.discover(w, r, c, "version", prefix)
	case path == "/json":
		s.discover(w, r, c, "list", prefix)
	case strings.HasPrefix(path, "/json/"):
		s.discover(w, r, c, strings.Trim(strings.TrimPrefix(path, "/json/"), "/"), prefix)
	case !upgrade && strings.HasPrefix(path, "/devtools/"):
		c.serveFrontend(w, r, strings.TrimPrefix(path, "/devtools/"))
	default:
		writeError(w, http.StatusNotFound, "no such path; DevTools are at /cdp/json/version and /cdp/json/list")
	}
}

// serveSocket connects a client to the browser or to one of its targets.
func (c *chrome) serveSocket(w http.ResponseWriter, r *http.Request, target string) {
	err := c.pipe.ServeSocket(w, r, target)
	if _, refused := errors.AsType[*cdp.Error](err); refused && target != "" {
		writeError(w, http.StatusNotFound, "no such target; /cdp/json/list lists them")
	} else if err != nil {
		writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser did not respond: %v; retry", err))
	}
}

// frontendTypes are the types of the files of the DevTools page, as the browser names them.
var frontendTypes = map[string]string{
	".html": "text/html", ".css": "text/css", ".js": "application/javascript", ".json": "application/json", ".svg": "image/svg+xml",
	".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".avif": "image/avif", ".webp": "image/webp",
}

// serveFrontend serves a file of the browser's own DevTools page.
func (c *chrome) serveFrontend(w http.ResponseWriter, r *http.Request, name string) {
	if path.Ext(name) == ".html" && !isInspection(r) {
		writeError(w, http.StatusForbidden, "the DevTools page may connect only to this server; open devtoolsFrontendUrl of /json/list")
		return
	}
	data, err := c.assets.read(r.Context(), name)
	switch {
	case errors.Is(err, errNoFile):
		writeError(w, http.StatusNotFound, err.Error())
		return
	case err != nil:
		writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser did not return the file: %v; retry", err))
		return
	}
	kind := frontendTypes[path.Ext(name)]
	if kind == "" {
		kind = "text/plain"
	}
	writeBody(w, r, http.StatusOK, kind, data)
}

// isInspection reports whether the parameters of the DevTools page connect it only to this server. A link on another site
// could set other parameters.
func isInspection(r *http.Request) bool {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return false
	}
	for name, values := range query {
		switch name {
		case "panel":
		case "ws", "wss":
			host, _, _ := strings.Cut(values[0], "/")
			if base := op.CallOf(r.Context()).Base; len(values) > 1 || host != r.Host && (base == nil || host != base.Host) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// discovery is a discovery response: a text, or a value to encode.
type discovery struct {
	status int
	text   string
	value  any
}

func refuse(status int, format string, args ...any) discovery {
	return discovery{status: status, text: fmt.Sprintf(format, args...)}
}

// discover replies to a discovery request with the texts and fields of the browser, and URLs that the caller can reach.
func (s *Service) discover(w http.ResponseWriter, r *http.Request, c *chrome, command, prefix string) {
	reply, err := s.runDiscovery(r, c, command, prefix)
	if err != nil {
		writeError(w, http.StatusBadGateway, fmt.Sprintf("the browser did not respond: %v; retry", err))
		return
	}
	body := []byte(reply.text)
	if reply.value != nil {
		if body, err = encode(reply.value); err != nil {
			writeError(w, http.StatusInternalServerError, "cannot encode the reply")
			return
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	writeBody(w, r, reply.status, "application/json; charset=UTF-8", body)
}

func (s *Service) runDiscovery(r *http.Request, c *chrome, command, prefix string) (discovery, error) {
	name, id, _ := strings.Cut(command, "/")
	switch {
	case command == "version":
		return s.describeBrowser(r.Context(), c, prefix)
	case command == "list" || command == "":
		return s.describeTargets(r.Context(), c, prefix)
	case command == "protocol":
		text, err := c.protocol()
		return discovery{status: http.StatusOK, text: string(text)}, err
	case command == "new":
		return s.openTarget(r, c, prefix)
	case name == "activate":
		return c.changeTarget(r.Context(), id, c.client.ActivateTarget, "Target activated")
	case name == "close":
		return c.changeTarget(r.Context(), id, c.client.CloseTarget, "Target is closing")
	}
	return refuse(http.StatusNotFound, "Unknown command: %s", command), nil
}

// describeBrowser describes the browser.
func (s *Service) describeBrowser(ctx context.Context, c *chrome, prefix string) (discovery, error) {
	var v struct {
		Product   string `json:"product"`
		Protocol  string `json:"protocolVersion"`
		Revision  string `json:"revision"`
		UserAgent string `json:"userAgent"`
		Script    string `json:"jsVersion"`
	}
	if err := c.client.Call(ctx, cdp.Browser, "Browser.getVersion", nil, &v); err != nil {
		return discovery{}, err
	}
	query, err := s.ticketQuery(ctx)
	return discovery{status: http.StatusOK, value: map[string]any{
		"Browser": v.Product, "Protocol-Version": v.Protocol, "User-Agent": v.UserAgent, "V8-Version": v.Script,
		"File-Path-Style": "posix", "WebKit-Version": "537.36 (" + v.Revision + ")",
		"webSocketDebuggerUrl": op.CallOf(ctx).URL("ws", prefix+c.path, query.Encode()),
	}}, err
}

// describeTargets lists pages, frames and workers.
func (s *Service) describeTargets(ctx context.Context, c *chrome, prefix string) (discovery, error) {
	targets, err := c.order.list(ctx)
	if err != nil {
		return discovery{}, err
	}
	list := make([]map[string]any, 0, len(targets))
	for _, t := range targets {
		entry, err := s.describeTarget(ctx, t, prefix)
		if err != nil {
			return discovery{}, err
		}
		list = append(list, entry)
	}
	return discovery{status: http.StatusOK, value: list}, nil
}

// escapeTitle escapes titles as the browser does: some clients insert them into a page.
var escapeTitle = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;")

func (s *Service) describeTarget(ctx context.Context, t target, prefix string) (map[string]any, error) {
	query, err := s.ticketQuery(ctx)
	if err != nil {
		return nil, err
	}
	entry := map[string]any{
		"description": "", "id": t.ID, "title": escapeTitle.Replace(t.Title), "type": t.Type, "url": t.URL,
		"webSocketDebuggerUrl": op.CallOf(ctx).URL("ws", prefix+"/devtools/page/"+t.ID, query.Encode()),
	}
	if t.Parent != "" {
		entry["parentId"] = t.Parent
	}
	if page := s.inspector(ctx, t.ID); page != nil {
		entry["devtoolsFrontendUrl"] = *page
	}
	return entry, nil
}

// openTarget opens the URL in the query in a new tab.
func (s *Service) openTarget(r *http.Request, c *chrome, prefix string) (discovery, error) {
	if r.Method != http.MethodPut {
		return refuse(http.StatusMethodNotAllowed,
			"Using unsafe HTTP verb %s to invoke /json/new. This action supports only PUT verb.", r.Method), nil
	}
	address, err := url.PathUnescape(r.URL.RawQuery) // a plus sign stays one
	if err != nil {
		address = r.URL.RawQuery
	}
	id, err := c.client.CreateTarget(r.Context(), cdp.NewTarget{URL: address})
	if err != nil {
		return discovery{}, err
	}
	var info struct {
		Target target `json:"targetInfo"`
	}
	if err := c.client.Call(r.Context(), cdp.Browser, "Target.getTargetInfo", map[string]any{"targetId": id}, &info); err != nil {
		return discovery{}, err
	}
	entry, err := s.describeTarget(r.Context(), info.Target, prefix)
	return discovery{status: http.StatusOK, value: entry}, err
}

// changeTarget activates or closes a target.
func (c *chrome) changeTarget(ctx context.Context, id string, change func(context.Context, string) error, done string) (discovery, error) {
	err := change(ctx, id)
	if _, refused := errors.AsType[*cdp.Error](err); refused {
		return refuse(http.StatusNotFound, "No such target id: %s", id), nil
	}
	return discovery{status: http.StatusOK, text: done}, err
}

func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "   ")
	err := enc.Encode(value)
	return out.Bytes(), err
}

func writeBody(w http.ResponseWriter, r *http.Request, status int, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(body)
	}
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
