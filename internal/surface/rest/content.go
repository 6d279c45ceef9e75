package rest

import (
	"net/http"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// Every response has a class, which only this file enforces: which browser requests may reach
// the route, and which headers the response has, regardless of its handler.

// admitContent rejects requests that a page of another site makes a browser send to content
// that such a page must not open, and requests that load data as code.
func (s *Server) admitContent(w http.ResponseWriter, r *http.Request, o *op.Op) bool {
	switch {
	case o.Content == op.ContentPage:
		return true
	case o.Content == op.ContentSite:
		return s.Isolate == nil || !s.Isolate(w, r, o)
	case s.Linked(r):
		s.forbid(w, r, "a page of another site opened this URL, which only pages of this server may open; enter "+
			"the URL yourself, or start at "+home(r))
		return false
	case origin.LoadsCode(r):
		s.forbid(w, r, "this URL returns data, which a page must not load as code")
		return false
	}
	return true
}

func (s *Server) forbid(w http.ResponseWriter, r *http.Request, why string) {
	op.CallOf(r.Context()).Code = op.Denied
	s.writePlain(w, r, http.StatusForbidden, why)
}

// home returns the URL of the server's home page.
func home(r *http.Request) string { return op.CallOf(r.Context()).URL("", "/", "") }

// confine sets the headers of a response's class. It runs just before the headers are sent.
func confine(o *op.Op, h http.Header) {
	switch o.Content {
	case op.ContentAPI:
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", origin.Data)
		if origin.IsActive(h.Get("Content-Type")) {
			h.Set("Content-Type", "text/plain; charset=utf-8")
		}
	case op.ContentForeign:
		h.Set("X-Content-Type-Options", "nosniff")
		origin.Confine(h, origin.Inert)
		if !o.Framed {
			h.Set("Content-Disposition", attachment(h.Get("Content-Disposition")))
		}
	case op.ContentPage:
		h.Set("X-Content-Type-Options", "nosniff")
		if h.Get("Content-Security-Policy") == "" {
			h.Set("Content-Security-Policy", strictPolicy)
		}
	}
}

// attachment returns the disposition of a download with the same file name.
func attachment(disposition string) string {
	_, parameters, found := strings.Cut(disposition, ";")
	if !found {
		return "attachment"
	}
	return "attachment;" + parameters
}
