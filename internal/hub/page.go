package hub

import (
	"fmt"
	"html"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// navigation reports whether a person's browser asks for a page.
func navigation(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.Method == http.MethodGet && (mode == "" || mode == "navigate") &&
		r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// refuse answers a request into a sandbox with an error.
func (h *Hub) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		w.WriteHeader(499) // nobody is there to read more
		return
	}
	e, ok := op.AsError(err)
	if op.CallOf(r.Context()).Code = op.Internal; ok {
		op.CallOf(r.Context()).Code = e.Code
	}
	if !ok {
		id := op.CallOf(r.Context()).ID
		h.cfg.Log.Error("request into a sandbox failed", "id", id, "error", err)
		h.answer(w, r, http.StatusInternalServerError, 0, "something went wrong on our side; the log has the details under id "+id)
		return
	}
	h.answer(w, r, statusOf(e.Code), e.RetryAfter, e.Msg)
}

// statusOf is the status of an answer of the hub's own.
func statusOf(code op.Code) int {
	status := map[op.Code]int{
		op.Invalid: http.StatusBadRequest, op.NotFound: http.StatusNotFound, op.Conflict: http.StatusConflict,
		op.Exhausted: http.StatusTooManyRequests, op.Unavailable: http.StatusServiceUnavailable, op.Denied: http.StatusForbidden,
		op.Canceled: 499, op.TooLarge: http.StatusRequestEntityTooLarge, op.Unauthenticated: http.StatusUnauthorized,
	}[code]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return status
}

const pageText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">%s<title>%s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}</style>
</head><body><h1>%s</h1><p>%s</p></body></html>
`

// answer writes an answer of the hub itself where one of a sandbox was expected:
// a page for people, otherwise as all of the hub's replies look. The page asks
// again by itself as long as there is hope.
func (h *Hub) answer(w http.ResponseWriter, r *http.Request, status int, retry time.Duration, message string) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	seconds := strconv.Itoa(int(math.Ceil(retry.Seconds())))
	if retry > 0 {
		head.Set("Retry-After", seconds)
	}
	if !navigation(r) {
		body, err := op.JSON(map[string]string{"code": strconv.Itoa(status), "error": message})
		if err != nil {
			body = nil
		}
		head.Set("Content-Type", "application/json")
		head.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		w.Write(body)
		return
	}
	head.Set("Content-Type", "text/html; charset=utf-8")
	head.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'")
	title, again := http.StatusText(status), ""
	if retry > 0 {
		title, again = "One moment", `<meta http-equiv="refresh" content="`+seconds+`">`
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, pageText, again, title, title, html.EscapeString(message)+".")
}
