package kernel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Types of outputs. The first four are nbformat's. The others are events that change
// earlier outputs; Fold applies them.
const (
	Stream        = "stream"
	ExecuteResult = "execute_result"
	DisplayData   = "display_data"
	Error         = "error"

	UpdateDisplay = "update_display_data" // replaces the data of all outputs with this DisplayID
	ClearOutput   = "clear_output"        // removes all earlier outputs; with Wait only before the next one
	Dropped       = "dropped"             // Bytes of output were omitted here
)

// Output is one output of a cell. The fields that are set depend on Type. Its JSON has the
// form of nbformat 4.
type Output struct {
	Type string `json:"output_type"`
	Name string `json:"name"` // Stream: stdout or stderr
	Text string `json:"text"` // Stream

	Data           map[string]any `json:"data"`            // ExecuteResult, DisplayData, UpdateDisplay: by media type
	Metadata       map[string]any `json:"metadata"`        // of Data
	ExecutionCount int            `json:"execution_count"` // ExecuteResult
	DisplayID      string         // DisplayData, UpdateDisplay; empty: none

	EName     string   `json:"ename"`     // Error
	EValue    string   `json:"evalue"`    // Error
	Traceback []string `json:"traceback"` // Error, without color codes

	Wait  bool  // ClearOutput
	Bytes int64 // Dropped
}

// MarshalJSON encodes only the fields that nbformat requires for the type.
func (o Output) MarshalJSON() ([]byte, error) {
	switch o.Type {
	case Stream:
		return json.Marshal(struct {
			Type string `json:"output_type"`
			Name string `json:"name"`
			Text string `json:"text"`
		}{o.Type, o.Name, o.Text})
	case Error:
		return json.Marshal(struct {
			Type      string   `json:"output_type"`
			EName     string   `json:"ename"`
			EValue    string   `json:"evalue"`
			Traceback []string `json:"traceback"`
		}{o.Type, o.EName, o.EValue, append([]string{}, o.Traceback...)})
	case ClearOutput:
		return json.Marshal(struct {
			Type string `json:"output_type"`
			Wait bool   `json:"wait"`
		}{o.Type, o.Wait})
	case Dropped:
		return json.Marshal(struct {
			Type  string `json:"output_type"`
			Bytes int64  `json:"bytes"`
		}{o.Type, o.Bytes})
	}
	rich := struct {
		Type      string            `json:"output_type"`
		Data      map[string]any    `json:"data"`
		Metadata  map[string]any    `json:"metadata"`
		Count     *int              `json:"execution_count,omitempty"`
		Transient map[string]string `json:"transient,omitempty"`
	}{Type: o.Type, Data: o.Data, Metadata: o.Metadata}
	if rich.Data == nil {
		rich.Data = map[string]any{}
	}
	if rich.Metadata == nil {
		rich.Metadata = map[string]any{}
	}
	if o.Type == ExecuteResult {
		rich.Count = &o.ExecutionCount
	}
	if o.Type == UpdateDisplay {
		rich.Transient = map[string]string{"display_id": o.DisplayID}
	}
	return json.Marshal(rich)
}

// content is the union of the contents of output messages.
type content struct {
	Name           string         `json:"name"`
	Text           string         `json:"text"`
	Data           map[string]any `json:"data"`
	Metadata       map[string]any `json:"metadata"`
	ExecutionCount int            `json:"execution_count"`
	Transient      struct {
		DisplayID string `json:"display_id"`
	} `json:"transient"`
	EName     string   `json:"ename"`
	EValue    string   `json:"evalue"`
	Traceback []string `json:"traceback"`
	Wait      bool     `json:"wait"`
}

// decodeOutput converts an iopub message to an output. It returns false for other messages,
// including comm messages: the fallback text of a widget is a separate display_data.
func decodeOutput(m *message) (Output, bool) {
	switch m.head.Type {
	case Stream, ExecuteResult, DisplayData, UpdateDisplay, Error, ClearOutput:
	default:
		return Output{}, false
	}
	if m.cut != nil {
		return decodeTruncated(m), true
	}
	var c content
	// Keep numbers as written: an ID of 20 digits is not a float.
	d := json.NewDecoder(bytes.NewReader(m.content))
	d.UseNumber()
	if err := d.Decode(&c); err != nil {
		return Output{}, false
	}
	switch o := (Output{Type: m.head.Type}); o.Type {
	case Stream:
		o.Name, o.Text = c.Name, c.Text
		return o, o.Text != ""
	case Error:
		return decodeError(c.EName, c.EValue, c.Traceback), true
	case ClearOutput:
		o.Wait = c.Wait
		return o, true
	default:
		o.Data, o.Metadata, o.ExecutionCount, o.DisplayID = c.Data, c.Metadata, c.ExecutionCount, c.Transient.DisplayID
		if o.Metadata == nil {
			o.Metadata = map[string]any{}
		}
		return o, o.Data != nil
	}
}

// noInput is the error of code that requests input.
const noInput = "input is not available: the code runs without a terminal; set the value in the code"

// decodeError returns an error output without color codes.
func decodeError(name, value string, traceback []string) Output {
	o := Output{Type: Error, EName: name, EValue: stripEscapes(value), Traceback: traceback}
	for i, line := range traceback {
		traceback[i] = stripEscapes(line)
	}
	if name == "StdinNotImplementedError" && o.EValue != "" {
		explainInput(&o)
	}
	return o
}

// explainInput replaces the kernel's message, which refers to "this frontend", and removes
// the part of the traceback inside the kernel.
func explainInput(o *Output) {
	o.Traceback = slices.DeleteFunc(o.Traceback, func(s string) bool { return strings.Contains(s, "raise "+o.EName) })
	for i, line := range o.Traceback {
		o.Traceback[i] = strings.ReplaceAll(line, o.EValue, noInput)
	}
	o.EValue = noInput
}

// escapes matches terminal control sequences: CSI, OSC and two-byte sequences.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])`)
})

func stripEscapes(s string) string {
	if strings.IndexByte(s, 0x1b) < 0 {
		return s
	}
	return escapes().ReplaceAllString(s, "")
}

// decodeTruncated converts a message of which only the ends were kept: to both ends of a
// stream's text, or to a note for other outputs.
func decodeTruncated(m *message) Output {
	if m.head.Type != Stream {
		return omittedOutput(m.head.Type, m.size)
	}
	o := Output{Type: Stream, Name: "stdout"}
	d := json.NewDecoder(bytes.NewReader(m.content))
	key := ""
	for {
		token, err := d.Token()
		if err != nil {
			break // inside the long string
		}
		s, _ := token.(string)
		if key == "name" && s != "" {
			o.Name = s
		}
		key = s
	}
	first := m.content[min(d.InputOffset(), int64(len(m.content))):]
	if i := bytes.IndexByte(first, '"'); i >= 0 {
		o.Text = partialString(first[i+1:])
	}
	o.Text += "\n[… " + formatSize(m.size-2*keepFrame) + " omitted …]\n" + partialString(afterEscape(m.cut))
	return o
}

// omittedOutput replaces an output that is too large.
func omittedOutput(kind string, n int64) Output {
	note := fmt.Sprintf("[output of %s omitted: too large]", formatSize(n))
	switch kind {
	case Error:
		return Output{Type: Error, EName: "Error", EValue: note, Traceback: []string{note}}
	case Stream:
		return Output{Type: Stream, Name: "stdout", Text: note + "\n"}
	}
	return Output{Type: kind, Data: map[string]any{"text/plain": note}, Metadata: map[string]any{}}
}

// partialString decodes the inside of a JSON string up to its closing quote or the end of b.
func partialString(b []byte) string {
	end := 0
	for end < len(b) && b[end] != '"' {
		step := 1
		if b[end] == '\\' {
			step = 2
			if end+1 < len(b) && b[end+1] == 'u' {
				step = 6
			}
		}
		if end+step > len(b) {
			break
		}
		end += step
	}
	quoted := append(append([]byte{'"'}, b[:end]...), '"')
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return ""
	}
	return strings.TrimRight(s, "\ufffd")
}

// afterEscape skips to a place that is certainly not inside an escape sequence or a
// character.
func afterEscape(b []byte) []byte {
	const longest = len(`\u0000`)
	clear := 0
	for i, c := range b {
		if clear >= longest && c&0xc0 != 0x80 {
			return b[i:]
		}
		if clear++; c == '\\' {
			clear = 0
		}
	}
	return nil
}

// formatSize formats a number of bytes.
func formatSize(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
}

// Plot returns the PNG in the data of an output, or nil.
func Plot(data map[string]any) []byte {
	text, _ := data["image/png"].(string)
	if text == "" || len(text) > maxPlot {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
	if err != nil {
		return nil
	}
	return b
}

// maxPlot limits the base64 of a plot.
const maxPlot = 3 << 20
