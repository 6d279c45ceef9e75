package tab

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Entry is an entry of the console of a page.
type Entry struct {
	Type   string    `json:"type" doc:"log, info, warning, error or debug"`
	Text   string    `json:"text"`
	Time   time.Time `json:"timestamp"`
	URL    string    `json:"url" doc:"URL of the script"`
	Line   int       `json:"line" doc:"Line of the script, from 1; 0 if unknown"`
	Source string    `json:"source" doc:"console, exception, or a component of the browser such as network"`
}

// Console returns the console, oldest entry first, and optionally clears it.
func (t *Tab) Console(clear bool) []Entry {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	list := slices.Clone(t.console)
	if clear {
		t.console = nil
	}
	return list
}

func (t *Tab) addEntry(e Entry) {
	e.Text = clip(e.Text)
	t.console = append(t.console, e)
	if len(t.console) > maxConsole {
		t.console = t.console[1:]
	}
	t.b.notify()
}

type stackTrace struct {
	Frames []struct {
		URL  string `json:"url"`
		Line int    `json:"lineNumber"`
	} `json:"callFrames"`
}

func (s *stackTrace) top() (string, int) {
	if s == nil || len(s.Frames) == 0 {
		return "", 0
	}
	return s.Frames[0].URL, s.Frames[0].Line + 1
}

// levels maps the kinds of console calls.
var levels = map[string]string{
	"log": "log", "info": "info", "warning": "warning", "error": "error", "debug": "debug", "assert": "error", "verbose": "debug",
}

func level(kind string) string {
	if l := levels[kind]; l != "" {
		return l
	}
	return "log"
}

func (t *Tab) consoleCalled(e cdp.Event) {
	p := decode[struct {
		Type  string            `json:"type"`
		Args  []json.RawMessage `json:"args"`
		Time  float64           `json:"timestamp"`
		Stack *stackTrace       `json:"stackTrace"`
	}](e)
	if p.Type == "clear" || p.Type == "endGroup" {
		return
	}
	var parts []string
	for _, a := range p.Args {
		parts = append(parts, rawText(a))
	}
	url, line := p.Stack.top()
	t.addEntry(Entry{Type: level(p.Type), Text: format(parts), Time: millis(p.Time), URL: url, Line: line, Source: "console"})
}

// format replaces the placeholders of a console message.
func format(parts []string) string {
	if len(parts) < 2 || !strings.Contains(parts[0], "%") {
		return strings.Join(parts, " ")
	}
	var b strings.Builder
	text, rest := parts[0], parts[1:]
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 || i == len(text)-1 {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:i])
		kind := text[i+1]
		text = text[i+2:]
		switch {
		case strings.IndexByte("sdifoO", kind) >= 0 && len(rest) > 0:
			b.WriteString(rest[0])
			rest = rest[1:]
		case kind == 'c' && len(rest) > 0:
			rest = rest[1:]
		case kind == '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			b.WriteByte(kind)
		}
	}
	return strings.Join(append([]string{b.String()}, rest...), " ")
}

func (t *Tab) exceptionThrown(e cdp.Event) {
	p := decode[struct {
		Time    float64 `json:"timestamp"`
		Details struct {
			Text      string          `json:"text"`
			URL       string          `json:"url"`
			Line      int             `json:"lineNumber"`
			Exception json.RawMessage `json:"exception"`
			Stack     *stackTrace     `json:"stackTrace"`
		} `json:"exceptionDetails"`
	}](e)
	d := p.Details
	text := d.Text
	if d.Exception != nil {
		text = strings.TrimSpace(text + " " + rawText(d.Exception))
	}
	url, line := d.URL, d.Line+1
	if url == "" {
		url, line = d.Stack.top()
	}
	t.addEntry(Entry{Type: "error", Text: text, Time: millis(p.Time), URL: url, Line: line, Source: "exception"})
}

func (t *Tab) logAdded(e cdp.Event) {
	p := decode[struct {
		Entry struct {
			Source string  `json:"source"`
			Level  string  `json:"level"`
			Text   string  `json:"text"`
			Time   float64 `json:"timestamp"`
			URL    string  `json:"url"`
			Line   int     `json:"lineNumber"`
		} `json:"entry"`
	}](e)
	n := p.Entry
	t.addEntry(Entry{Type: level(n.Level), Text: n.Text, Time: millis(n.Time), URL: n.URL, Line: n.Line, Source: n.Source})
}

func millis(ms float64) time.Time { return time.UnixMicro(int64(ms * 1000)).UTC() }

// preview is the browser's short description of an object.
type preview struct {
	Subtype    string `json:"subtype"`
	Desc       string `json:"description"`
	Overflow   bool   `json:"overflow"`
	Properties []struct {
		Name  string   `json:"name"`
		Type  string   `json:"type"`
		Value string   `json:"value"`
		Inner *preview `json:"valuePreview"`
	} `json:"properties"`
}

func (p *preview) text() string {
	if p.Subtype != "" && p.Subtype != "array" {
		return p.Desc
	}
	var parts []string
	for _, q := range p.Properties {
		value := q.Value
		if q.Inner != nil {
			value = q.Inner.text()
		}
		if p.Subtype == "array" {
			parts = append(parts, value)
		} else {
			parts = append(parts, q.Name+": "+value)
		}
	}
	if p.Overflow {
		parts = append(parts, "…")
	}
	if p.Subtype == "array" {
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
