package rest

import (
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// route is the handler of one operation.
func (s *Server) route(o op.Op) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rec, ok := w.(*recorder); ok {
			rec.op = o.Name
		}
		if s.Admit != nil {
			done, err := s.Admit(r, o)
			if err != nil {
				s.failed(w, r, o, err)
				return
			}
			defer done()
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
	if o.In().Has(op.Form) {
		f, err := readForm(o.In(), r)
		if err != nil {
			return in, nil, err
		}
		form = f
		in.File = func(name string) *op.File { return form.files[name] }
		return in, form.close, nil
	}
	if o.In().Has(op.Body) || o.In().Has(op.Whole) {
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
	writeJSON(w, r, http.StatusOK, s.Dialect.success(r.Context(), out))
}

// failed answers an error. What is ours to mend is a 500 with an id that is also
// in the log.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, o op.Op, err error) {
	call := op.CallOf(r.Context())
	if faults, ok := errors.AsType[op.Faults](err); ok {
		call.Code = op.Invalid
		code, body := s.Dialect.invalid(faults)
		writeJSON(w, r, code, body)
		return
	}
	e, ok := op.AsError(err)
	if !ok && errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		e, ok = &op.Error{Code: op.Canceled, Msg: "the caller went away"}, true
	}
	if !ok || e.Code == op.Internal {
		call.Code = op.Internal
		s.Log.Error("operation failed", "id", call.ID, "op", o.Name, "error", err)
		s.plain(w, r, http.StatusInternalServerError, internalMessage(call.ID))
		return
	}
	call.Code = e.Code
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	code, body := s.Dialect.failed(o, e)
	writeJSON(w, r, code, body)
}

func internalMessage(id string) string {
	return "Something went wrong on our side; the log has the details under id " + id
}

// plain answers for no operation.
func (s *Server) plain(w http.ResponseWriter, r *http.Request, status int, message string) {
	writeJSON(w, r, status, s.Dialect.plain(status, message, op.CallOf(r.Context()).ID))
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
