package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// run is one invocation of a verb.
type run struct {
	Config
	op         op.Op
	positional []*op.Field
	given      map[string][]string
	preset     Preset
	output     string // format
	quiet      bool
	file       string
	stream     bool
	jq         string // expression that selects from the output
	selection  Selection
	ctx        context.Context // of the invocation
}

// doEach runs the verb for each argument. It continues after a failure, and returns the first
// error.
func (r *run) doEach(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return r.do(ctx, args)
	}
	if name := r.positional[0].Name; r.given[name] != nil {
		return &Error{ExitUsage, fmt.Sprintf("unexpected argument %q: --%s is given too", args[0], flagName(r.positional[0]))}
	}
	var first error
	for _, arg := range args {
		delete(r.given, r.positional[0].Name)
		err := r.do(ctx, []string{arg})
		if err != nil && first != nil {
			fmt.Fprintln(r.Stderr, Escape(err.Error()))
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (r *run) do(ctx context.Context, args []string) error {
	if r.quiet {
		r.output = "name"
	}
	var err error
	if r.selection, err = r.compile(ctx); err != nil {
		return err
	}
	r.ctx = ctx
	if r.output != "" && r.selection == nil && !slices.Contains(formats, r.output) {
		return &Error{ExitUsage, fmt.Sprintf("invalid output format %q; use %s or jsonpath=TEMPLATE", r.output, strings.Join(formats, ", "))}
	}
	if err := r.assign(args); err != nil {
		return err
	}
	for name, value := range r.preset.Set {
		if r.given[name] == nil {
			r.given[name] = []string{value}
		}
	}
	if err := r.Client.Ready(); err != nil {
		return err
	}
	req, err := r.request(ctx)
	if err != nil {
		return err
	}
	res, err := r.Client.do(req)
	if err != nil {
		return &Error{ExitConnect, fmt.Sprintf("cannot reach %s: %v; %s", r.Client.URL, err, r.Client.Help)}
	}
	defer res.Body.Close()
	return r.explain(r.print(res), res.StatusCode)
}

// explain rewrites an error for users of the command line, and adds a hint to that of a request without valid credentials.
func (r *run) explain(err error, status int) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || status < 400 {
		return err
	}
	if status == http.StatusUnauthorized && r.Client.SignIn != "" {
		return &Error{e.Code, e.Msg + "; " + r.Client.SignIn}
	}
	if r.Program == "" {
		return err
	}
	return &Error{e.Code, Commands(r.Program, r.Table, e.Msg)}
}

// assign assigns the positional arguments to fields that accept them and that no flag sets. A
// list gets all arguments except those that a later field requires.
func (r *run) assign(args []string) error {
	for i, f := range r.positional {
		if r.given[f.Name] == nil && len(args) > 0 {
			n := 1
			if inner(f.Type).Kind == op.Array {
				n = len(args)
				for _, later := range r.positional[i+1:] {
					if later.Required && r.given[later.Name] == nil {
						n--
					}
				}
				n = max(1, n)
			}
			r.given[f.Name] = args[:n]
			args = args[n:]
		}
		if r.given[f.Name] == nil && f.Required {
			return &Error{ExitUsage, fmt.Sprintf("--%s is required: %s", flagName(f), f.Doc)}
		}
	}
	if len(args) > 0 {
		return &Error{ExitUsage, fmt.Sprintf("unexpected argument %q", args[0])}
	}
	return nil
}

func (r *run) request(ctx context.Context) (*http.Request, error) {
	method, path := r.op.MethodPath()
	query, body := url.Values{}, map[string]any{}
	var form []*op.Field
	var whole any
	for _, f := range r.op.In().AllFields() {
		values := r.given[f.Name]
		if values == nil {
			continue
		}
		switch f.Source {
		case op.Path:
			escaped := url.PathEscape(values[0])
			path = strings.NewReplacer("{"+f.Name+"}", escaped, "{"+f.Name+"...}", escaped).Replace(path)
		case op.Query:
			if query[f.Name] = values; r.Units[f.Name].Size > 0 {
				v, err := r.value(f, values)
				if err != nil {
					return nil, err
				}
				query[f.Name] = []string{fmt.Sprintf("%s", v)}
			}
		case op.Form:
			form = append(form, f)
		default:
			v, err := r.value(f, values)
			if err != nil {
				return nil, err
			}
			if f.Source == op.Whole {
				whole = v
			}
			body[f.Name] = v
		}
	}
	if r.stream {
		query.Set("stream", "true")
	}
	target := path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	media, reader, err := r.body(form, body, whole)
	if err != nil {
		return nil, err
	}
	req, err := r.Client.request(ctx, method, target, reader)
	if err != nil {
		return nil, err
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	return req, nil
}

func (r *run) body(form []*op.Field, body map[string]any, whole any) (media string, b io.Reader, err error) {
	if r.op.In().Has(op.Form) {
		return r.multipart(form)
	}
	if whole != nil {
		return encode(whole)
	}
	if r.op.In().Has(op.Body) {
		return encode(body)
	}
	return "", nil, nil
}

func encode(v any) (string, io.Reader, error) {
	b, err := op.JSON(v)
	return "application/json", bytes.NewReader(b), err
}

// value converts the text of a flag to the type of the field. "-" reads standard input.
func (r *run) value(f *op.Field, values []string) (any, error) {
	t := inner(f.Type)
	if unit := r.Units[f.Name]; unit.Size > 0 {
		text, err := unit.in(values[0])
		if err != nil {
			return nil, &Error{ExitUsage, fmt.Sprintf("--%s: %q: %v", flagName(f), values[0], err)}
		}
		return text, nil
	}
	switch t.Kind {
	case op.String, op.Bytes:
		if values[0] == "-" {
			b, err := io.ReadAll(r.Stdin)
			if err != nil {
				return nil, &Error{ExitFailed, fmt.Sprintf("cannot read standard input: %v", err)}
			}
			return string(b), nil
		}
		return values[0], nil
	case op.Array:
		if t.Elem.Kind == op.String {
			return values, nil
		}
		return r.list(f, values)
	case op.Map:
		return r.pairs(f, values)
	case op.Custom:
		if !json.Valid([]byte(values[0])) {
			return values[0], nil
		}
	}
	if !json.Valid([]byte(values[0])) {
		if t.Kind == op.Any {
			return values[0], nil
		}
		return nil, &Error{ExitUsage, fmt.Sprintf("--%s: %q is not a valid %s", flagName(f), values[0], f.Type.Label())}
	}
	return json.RawMessage(values[0]), nil
}

// list accepts one JSON list, or one JSON value per flag.
func (r *run) list(f *op.Field, values []string) (any, error) {
	if len(values) == 1 && strings.HasPrefix(strings.TrimSpace(values[0]), "[") && json.Valid([]byte(values[0])) {
		return json.RawMessage(values[0]), nil
	}
	var out []json.RawMessage
	for _, v := range values {
		if !json.Valid([]byte(v)) {
			return nil, &Error{ExitUsage, fmt.Sprintf("--%s: %q is not valid JSON", flagName(f), v)}
		}
		out = append(out, json.RawMessage(v))
	}
	return out, nil
}

func (r *run) pairs(f *op.Field, values []string) (any, error) {
	if len(values) == 1 && strings.HasPrefix(strings.TrimSpace(values[0]), "{") && json.Valid([]byte(values[0])) {
		return json.RawMessage(values[0]), nil
	}
	out := map[string]any{}
	for _, v := range values {
		key, text, ok := strings.Cut(v, "=")
		if !ok {
			return nil, &Error{ExitUsage, fmt.Sprintf("--%s: %q is not key=value", flagName(f), v)}
		}
		out[key] = text
		if k := inner(f.Type).Elem.Kind; k != op.String && json.Valid([]byte(text)) {
			out[key] = json.RawMessage(text)
		}
	}
	return out, nil
}

// multipart streams files from disk. Fields are sent first, so that the server can stream too.
func (r *run) multipart(fields []*op.Field) (string, io.Reader, error) {
	pr, pw := io.Pipe()
	w := multipart.NewWriter(pw)
	files := map[string]*os.File{}
	for _, f := range fields {
		if f.Type.Kind == op.Upload {
			file, err := os.Open(r.given[f.Name][0])
			if err != nil {
				return "", nil, &Error{ExitUsage, fmt.Sprintf("--%s: %v", flagName(f), err)}
			}
			files[f.Name] = file
		}
	}
	go func() {
		pw.CloseWithError(r.parts(w, fields, files))
		for _, f := range files {
			f.Close()
		}
	}()
	return w.FormDataContentType(), pr, nil
}

func (r *run) parts(w *multipart.Writer, fields []*op.Field, files map[string]*os.File) error {
	for _, f := range fields {
		if files[f.Name] != nil {
			continue
		}
		for _, v := range r.given[f.Name] {
			if err := w.WriteField(f.Name, v); err != nil {
				return err
			}
		}
	}
	for name, file := range files {
		part, err := w.CreateFormFile(name, filepath.Base(file.Name()))
		if err != nil {
			return err
		}
		size := int64(-1)
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		if _, err := io.Copy(part, r.watch(file, "sent", size)); err != nil {
			return err
		}
	}
	return w.Close()
}

func (c *Client) request(ctx context.Context, method, target string, body io.Reader) (*http.Request, error) {
	base := strings.TrimSuffix(c.URL, "/")
	if strings.HasPrefix(base, "unix:") {
		base = "http://localhost"
	}
	req, err := http.NewRequestWithContext(ctx, method, base+target, body)
	if err != nil {
		return nil, &Error{ExitUsage, fmt.Sprintf("invalid URL %q: %v; %s", c.URL, err, c.Help)}
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.Key != "" {
		req.Header.Set("X-API-Key", c.Key)
	}
	return req, nil
}

func (c *Client) do(req *http.Request) (*http.Response, error) {
	client := c.HTTP
	if client == nil {
		t := c.Transport()
		t.Proxy = nil
		// A program in a sandbox could redirect the request, with its credentials, to another server.
		client = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	res, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
	}
	return res, err
}
