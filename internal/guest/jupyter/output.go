package jupyter

import (
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// Output is one output of a cell in notebook format.
type Output struct {
	kernel.StreamFields
	kernel.DataFields
	ExecutionCount *int `json:"execution_count" doc:"Of a result: the number of its cell"`
	kernel.ErrorFields
	Transient *map[string]any `json:"transient,omitempty" doc:"In events: display_id, which later events use to update this output"`
	Wait      *bool           `json:"wait,omitempty" doc:"In clear_output events: clear only when the next output arrives"`
}

func newOutput(o kernel.Output) Output {
	if o.Type == kernel.Dropped {
		o = kernel.Fold([]kernel.Output{o})[0]
	}
	var w Output
	w.StreamFields, w.DataFields, w.ErrorFields = kernel.OutputFields(o)
	switch o.Type {
	case kernel.ClearOutput:
		w.Wait = &o.Wait
	case kernel.ExecuteResult:
		w.ExecutionCount = &o.ExecutionCount
	}
	if w.Data != nil && o.DisplayID != "" {
		w.Transient = &map[string]any{"display_id": o.DisplayID}
	}
	return w
}

func (o outcome) render(code string) ExecuteOut {
	out := ExecuteOut{KernelName: o.kernel, Status: o.status, Code: code, Outputs: make([]Output, 0, len(o.outputs))}
	for _, one := range o.outputs {
		w := newOutput(one)
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

// Picture returns the first plot of the cell, or nil.
func (o ExecuteOut) Picture() []byte {
	for _, out := range o.Outputs {
		if b := kernel.Plot(op.Value(out.Data)); b != nil {
			return b
		}
	}
	return nil
}

// Picture returns the first plot of the cell that has ended, or nil.
func (e ExecuteEvent) Picture() []byte { return op.Value(e.Result).Picture() }
