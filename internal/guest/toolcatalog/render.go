package toolcatalog

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// renderers convert outputs to readable text, by route.
var renderers = map[string]func(any, map[string]any) toolset.Result{
	"POST /v1/bash/exec":               renderBash,
	"POST /v1/bash/output":             renderBashOutput,
	"POST /v1/shell/exec":              renderShell,
	"POST /v1/shell/view":              renderShell,
	"POST /v1/code/execute":            renderCode,
	"POST /v1/jupyter/execute":         renderCode,
	"POST /v1/nodejs/execute":          renderCode,
	"POST /v1/file/read":               renderRead,
	"POST /v1/file/str_replace_editor": renderEdit,
	"POST /v1/file/search":             renderSearch,
	"POST /v1/file/grep":               renderGrep,
	"POST /v1/file/glob":               renderPaths,
	"POST /v1/file/find":               renderPaths,
	"POST /v1/file/list":               renderPaths,
	"GET /v1/sandbox":                  renderContext,
	"POST /v1/browser/actions":         renderAction,
	"GET /v1/browser/page/snapshot":    renderSnapshot,
}

// object is a decoded JSON object.
type object map[string]any

func toObject(v any) object {
	m, _ := v.(map[string]any)
	return m
}

func (o object) text(key string) string {
	s, _ := o[key].(string)
	return s
}

func (o object) list(key string) []any {
	l, _ := o[key].([]any)
	return l
}

func (o object) number(key string) int {
	switch n := o[key].(type) {
	case json.Number:
		i, _ := n.Int64()
		return int(i)
	case int64:
		return int(n)
	case float64:
		return int(n)
	}
	return 0
}

func (o object) isSet(key string) bool { return o[key] != nil }

// renderJSON returns the output as JSON, for readers that parse it.
func renderJSON(out any) toolset.Result {
	b, err := op.JSON(out)
	if err != nil {
		return toolset.Result{Failed: true, Text: err.Error()}
	}
	return toolset.Result{Text: string(b)}
}

// orFacts returns a renderer, by default one that shows lines of "name: value".
func orFacts(r func(any, map[string]any) toolset.Result) func(any, map[string]any) toolset.Result {
	if r != nil {
		return r
	}
	return func(out any, _ map[string]any) toolset.Result {
		o := toObject(out)
		if o == nil {
			if s, ok := out.(string); ok {
				return toolset.Result{Text: s}
			}
			return renderJSON(out)
		}
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(o)) {
			if o[k] != nil {
				fmt.Fprintf(&b, "%s: %s\n", k, joinText(o[k]))
			}
		}
		return toolset.Result{Text: strings.TrimSuffix(b.String(), "\n")}
	}
}

// joinStreams joins standard output and standard error. It marks the latter if both have text.
func joinStreams(stdout, stderr string) string {
	stdout, stderr = strings.TrimRight(stdout, "\n"), strings.TrimRight(stderr, "\n")
	switch {
	case stderr == "":
		return stdout
	case stdout == "":
		return stderr
	}
	return stdout + "\n[stderr]\n" + stderr
}

// addNote adds a line in brackets to a text.
func addNote(text, format string, args ...any) string {
	note := "[" + fmt.Sprintf(format, args...) + "]"
	if text == "" {
		return note
	}
	return text + "\n" + note
}

func renderBash(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	r := toolset.Result{Text: joinStreams(o.text("stdout"), o.text("stderr"))}
	r.More = fmt.Sprintf("bash_output with session_id %q, command_id %q and offset 0 reads the rest",
		o.text("session_id"), o.text("command_id"))
	switch status := o.text("status"); {
	case !o.isSet("exit_code"):
		r.Text = addNote(r.Text, "the command is still running; read more output with bash_output, session_id %q, "+
			"command_id %q, offset %d, stderr_offset %d; stop it with bash_kill",
			o.text("session_id"), o.text("command_id"), o.number("offset"), o.number("stderr_offset"))
	case status == "timed_out":
		r.Text = addNote(r.Text, "killed after hard_timeout; exit code %d", o.number("exit_code"))
	case status == "killed":
		r.Text = addNote(r.Text, "killed; exit code %d", o.number("exit_code"))
	default:
		r.Text = addNote(r.Text, "exit code %d", o.number("exit_code"))
	}
	return r
}

func renderBashOutput(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	c := toObject(o["command"])
	r := toolset.Result{Text: joinStreams(o.text("stdout"), o.text("stderr"))}
	state := "still running"
	if c.isSet("exit_code") {
		state = fmt.Sprintf("exit code %d", c.number("exit_code"))
	}
	r.Text = addNote(r.Text, "%s; the next offset is %d, stderr_offset %d", state, o.number("offset"), o.number("stderr_offset"))
	return r
}

func renderShell(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	text := strings.TrimRight(o.text("output"), "\n")
	id := o.text("session_id")
	switch status := o.text("status"); {
	case status == "running" || status == "no_change_timeout":
		text = addNote(text, "still running in session_id %q: shell_view shows its output, shell_write types into it, "+
			"terminal_kill stops it", id)
	case o.isSet("exit_code"):
		text = addNote(text, "exit code %d; session_id %q", o.number("exit_code"), id)
	default:
		text = addNote(text, "%s; session_id %q", status, id)
	}
	return toolset.Result{Text: text}
}

// renderCode shows the outputs of code: texts as text, plots as images.
func renderCode(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	var parts []string
	var r toolset.Result
	for _, item := range o.list("outputs") {
		text, images := renderOutput(toObject(item))
		if text = strings.TrimRight(text, "\n"); text != "" {
			parts = append(parts, text)
		}
		r.Images = append(r.Images, images...)
	}
	r.Text = strings.Join(parts, "\n")
	if o.text("status") == "timeout" {
		r.Text = addNote(r.Text, "timed out and interrupted; use a larger timeout")
	}
	if id := o.text("session_id"); id != "" {
		r.Text = addNote(r.Text, "session_id %q", id)
	}
	if r.Text == "" && len(r.Images) == 0 {
		r.Text = "[no output]"
	}
	return r
}

// renderOutput shows one output of a notebook.
func renderOutput(o object) (string, []toolset.Image) {
	switch o.text("output_type") {
	case "stream":
		return joinText(o["text"]), nil
	case "error":
		var lines []string
		for _, l := range o.list("traceback") {
			lines = append(lines, fmt.Sprint(l))
		}
		if len(lines) == 0 {
			lines = []string{o.text("ename") + ": " + o.text("evalue")}
		}
		return stripColors(strings.Join(lines, "\n")), nil
	}
	data := toObject(o["data"])
	var images []toolset.Image
	for _, media := range []string{"image/png", "image/jpeg", "image/gif", "image/webp"} {
		if raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(joinText(data[media]), "\n", "")); err == nil && len(raw) > 0 {
			images = append(images, toolset.Image{Type: media, Data: raw})
			break
		}
	}
	for _, media := range []string{"text/markdown", "text/plain", "application/json", "text/html", "text/latex"} {
		if text := joinText(data[media]); text != "" {
			if len(images) > 0 && media == "text/plain" && strings.HasPrefix(text, "<Figure") {
				return "", images // the text only describes the image
			}
			return text, images
		}
	}
	return "", images
}

// joinText returns a text that a notebook may store as a list of lines.
func joinText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var b strings.Builder
		for _, line := range v {
			fmt.Fprint(&b, line)
		}
		return b.String()
	case nil:
		return ""
	}
	b, _ := op.JSON(v)
	return string(b)
}

// stripColors removes the color codes of a terminal.
func stripColors(s string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			return b.String() + s
		}
		b.WriteString(s[:i])
		s = s[i+2:]
		end := strings.IndexFunc(s, func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return b.String()
		}
		s = s[end+1:]
	}
}

// renderRead shows a file, or as many lines as the limit allows.
func renderRead(out any, in map[string]any) toolset.Result {
	text := toObject(out).text("content")
	switch first := object(in).number("start_line"); {
	case text == "" && first > 0:
		return toolset.Result{Text: addNote("", "the file ends before line %d", first+1)}
	case text == "":
		return toolset.Result{Text: "[the file is empty]"}
	case len(text) <= toolset.Limit:
		return toolset.Result{Text: text}
	}
	room := toolset.Limit - 200
	end := strings.LastIndexByte(text[:room], '\n')
	if end < 0 {
		return toolset.Result{Text: text, More: "the lines are very long; use bash_exec with cut or head -c"}
	}
	shown := strings.Count(text[:end], "\n") + 1
	total := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
	first := max(object(in).number("start_line"), 0)
	return toolset.Result{Text: addNote(text[:end], "lines %d to %d; %d more lines follow; continue with start_line %d",
		first+1, first+shown, total-shown, first+shown+1)}
}

func renderEdit(out any, _ map[string]any) toolset.Result {
	return toolset.Result{Text: toObject(out).text("output")}
}

func renderSearch(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	lines, numbers := o.list("matches"), o.list("line_numbers")
	var b strings.Builder
	for i, line := range lines {
		n := 0
		if i < len(numbers) {
			n = object{"n": numbers[i]}.number("n") + 1
		}
		fmt.Fprintf(&b, "%d:%v\n", n, line)
	}
	if len(lines) == 0 {
		return toolset.Result{Text: "[no matching lines]"}
	}
	return toolset.Result{Text: strings.TrimSuffix(b.String(), "\n")}
}

func renderGrep(out any, in map[string]any) toolset.Result {
	o := toObject(out)
	var b strings.Builder
	for _, item := range o.list("matches") {
		m := toObject(item)
		n := m.number("line_number")
		before := m.list("context_before")
		for i, line := range before {
			fmt.Fprintf(&b, "%s-%d-%v\n", m.text("file"), n-len(before)+i, line)
		}
		fmt.Fprintf(&b, "%s:%d:%s\n", m.text("file"), n, m.text("line_content"))
		for i, line := range m.list("context_after") {
			fmt.Fprintf(&b, "%s-%d-%v\n", m.text("file"), n+1+i, line)
		}
	}
	r := toolset.Result{Text: strings.TrimSuffix(b.String(), "\n")}
	if r.Text == "" {
		r.Text = "[no matches]"
	}
	if more, _ := o["truncated"].(bool); more {
		r.Text = addNote(r.Text, "there are more matches; continue with offset %d",
			object(in).number("offset")+o.number("match_count"))
	}
	return r
}

// renderPaths shows a list of files, one per line.
func renderPaths(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	var b strings.Builder
	for _, item := range o.list("files") {
		if path, ok := item.(string); ok {
			b.WriteString(path + "\n")
			continue
		}
		f := toObject(item)
		b.WriteString(f.text("path"))
		switch dir, _ := f["is_directory"].(bool); {
		case dir:
			b.WriteByte('/')
		case f.isSet("size"):
			fmt.Fprintf(&b, "\t%d", f.number("size"))
		}
		b.WriteByte('\n')
	}
	r := toolset.Result{Text: strings.TrimSuffix(b.String(), "\n")}
	if r.Text == "" {
		r.Text = "[nothing found]"
	}
	if more, _ := o["truncated"].(bool); more {
		r.Text = addNote(r.Text, "the list is truncated; narrow the path or pattern")
	}
	return r
}

func renderContext(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	return renderJSON(object{"text": o.text("data"), "version": o.text("version"), "home_dir": o.text("home_dir"),
		"workspace": o["workspace"]})
}

func renderAction(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	if action := o.text("action_performed"); action != "" {
		return toolset.Result{Text: "done: " + action}
	}
	return toolset.Result{Text: "done"}
}

func renderSnapshot(out any, _ map[string]any) toolset.Result {
	o := toObject(out)
	if changed, _ := o["diff"].(bool); changed && o.text("snapshot") == "" {
		return toolset.Result{Text: addNote("", "no changes on %s", o.text("url"))}
	}
	return toolset.Result{Text: fmt.Sprintf("%s\n%s\n\n%s", o.text("title"), o.text("url"), o.text("snapshot"))}
}
