package jupyter

import (
	"github.com/cove-sandbox/cove/internal/kernel"
)

// Output is one output of a cell, as a notebook keeps it.
type Output struct {
	Type           string          `json:"output_type" doc:"stream, execute_result, display_data or error"`
	Name           *string         `json:"name" doc:"Of a stream: stdout or stderr"`
	Text           *string         `json:"text" doc:"Of a stream"`
	Data           *map[string]any `json:"data" doc:"Of a result or display: its forms by media type; pictures are base64"`
	Metadata       *map[string]any `json:"metadata" doc:"Of a result or display"`
	ExecutionCount *int            `json:"execution_count" doc:"Of a result"`
	EName          *string         `json:"ename" doc:"Of an error: its kind"`
	EValue         *string         `json:"evalue" doc:"Of an error: its message"`
	Traceback      *[]string       `json:"traceback" doc:"Of an error, without colours"`
	Transient      *map[string]any `json:"transient,omitempty" doc:"In events: display_id, by which a later one changes this"`
	Wait           *bool           `json:"wait,omitempty" doc:"In events, of clear_output: only when the next output comes"`
}

func wire(o kernel.Output) Output {
	if o.Type == kernel.Dropped {
		o = kernel.Fold([]kernel.Output{o})[0]
	}
	w := Output{Type: o.Type}
	switch o.Type {
	case kernel.Stream:
		w.Name, w.Text = &o.Name, &o.Text
	case kernel.Error:
		w.EName, w.EValue, w.Traceback = &o.EName, &o.EValue, &o.Traceback
	case kernel.ClearOutput:
		w.Wait = &o.Wait
	default:
		w.Data, w.Metadata = &o.Data, &o.Metadata
		if o.DisplayID != "" {
			w.Transient = &map[string]any{"display_id": o.DisplayID}
		}
		if o.Type == kernel.ExecuteResult {
			w.ExecutionCount = &o.ExecutionCount
		}
	}
	return w
}

func (o outcome) wire(code string) ExecuteOut {
	out := ExecuteOut{KernelName: o.kernel, Status: o.status, Code: code, Outputs: make([]Output, 0, len(o.outputs))}
	for _, one := range o.outputs {
		w := wire(one)
		w.Transient = nil
		out.Outputs = append(out.Outputs, w)
	}
	if o.session != "" {
		out.SessionID = &o.session
	}
	if o.reply.ExecutionCount > 0 {
		out.ExecutionCount = &o.reply.ExecutionCount
	}
	if o.reply.MessageID != "" {
		out.MsgID = &o.reply.MessageID
	}
	return out
}
