package rest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/card"
	"github.com/cove-sandbox/cove/internal/api/op"
)

// serve serves a request of one operation.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, found *op.Op) {
	o := *found
	if rec, ok := w.(*recorder); ok {
		rec.op, rec.confine = o.Name, found
	}
	if !s.admitContent(w, r, found) {
		return
	}
	if s.Admit != nil {
		done, err := s.Admit(r, o)
		if err != nil {
			s.writeError(w, r, o, err)
			return
		}
		defer done()
	}
	if o.Handler != nil && o.MaxBody == 0 {
		o.Handler.ServeHTTP(w, r)
		return
	}
	defer s.boundBody(w, r, o)()
	if o.Handler != nil {
		o.Handler.ServeHTTP(w, r)
		return
	}
	input, done, err := s.input(o, r)
	if done != nil {
		defer done()
	}
	if err != nil {
		s.writeError(w, r, o, err)
		return
	}
	in, err := o.Bind(input)
	if err != nil {
		s.writeError(w, r, o, err)
		return
	}
	switch {
	case o.Duplex != nil:
		s.serveWebSocket(w, r, o, in)
	case o.Stream != nil && (o.Call == nil || wantsStream(r)):
		s.serveStream(w, r, o, in)
	default:
		s.serveCall(w, r, o, in)
	}
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
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		switch media, _, _ := mime.ParseMediaType(accepted); media {
		case "text/event-stream":
			return true
		case "application/json", "*/*":
			return false
		}
	}
	return false
}

// input collects the sources of the operation's fields. The returned function, if not nil,
// releases them.
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
	if e, ok := op.AsError(err); ok {
		return e
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return op.Errorf(op.Invalid, "the request body did not arrive in time; send it without pauses")
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return op.Errorf(op.TooLarge, "request body is larger than the limit of %d bytes; send less, or upload a file", e.Limit)
	}
	return op.Errorf(op.Invalid, "cannot read the request body: %w", err)
}

func (s *Server) serveCall(w http.ResponseWriter, r *http.Request, o op.Op, in any) {
	out, err := o.Call(r.Context(), in)
	if err != nil {
		s.writeError(w, r, o, err)
		return
	}
	if blob, ok := out.(*op.Blob); ok {
		s.writeBlob(w, r, o, blob)
		return
	}
	switch o.Style {
	case op.Enveloped:
		writeJSON(w, r, http.StatusOK, s.Dialect.success(r.Context(), out))
	case op.Coded:
		writeCoded(w, r, o, out)
	default:
		writeJSON(w, r, http.StatusOK, out)
	}
}

// writeCoded sends the status and headers that the operation has set.
func writeCoded(w http.ResponseWriter, r *http.Request, o op.Op, out any) {
	call := op.CallOf(r.Context())
	for name, value := range call.Header {
		w.Header().Set(name, value)
	}
	status := cmp.Or(call.Status, o.Status, http.StatusOK)
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	writeJSON(w, r, status, out)
}

// writeError sends an error. An internal error is logged, and the response is 500 with the
// request ID.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, o op.Op, err error) {
	call := op.CallOf(r.Context())
	if faults, ok := errors.AsType[op.Faults](err); ok {
		call.Code = op.Invalid
		code, body := s.Dialect.invalid(o, faults)
		writeJSON(w, r, code, body)
		return
	}
	e, ok := op.AsError(err)
	if !ok && errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		e, ok = &op.Error{Code: op.Canceled, Msg: "client closed the request"}, true
	}
	if !ok || e.Code == op.Internal {
		call.Code = op.Internal
		s.Log.Error("operation failed", "id", call.ID, "op", o.Name, "error", err)
		if o.Style == op.Coded {
			writeJSON(w, r, http.StatusInternalServerError, coded{http.StatusInternalServerError, op.InternalMessage(call.ID)})
			return
		}
		s.writePlain(w, r, http.StatusInternalServerError, op.InternalMessage(call.ID))
		return
	}
	call.Code = e.Code
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	code, body := s.Dialect.failed(o, e)
	writeJSON(w, r, code, body)
}

// writePlain responds to a request without an operation, or with an internal error.
func (s *Server) writePlain(w http.ResponseWriter, r *http.Request, status int, message string) {
	writeJSON(w, r, status, s.Dialect.plain(status, message, op.CallOf(r.Context()).ID))
}

// writeMissing replies to a person who opens an address that does not exist.
func writeMissing(w http.ResponseWriter, r *http.Request) {
	at := op.CallOf(r.Context()).URL
	card.Card{Title: "Not Found", Text: "No page has this address.", Links: []card.Link{
		{URL: at("", "/", ""), Text: "Home", Main: true}, {URL: at("", "/v1/docs", ""), Text: "Documentation"}}}.Write(w, http.StatusNotFound)
}

// acceptsGzip reports whether the caller accepts gzip.
func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.TrimSpace(q) != "q=0"
		}
	}
	return false
}
