// Package page writes the hub's own replies to requests for sandboxes: a page for people, JSON for
// programs.
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

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// WriteError replies with an error.
func WriteError(w http.ResponseWriter, r *http.Request, err error, log *slog.Logger) {
	if r.Context().Err() != nil {
		w.WriteHeader(op.StatusCanceled) // the client has closed the connection
		return
	}
	call := op.CallOf(r.Context())
	if e, ok := op.AsError(err); ok {
		call.Code = e.Code
		Write(w, r, e.Code.HTTPStatus(), e.RetryAfter, e.Msg)
		return
	}
	call.Code = op.Internal
	log.Error("request to sandbox failed", "id", call.ID, "error", err)
	Write(w, r, http.StatusInternalServerError, 0, op.InternalMessage(call.ID))
}

// layout repeats the colors of the design system, because the page of a sandbox cannot load files of the
// hub.
const layout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">%s<title>%s</title>
<style>:root{color-scheme:light dark}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto 2rem;padding:0 1rem;
color:light-dark(#17202b,#e3e9f0);background:light-dark(#f4f6f8,#0e1116)}
main{background:light-dark(#fff,#161b22);border:1px solid light-dark(#d5dbe3,#2c3541);border-radius:10px;padding:1.5rem}
h1{font-size:1.3rem;margin:0 0 .5rem}p{margin:0;overflow-wrap:anywhere}
b{display:block;margin-bottom:.8rem;color:light-dark(#0a62bd,#6cb2ff)}
nav{display:flex;gap:.5rem;flex-wrap:wrap;margin-top:1.2rem}a{color:inherit;text-decoration:none;padding:.4rem .8rem;
border:1px solid light-dark(#d5dbe3,#2c3541);border-radius:7px}a:focus-visible{outline:2px solid light-dark(#0a62bd,#6cb2ff)}</style>
</head><body><main><b>Cove</b><h1>%s</h1><p>%s</p>
<nav aria-label="What next"><a href="">Try again</a>%s</nav></main></body></html>
`

// Write replies with a message. With retry, a page reloads itself after that time.
func Write(w http.ResponseWriter, r *http.Request, status int, retry time.Duration, message string) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	seconds := strconv.Itoa(int(math.Ceil(retry.Seconds())))
	if retry > 0 {
		head.Set("Retry-After", seconds)
	}
	if !origin.IsNavigation(r) {
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
	fmt.Fprintf(w, layout, refresh, title+" – Cove", title, html.EscapeString(message)+".", home(r))
}

// home returns a link to the dashboard, if the request addresses the sandbox by a path of the hub.
func home(r *http.Request) string {
	if !strings.Contains(r.RequestURI, "/sandbox/") {
		return ""
	}
	return `<a target="_top" href="` + html.EscapeString(op.CallOf(r.Context()).URL("", "/", "")) + `">All sandboxes</a>`
}
