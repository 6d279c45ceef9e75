package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// print prints a response, or returns a failure with its exit code.
func (r *run) print(res *http.Response) error {
	media := res.Header.Get("Content-Type")
	switch {
	case res.StatusCode >= 400:
		return failed(res)
	case res.StatusCode >= 300:
		to := res.Header.Get("Location")
		return &Error{ExitFailed, fmt.Sprintf("%s: redirect to %q is not followed; use the final URL", res.Status, to)}
	case strings.HasPrefix(media, "text/event-stream"):
		return r.printEvents(res.Body)
	case r.op.Binary:
		return r.writeBytes(res.Body)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return &Error{ExitServer, fmt.Sprintf("incomplete response: %v", err)}
	}
	if r.op.Style != op.Resource {
		return r.printEnvelope(b)
	}
	return r.show(b)
}

// failed returns the error of a response with an error status.
func failed(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var reply struct {
		Detail  json.RawMessage `json:"detail"`
		Message string          `json:"message"`
		Error   string          `json:"error"` // of a hub
	}
	_ = json.Unmarshal(b, &reply)
	msg := cmp.Or(reply.Message, reply.Error)
	var faults []op.Fault
	var text string
	switch {
	case json.Unmarshal(reply.Detail, &faults) == nil && len(faults) > 0:
		msg = op.Faults(faults).Error()
	case json.Unmarshal(reply.Detail, &text) == nil && text != "":
		msg = text
	case msg == "":
		msg = res.Status
	}
	return &Error{ExitOf(res.StatusCode), msg}
}

// ExitOf returns the exit code of an HTTP status.
func ExitOf(status int) int {
	switch {
	case status < 400:
		return ExitOK
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ExitAuth
	case status == http.StatusNotFound:
		return ExitNotFound
	case status == http.StatusUnprocessableEntity || status == http.StatusBadRequest:
		return ExitUsage
	case status >= 500:
		return ExitServer
	}
	return ExitFailed
}

func (r *run) printEnvelope(b []byte) error {
	var reply struct {
		Success bool            `json:"success"`
		Code    string          `json:"code"` // "0" is a hub's success
		Message string          `json:"message"`
		Hint    string          `json:"hint"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return &Error{ExitServer, fmt.Sprintf("unexpected response: %v", err)}
	}
	if reply.Hint != "" {
		fmt.Fprintln(r.Stderr, "hint:", Escape(reply.Hint))
	}
	if !reply.Success && reply.Code != "0" {
		if r.formatOf(nil) == "json" && len(reply.Data) > 0 && string(reply.Data) != "null" {
			_ = r.show(reply.Data)
		}
		return &Error{ExitFailed, reply.Message}
	}
	return r.show(reply.Data)
}

// formatOf returns the format of a value: the requested one, or the default for the reader.
func (r *run) formatOf(v any) string {
	if f := cmp.Or(r.output, r.preset.Output); f != "" {
		return f
	}
	if r.Person() {
		return "table"
	}
	_, text := v.(string)
	_, list := v.([]any)
	if r.Short && (text || list && len(r.op.Columns) > 0) {
		return "table"
	}
	return "json"
}

// show prints a JSON value in the requested format.
func (r *run) show(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil && len(b) > 0 {
		return &Error{ExitServer, fmt.Sprintf("invalid JSON in response: %v", err)}
	}
	w := bufio.NewWriter(r.Stdout)
	if r.selection != nil {
		return r.writeSelection(b)
	}
	switch r.formatOf(v) {
	case "yaml":
		text, err := toYAML(b)
		if err != nil {
			return &Error{ExitServer, fmt.Sprintf("cannot write the response as YAML: %v", err)}
		}
		_, err = io.WriteString(w, text)
		return outputError(errors.Join(err, w.Flush()))
	case "json":
		var out bytes.Buffer
		if err := json.Indent(&out, b, "", "  "); err != nil {
			return &Error{ExitServer, fmt.Sprintf("invalid JSON in response: %v", err)}
		}
		_, err := fmt.Fprintln(w, Escape(out.String()))
		return outputError(errors.Join(err, w.Flush()))
	case "name":
		r.printNames(w, v)
	default:
		r.printValue(w, v)
	}
	return outputError(w.Flush())
}

// printNames prints the name or ID of each object, one per line.
func (r *run) printNames(w io.Writer, v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			r.printNames(w, item)
		}
	case map[string]any:
		if items, ok := v["items"].([]any); ok { // one page of a list
			r.printNames(w, items)
			return
		}
		for _, key := range append(slices.Clone(r.op.Columns[:min(1, len(r.op.Columns))]), "name", "id") {
			if name, ok := v[key].(string); ok {
				fmt.Fprintln(w, Line(name))
				return
			}
		}
		r.printValue(w, v)
	case string:
		// The value is a message about the object that an argument names.
		for _, f := range r.positional[:min(1, len(r.positional))] {
			if given := r.given[f.Name]; len(given) > 0 {
				v = given[0]
			}
		}
		fmt.Fprintln(w, Escape(strings.TrimSuffix(v, "\n")))
	case nil:
	default:
		fmt.Fprintln(w, Line(cell(v)))
	}
}

// outputError returns the error of a failed write to standard output.
func outputError(err error) error {
	if err == nil {
		return nil
	}
	return &Error{ExitFailed, fmt.Sprintf("cannot write the output: %v", err)}
}

func (r *run) printValue(w io.Writer, v any) {
	switch v := v.(type) {
	case nil:
	case []any:
		r.printRows(w, v)
	case map[string]any:
		if items, ok := v["items"].([]any); ok && len(r.op.Columns) > 0 { // one page of a list
			r.printRows(w, items)
			return
		}
		r.printObject(w, v)
	case string:
		fmt.Fprintln(w, Escape(strings.TrimSuffix(v, "\n")))
	default:
		fmt.Fprintln(w, v)
	}
}

// printObject prints short values in two columns, and then long texts and lists of objects,
// each below its name.
func (r *run) printObject(w io.Writer, object map[string]any) {
	var below []string
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		list, _ := object[key].([]any)
		if len(list) > 0 && isObject(list[0]) || strings.Contains(cell(object[key]), "\n") {
			below = append(below, key)
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\n", Line(key), Line(dated(human(key, object[key]), object[key])))
	}
	tw.Flush()
	for _, key := range below {
		fmt.Fprintf(w, "%s:\n", Line(key))
		r.printValue(w, object[key])
	}
}

func isObject(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

// printRows prints a list of objects as a table, and any other list with one element per line.
func (r *run) printRows(w io.Writer, list []any) {
	columns := map[string]bool{}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			for _, item := range list {
				fmt.Fprintln(w, Escape(cell(item)))
			}
			return
		}
		for key := range object {
			columns[key] = true
		}
	}
	names := slices.Sorted(maps.Keys(columns))
	if len(r.op.Columns) > 0 {
		names = r.op.Columns
		if r.output == "wide" {
			names = append(slices.Clone(names), r.op.Wide...)
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(list) > 0 || r.Short && len(names) > 0 {
		heads := make([]string, len(names))
		for i, name := range names {
			heads[i] = Line(strings.ToUpper(strings.TrimSuffix(name, "_at")))
		}
		fmt.Fprintln(tw, strings.Join(heads, "\t"))
	}
	for _, item := range list {
		row := make([]string, len(names))
		for i, name := range names {
			row[i] = Line(r.told(name, human(name, item.(map[string]any)[name])))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

// told rewrites a reason for users of the command line.
func (r *run) told(name, text string) string {
	if name != "reason" || r.Program == "" {
		return text
	}
	return Commands(r.Program, r.Table, text)
}

// Age formats a time relative to the current time, such as 5m ago or in 2h.
func Age(d time.Duration) string {
	distance, unit := d.Abs().Round(time.Second), "s"
	n := int64(distance / time.Second)
	for _, step := range []struct {
		size time.Duration
		unit string
	}{{time.Minute, "m"}, {time.Hour, "h"}, {24 * time.Hour, "d"}} {
		if distance >= 2*step.size || distance == step.size {
			n, unit = int64(distance/step.size), step.unit
		}
	}
	if d > 0 {
		return fmt.Sprintf("in %d%s", n, unit)
	}
	return fmt.Sprintf("%d%s ago", n, unit)
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return v
	case map[string]any, []any:
		if names, ok := texts(v); ok {
			return strings.Join(names, ", ")
		}
		b, err := op.JSON(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

// texts returns the elements of a list of texts.
func texts(v any) (out []string, ok bool) {
	list, ok := v.([]any)
	for _, v := range list {
		s, isText := v.(string)
		ok = ok && isText
		out = append(out, s)
	}
	return out, ok && len(out) > 0
}

// writeBytes writes a binary response to a file or to standard output.
func (r *run) writeBytes(body io.Reader) error {
	if r.file == "" || r.file == "-" {
		if r.file == "" && r.Person() && r.output == "" && !strings.HasPrefix(r.op.Media(), "text/") {
			return &Error{ExitUsage, "binary output: write it to a file with -o, or pipe it"}
		}
		out := io.WriteCloser(nopCloser{r.Stdout})
		if r.Person() && !r.preset.Raw {
			out = Writer(r.Stdout)
		}
		_, err := io.Copy(out, body)
		if err = errors.Join(err, out.Close()); err != nil {
			return &Error{ExitServer, fmt.Sprintf("incomplete response: %v", err)}
		}
		return nil
	}
	f, err := os.Create(r.file)
	if err != nil {
		return &Error{ExitUsage, err.Error()}
	}
	n, err := io.Copy(f, r.watch(body, "received", -1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(r.file)
		return &Error{ExitServer, fmt.Sprintf("incomplete response: %v", err)}
	}
	fmt.Fprintf(r.Stderr, "wrote %d bytes to %s\n", n, r.file)
	return nil
}

// nopCloser keeps a stream open that the caller owns.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// printEvents prints the data of each event, one per line.
func (r *run) printEvents(body io.Reader) error {
	in := bufio.NewReader(body)
	var name string
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &Error{ExitServer, fmt.Sprintf("incomplete stream: %v", err)}
		}
		line = strings.TrimSuffix(line, "\n")
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "event":
			name = value
		case "data":
			if name == "error" {
				return r.printEnvelope([]byte(value))
			}
			fmt.Fprintln(r.Stdout, Escape(value))
		case "":
			name = ""
		}
	}
}
