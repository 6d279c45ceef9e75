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

	"github.com/cove-sandbox/cove/internal/op"
)

// answer prints a reply and turns a failure into an exit code.
func (r *run) answer(res *http.Response) error {
	media := res.Header.Get("Content-Type")
	switch {
	case res.StatusCode >= 400:
		return r.refused(res)
	case strings.HasPrefix(media, "text/event-stream"):
		return r.events(res.Body)
	case r.op.Binary:
		return r.bytes(res.Body)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return &Error{ExitServer, fmt.Sprintf("the reply was cut off: %v", err)}
	}
	if r.op.Style != op.Resource {
		return r.enveloped(b)
	}
	return r.show(b)
}

func (r *run) refused(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var reply struct {
		Detail  json.RawMessage `json:"detail"`
		Message string          `json:"message"`
		Error   string          `json:"error"` // as a hub says it
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

// ExitOf is the exit code of an HTTP status; those below 400 are no failure.
func ExitOf(status int) int {
	switch {
	case status < 400:
		return ExitOK
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ExitSignIn
	case status == http.StatusNotFound:
		return ExitMissing
	case status == http.StatusUnprocessableEntity || status == http.StatusBadRequest:
		return ExitUsage
	case status >= 500:
		return ExitServer
	}
	return ExitFailed
}

func (r *run) enveloped(b []byte) error {
	var reply struct {
		Success bool            `json:"success"`
		Code    string          `json:"code"` // "0" is a hub's success
		Message string          `json:"message"`
		Hint    string          `json:"hint"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return &Error{ExitServer, fmt.Sprintf("the reply is not what was expected: %v", err)}
	}
	if reply.Hint != "" {
		fmt.Fprintln(r.Stderr, "hint:", reply.Hint)
	}
	if !reply.Success && reply.Code != "0" {
		if !r.table() && len(reply.Data) > 0 && string(reply.Data) != "null" {
			r.show(reply.Data)
		}
		return &Error{ExitFailed, reply.Message}
	}
	return r.show(reply.Data)
}

func (r *run) table() bool {
	switch r.format {
	case "json":
		return false
	case "table":
		return true
	}
	return r.Person()
}

// show prints a value: a table for a person, JSON for a pipe.
func (r *run) show(b []byte) error {
	if !r.table() {
		var out bytes.Buffer
		if err := json.Indent(&out, b, "", "  "); err != nil {
			return &Error{ExitServer, fmt.Sprintf("the reply is not JSON: %v", err)}
		}
		out.WriteByte('\n')
		_, err := out.WriteTo(r.Stdout)
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil && len(b) > 0 {
		return &Error{ExitServer, fmt.Sprintf("the reply is not JSON: %v", err)}
	}
	w := bufio.NewWriter(r.Stdout)
	r.printValue(w, v)
	return w.Flush()
}

func (r *run) printValue(w io.Writer, v any) {
	switch v := v.(type) {
	case nil:
	case []any:
		r.printRows(w, v)
	case map[string]any:
		r.printObject(w, v)
	case string:
		fmt.Fprintln(w, strings.TrimSuffix(v, "\n"))
	default:
		fmt.Fprintln(w, v)
	}
}

// printObject prints short values in two columns, then long text and lists of
// objects below their names.
func (r *run) printObject(w io.Writer, object map[string]any) {
	var below []string
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		list, _ := object[key].([]any)
		if len(list) > 0 && isObject(list[0]) || strings.Contains(cell(object[key]), "\n") {
			below = append(below, key)
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\n", key, cell(object[key]))
	}
	tw.Flush()
	for _, key := range below {
		fmt.Fprintf(w, "%s:\n", key)
		r.printValue(w, object[key])
	}
}

func isObject(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

// printRows prints a list of objects as columns, anything else a line each.
func (r *run) printRows(w io.Writer, list []any) {
	columns := map[string]bool{}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			for _, item := range list {
				fmt.Fprintln(w, cell(item))
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
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(list) > 0 {
		fmt.Fprintln(tw, strings.ToUpper(strings.Join(names, "\t")))
	}
	for _, item := range list {
		row := make([]string, len(names))
		for i, name := range names {
			row[i] = strings.ReplaceAll(cell(item.(map[string]any)[name]), "\n", "⏎")
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return v
	case map[string]any, []any:
		b, err := op.JSON(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

func (r *run) bytes(body io.Reader) error {
	if r.file == "" || r.file == "-" {
		if r.file == "" && r.Person() && r.format == "" && !strings.HasPrefix(r.op.Media(), "text/") {
			return &Error{ExitUsage, "the reply is binary: name a file with -o, or pipe it somewhere"}
		}
		if _, err := io.Copy(r.Stdout, body); err != nil {
			return &Error{ExitServer, fmt.Sprintf("the reply was cut off: %v", err)}
		}
		return nil
	}
	f, err := os.Create(r.file)
	if err != nil {
		return &Error{ExitUsage, err.Error()}
	}
	n, err := io.Copy(f, body)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(r.file)
		return &Error{ExitServer, fmt.Sprintf("the reply was cut off: %v", err)}
	}
	fmt.Fprintf(r.Stderr, "%d bytes written to %s\n", n, r.file)
	return nil
}

// events prints the data of each event on a line of its own.
func (r *run) events(body io.Reader) error {
	in := bufio.NewReader(body)
	var name string
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &Error{ExitServer, fmt.Sprintf("the stream was cut off: %v", err)}
		}
		line = strings.TrimSuffix(line, "\n")
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "event":
			name = value
		case "data":
			if name == "error" {
				return r.enveloped([]byte(value))
			}
			fmt.Fprintln(r.Stdout, value)
		case "":
			name = ""
		}
	}
}
