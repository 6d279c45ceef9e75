// Package page writes the hub's own replies to requests for sandboxes: a page for people, JSON for
// programs.
package page

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/card"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/sandbox"
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
	c := card.Card{Title: http.StatusText(status), Text: message + ".", Links: append([]card.Link{{Text: "Try again"}}, home(r)...)}
	if retry > 0 {
		c.Title, c.Wait = "One moment", int(math.Ceil(retry.Seconds()))
	}
	c.Write(w, status)
}

// WriteStart replies to a visit of a sandbox that does not run. start is the URL that starts it.
func WriteStart(w http.ResponseWriter, r *http.Request, sb sandbox.Sandbox, start string) {
	text := "Its programs do not run, and its files are kept."
	if sb.Message != "" {
		text = strings.TrimSuffix(sb.Message, ".") + "."
	}
	card.Card{Title: fmt.Sprintf("%s is %s", sb.Spec.Name, stateOf(sb)), Text: text,
		Links: append([]card.Link{{URL: start, Text: "Start", Main: true}}, home(r)...)}.Write(w, http.StatusConflict)
}

func stateOf(sb sandbox.Sandbox) string {
	if sb.State == sandbox.Failed {
		return "not running: it has failed"
	}
	return string(sb.State)
}

// home returns a link to the dashboard, if the request addresses the sandbox by a path of the hub.
func home(r *http.Request) []card.Link {
	if !strings.Contains(r.RequestURI, "/sandbox/") {
		return nil
	}
	return []card.Link{{URL: op.CallOf(r.Context()).URL("", "/", ""), Text: "All sandboxes", Top: true}}
}
