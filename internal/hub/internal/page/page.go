// Package page writes the hub's own replies where a reply of a sandbox was
// expected: a page for people, JSON for programs.
package page

import (
	"fmt"
	"html"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// IsNavigation reports whether a browser asks for a page that a person will see.
func IsNavigation(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.Method == http.MethodGet && (mode == "" || mode == "navigate") &&
		r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// WriteError replies with an error.
func WriteError(w http.ResponseWriter, r *http.Request, err error, log *slog.Logger) {
	if r.Context().Err() != nil {
		w.WriteHeader(op.StatusCanceled) // nobody is there to read more
		return
	}
	call := op.CallOf(r.Context())
	if e, ok := op.AsError(err); ok {
		call.Code = e.Code
		Write(w, r, e.Code.HTTPStatus(), e.RetryAfter, e.Msg)
		return
	}
	call.Code = op.Internal
	log.Error("request into a sandbox failed", "id", call.ID, "error", err)
	Write(w, r, http.StatusInternalServerError, 0, op.InternalMessage(call.ID))
}

const layout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">%s<title>%s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}</style>
</head><body><h1>%s</h1><p>%s</p></body></html>
`

// Write replies with a message. With retry, a page reloads itself after that time.
func Write(w http.ResponseWriter, r *http.Request, status int, retry time.Duration, message string) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	seconds := strconv.Itoa(int(math.Ceil(retry.Seconds())))
	if retry > 0 {
		head.Set("Retry-After", seconds)
	}
	if !IsNavigation(r) {
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
	title, refresh := http.StatusText(status), ""
	if retry > 0 {
		title, refresh = "One moment", `<meta http-equiv="refresh" content="`+seconds+`">`
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, layout, refresh, title, title, html.EscapeString(message)+".")
}
