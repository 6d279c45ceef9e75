package kernel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Kinds of output. The first four are nbformat's; the others are events that
// change outputs already given, and Fold applies them.
const (
	Stream        = "stream"
	ExecuteResult = "execute_result"
	DisplayData   = "display_data"
	Error         = "error"

	UpdateDisplay = "update_display_data" // replaces the data of all outputs with this DisplayID
	ClearOutput   = "clear_output"        // removes all outputs so far, with Wait only when the next one comes
	Dropped       = "dropped"             // Bytes of output were left out here
)

// Output is one output of a cell. Which fields are set depends on Type. It
// marshals as nbformat 4 wants it.
type Output struct {
	Type string

	Name string // Stream: stdout or stderr
	Text string // Stream

	Data           map[string]any // ExecuteResult, DisplayData, UpdateDisplay: by media type
	Metadata       map[string]any // of Data
	ExecutionCount int            // ExecuteResult
	DisplayID      string         // DisplayData, UpdateDisplay: empty when it has none

	EName     string   // Error
	EValue    string   // Error
	Traceback []string // Error, without colour codes

	Wait  bool  // ClearOutput
	Bytes int64 // Dropped
}

// MarshalJSON writes the fields that nbformat requires for the type and no other.
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

// content is the union of the contents of the messages that carry output.
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

// decodeOutput turns an iopub message into an output. It answers false for a
// message that carries none, comm messages among them: what a widget shows
// without its front end comes as display_data of its own.
func decodeOutput(m *message) (Output, bool) {
	switch m.head.Type {
	case Stream, ExecuteResult, DisplayData, UpdateDisplay, Error, ClearOutput:
	default:
		return Output{}, false
	}
	if m.cut != nil {
		return salvage(m), true
	}
	var c content
	// Numbers stay as they were written: an identifier of 20 digits is not a float.
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

// noInput is what code learns that asks for input: there is nobody to ask.
const noInput = "input is not available: nobody can type while the code runs; put the value into the code instead"

// decodeError makes an error output without colour codes.
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

// explainInput puts our words in place of the kernel's, which speak of "this
// frontend", and takes out the part of the traceback that is inside the kernel.
func explainInput(o *Output) {
	o.Traceback = slices.DeleteFunc(o.Traceback, func(s string) bool { return strings.Contains(s, "raise "+o.EName) })
	for i, line := range o.Traceback {
		o.Traceback[i] = strings.ReplaceAll(line, o.EValue, noInput)
	}
	o.EValue = noInput
}

// escapes matches terminal control sequences: CSI, OSC and two-byte ones.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])`)
})

func stripEscapes(s string) string {
	if strings.IndexByte(s, 0x1b) < 0 {
		return s
	}
	return escapes().ReplaceAllString(s, "")
}

// salvage makes the best of a message too long to keep: both ends of a stream's
// text, and of anything else a note.
func salvage(m *message) Output {
	if m.head.Type != Stream {
		return omittedOutput(m.head.Type, m.size)
	}
	o := Output{Type: Stream, Name: "stdout"}
	d := json.NewDecoder(bytes.NewReader(m.content))
	key := ""
	for {
		token, err := d.Token()
		if err != nil {
			break // in the middle of the long string
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
	o.Text += "\n[… " + formatSize(m.size-2*keepFrame) + " left out …]\n" + partialString(afterEscape(m.cut))
	return o
}

// omittedOutput stands for an output that is too long to be shown.
func omittedOutput(kind string, n int64) Output {
	note := fmt.Sprintf("[output of %s left out: too long]", formatSize(n))
	switch kind {
	case Error:
		return Output{Type: Error, EName: "Error", EValue: note, Traceback: []string{note}}
	case Stream:
		return Output{Type: Stream, Name: "stdout", Text: note + "\n"}
	}
	return Output{Type: kind, Data: map[string]any{"text/plain": note}, Metadata: map[string]any{}}
}

// partialString decodes the inside of a JSON string up to its closing quote, or
// as far as it goes if that was cut off.
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

// afterEscape skips to where b cannot be inside an escape sequence or a letter.
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

// formatSize writes a number of bytes for people.
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
