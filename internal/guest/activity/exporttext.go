package activity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// sequence matches control sequences of terminals.
var sequence = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[()][A-Z0-9]|\x1b[=>78cDEHM]`)

// safe returns recorded text as HTML, without control sequences and characters that hide or reorder text.
func safe(s string) string {
	s = sequence.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029') {
			return unicode.ReplacementChar
		}
		return r
	}, s))
}

// decode parses recorded JSON. Truncated JSON has no fields.
func decode(recorded string) map[string]any {
	var fields map[string]any
	if json.Unmarshal([]byte(recorded), &fields) != nil {
		return nil
	}
	return fields
}

// text returns a text, or the lines of a list.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		lines := make([]string, len(v))
		for i, one := range v {
			lines[i] = strings.TrimSuffix(text(one), "\n")
		}
		return strings.Join(lines, "\n")
	}
	return ""
}

const maxTitle = 200

// title returns a summary of an input in one line.
func title(in map[string]any) string {
	for _, name := range []string{"code", "command", "file", "path", "url", "action_type", "selector"} {
		if line, _, _ := strings.Cut(text(in[name]), "\n"); line != "" {
			return line[:min(len(line), maxTitle)]
		}
	}
	return ""
}

// printed returns the text that a command or a cell printed.
func printed(out map[string]any) string {
	if said := text(out["output"]); said != "" {
		return said
	}
	if said := text(out["stdout"]) + text(out["stderr"]); said != "" {
		return said
	}
	list, _ := out["outputs"].([]any)
	var parts []string
	for _, v := range list {
		one, _ := v.(map[string]any)
		data, _ := one["data"].(map[string]any)
		for _, part := range []string{text(one["text"]), text(data["text/plain"]), text(one["traceback"])} {
			if part != "" {
				parts = append(parts, strings.TrimSuffix(part, "\n"))
				break
			}
		}
	}
	return strings.Join(parts, "\n")
}

const maxFields = 12

// exportFields writes the short values of an input.
func exportFields(b *bytes.Buffer, in map[string]any) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(in)), func(name string) bool {
		switch v := in[name].(type) {
		case string:
			return v == ""
		case float64, bool:
			return false
		}
		return true
	})
	if len(names) == 0 {
		return
	}
	b.WriteString("<dl>")
	for _, name := range names[:min(len(names), maxFields)] {
		fmt.Fprintf(b, `<dt class="dim">%s</dt><dd><code>%s</code></dd>`, safe(name), safe(fmt.Sprint(in[name])))
	}
	b.WriteString("</dl>")
}

// exportDiff writes a change line by line.
func exportDiff(b *bytes.Buffer, diff string) {
	if diff == "" {
		return
	}
	b.WriteString("<pre>")
	for line := range strings.Lines(diff) {
		class := ""
		switch line[0] {
		case '+':
			class = "added"
		case '-':
			class = "gone"
		case '@':
			class = "dim"
		}
		fmt.Fprintf(b, `<span class="%s">%s</span>`, class, safe(line))
	}
	b.WriteString("</pre>")
}
