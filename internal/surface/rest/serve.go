package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// route is the handler of one operation.
func (s *Server) route(o op.Op) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rec, ok := w.(*recorder); ok {
			rec.op = o.Name
		}
		if o.Handler != nil {
			o.Handler.ServeHTTP(w, r)
			return
		}
		if max := s.limit(o); max > 0 {
			r.Body = http.MaxBytesReader(w, r.Body, max)
		}
		input, done, err := s.input(o, r)
		if done != nil {
			defer done()
		}
		if err != nil {
			s.failed(w, r, o, err)
			return
		}
		in, err := o.Bind(input)
		if err != nil {
			s.failed(w, r, o, err)
			return
		}
		switch {
		case o.Talk != nil:
			s.talk(w, r, o, in)
		case o.Pump != nil && (o.Call == nil || wantsStream(r)):
			s.pump(w, r, o, in)
		default:
			s.call(w, r, o, in)
		}
	})
}

func (s *Server) limit(o op.Op) int64 {
	if o.MaxBody != 0 {
		return o.MaxBody
	}
	return s.MaxBody
}

func wantsStream(r *http.Request) bool {
	switch r.URL.Query().Get("stream") {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Accept"))
	return media == "text/event-stream"
}

// input collects what the operation's fields may come from.
func (s *Server) input(o op.Op, r *http.Request) (op.Input, func(), error) {
	in := op.Input{}
	var query url.Values
	var form *form
	in.Value = func(source op.Source, name string) []string {
		switch source {
		case op.Path:
			return []string{r.PathValue(name)}
		case op.Query:
			if query == nil {
				query = r.URL.Query()
			}
			return query[name]
		case op.Form:
			if form != nil {
				return form.values[name]
			}
		}
		return nil
	}
	if o.In.Has(op.Form) {
		f, err := readForm(o.In, r)
		if err != nil {
			return in, nil, err
		}
		form = f
		in.File = func(name string) *op.File { return form.files[name] }
		return in, form.close, nil
	}
	if o.In.Has(op.Body) || o.In.Has(op.Whole) {
		b, err := readBody(r)
		if err != nil {
			return in, nil, err
		}
		in.JSON = b
	}
	return in, nil, nil
}

func readBody(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, bodyError(err)
	}
	return b, nil
}

func bodyError(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return op.Errorf(op.TooLarge, "the request body is larger than the limit of %d bytes; send less, or upload a file instead", e.Limit)
	}
	return op.Errorf(op.Invalid, "the request body could not be read: %w", err)
}

func (s *Server) call(w http.ResponseWriter, r *http.Request, o op.Op, in any) {
	out, err := o.Call(r.Context(), in)
	if err != nil {
		s.failed(w, r, o, err)
		return
	}
	if blob, ok := out.(*op.Blob); ok {
		s.blob(w, r, o, blob)
		return
	}
	if o.Style != op.Enveloped {
		writeJSON(w, r, http.StatusOK, out)
		return
	}
	e := op.Sealed(r.Context())
	writeJSON(w, r, http.StatusOK, enveloped{e.Success, e.Message, out, e.Hint})
}

// enveloped is the reply of most operations; its fields stand in the order in
// which the reference sends them.
type enveloped struct {
	Success bool    `json:"success"`
	Message *string `json:"message"`
	Data    any     `json:"data"`
	Hint    *string `json:"hint"`
}

// status is the one place where an error's code becomes an HTTP status.
func status(code op.Code) int {
	switch code {
	case op.Invalid:
		return http.StatusUnprocessableEntity
	case op.Unauthenticated:
		return http.StatusUnauthorized
	case op.Denied:
		return http.StatusForbidden
	case op.NotFound:
		return http.StatusNotFound
	case op.Conflict:
		return http.StatusConflict
	case op.Exhausted:
		return http.StatusTooManyRequests
	case op.TooLarge:
		return http.StatusRequestEntityTooLarge
	case op.Unavailable:
		return http.StatusServiceUnavailable
	case op.Canceled:
		return 499
	}
	return http.StatusInternalServerError
}

// failed answers an error. Enveloped operations answer with status 200, since
// the public SDKs repeat a request after 408, 429 and 5xx, and a command would
// run twice. What is ours to mend is a 500 with an id that is also in the log.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, o op.Op, err error) {
	call := op.CallOf(r.Context())
	if faults, ok := errors.AsType[op.Faults](err); ok {
		writeJSON(w, r, http.StatusUnprocessableEntity, map[string]any{"detail": faults})
		return
	}
	e, ok := op.AsError(err)
	if !ok && errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		e, ok = &op.Error{Code: op.Canceled, Msg: "the caller went away"}, true
	}
	if !ok || e.Code == op.Internal {
		s.Log.Error("operation failed", "id", call.ID, "op", o.Name, "error", err)
		fail(w, call, http.StatusInternalServerError, internalMessage(call.ID))
		return
	}
	if e.Code == op.TooLarge || e.Code == op.Canceled || o.Style == op.Resource || o.Out != nil && o.Out.Kind == op.Binary || o.Talk != nil {
		code := status(e.Code)
		body := map[string]any{"detail": e.Msg, "success": false, "message": e.Msg, "data": e.Data}
		if e.Hint != "" {
			body["hint"] = e.Hint
		}
		writeJSON(w, r, code, body)
		return
	}
	writeJSON(w, r, http.StatusOK, failure(e))
}

func failure(e *op.Error) enveloped {
	reply := enveloped{Message: &e.Msg, Data: e.Data}
	if e.Hint != "" {
		reply.Hint = &e.Hint
	}
	return reply
}

func internalMessage(id string) string {
	return "Something went wrong on our side; the log has the details under id " + id
}

// fail writes an error without the help of anything that may itself fail.
func fail(w http.ResponseWriter, call *op.Call, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b, err := json.Marshal(map[string]any{"success": false, "message": message, "detail": message, "data": nil, "request_id": call.ID})
	if err == nil {
		w.Write(b)
	}
}

// acceptsGzip is true when the caller lists gzip and does not refuse it.
func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.TrimSpace(q) != "q=0"
		}
	}
	return false
}
