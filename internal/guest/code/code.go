// Package code runs code of all languages through one operation. It routes a call to the
// service of the language and converts the results to a common form. It owns no process.
package code

import (
	"context"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// Language runs code of one language.
type Language interface {
	// Run runs a cell and calls emit, which may be nil, for each output, including the value
	// of the last expression. The result has all outputs in their final form.
	Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error)
	// About returns the version of the language and details.
	About(ctx context.Context) (version string, details map[string]any, err error)
}

// Config of the service.
type Config struct {
	Python Language
	Node   Language
}

// Service routes code to its language.
type Service struct{ Config }

// New returns the service.
func New(c Config) *Service { return &Service{c} }

// maxTimeout is the maximum timeout in seconds.
const maxTimeout = 300

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	execute := op.New(op.Spec{Name: "code_execute", Route: "POST /v1/code/execute", Tag: "code", SDK: "code.execute_code",
		Doc: "Run Python or JavaScript. With session_id or stateful, variables are kept between calls. The value " +
			"of the last expression is among the outputs. " +
			"With stream=true the outputs are sent as events as they are produced: output (including clear_output and " +
			"update_display_data, which change earlier outputs, and dropped in place of omitted ones), then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "code_info", Route: "GET /v1/code/info", Tag: "code", SDK: "code.get_info", ReadOnly: true,
			Doc: "List the languages that code can be run in."}, s.Info),
	}
}

// Close does nothing: the languages own the processes.
func (s *Service) Close() error { return nil }

// language returns the service of a language.
func (s *Service) language(name string) (Language, error) {
	l := map[string]Language{"python": s.Python, "javascript": s.Node}[name]
	if l == nil {
		return nil, op.Errorf(op.Invalid, "unsupported language %q; use python or javascript", name)
	}
	return l, nil
}

// ExecuteIn is code to run.
type ExecuteIn struct {
	Language  string  `json:"language" enum:"python,javascript" doc:"Language of the code"`
	Code      string  `json:"code" doc:"Code to run"`
	Timeout   *int    `json:"timeout" minimum:"1" maximum:"300" doc:"Seconds until the code is interrupted. Default: 30"`
	Cwd       *string `json:"cwd" doc:"Working directory; a session keeps it. Default: the workspace"`
	Stateful  bool    `json:"stateful" default:"false" doc:"Keep variables: run in session_id, or in a new session"`
	SessionID *string `json:"session_id" doc:"Session of this language to run in; created if it does not exist"`
}

// ExecuteOut is the result of the code.
type ExecuteOut struct {
	Language  string    `json:"language" enum:"python,javascript" doc:"Language of the code"`
	Status    string    `json:"status" enum:"ok,error,timeout" doc:"How the code ended"`
	Outputs   []Output  `json:"outputs" doc:"Printed text, the value of the last expression, displays and errors, in order"`
	Code      string    `json:"code" doc:"The code"`
	Stdout    *string   `json:"stdout" doc:"Standard output"`
	Stderr    *string   `json:"stderr" doc:"Standard error"`
	ExitCode  *int      `json:"exit_code" doc:"0 on success, 1 after an error, 124 after a timeout, or the exit code of the process"`
	Traceback *[]string `json:"traceback" doc:"Stack trace of the last error"`
	SessionID *string   `json:"session_id" doc:"Session that ran the code"`
}

// Output is one output in notebook format.
type Output struct{ kernel.Output }

// SchemaOp describes an output.
func (Output) SchemaOp() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "object", AdditionalProperties: &jsonschema.Schema{}, Required: []string{"output_type"},
		Description: "An output in notebook format: stream (name, text), execute_result and display_data (data by " +
			"media type, metadata), error (ename, evalue, traceback)",
		Properties: map[string]*jsonschema.Schema{"output_type": {Type: "string"}},
	}
}

// ExecuteEvent is the data of an event of streamed code.
type ExecuteEvent struct {
	Output Output      `json:"output,omitzero" doc:"In output events: the next output"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result events: the reply as without stream, with all outputs"`
}

// Picture returns the first plot of the code, or nil.
func (o ExecuteOut) Picture() []byte {
	for _, out := range o.Outputs {
		if b := kernel.Plot(out.Data); b != nil {
			return b
		}
	}
	return nil
}

// Picture returns the first plot of the code that has ended, or nil.
func (e ExecuteEvent) Picture() []byte { return op.Value(e.Result).Picture() }

// Execute runs code.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	return s.run(ctx, in, nil)
}

// ExecuteStream runs code and sends its outputs as they are produced.
func (s *Service) ExecuteStream(ctx context.Context, in ExecuteIn, send func(op.Event) error) error {
	out, err := s.run(ctx, in, func(o kernel.Output) error {
		return send(op.Event{Name: "output", Data: ExecuteEvent{Output: Output{o}}})
	})
	if err != nil {
		return err
	}
	return send(op.Event{Name: "result", Data: ExecuteEvent{Result: &out}})
}

func (s *Service) run(ctx context.Context, in ExecuteIn, emit func(kernel.Output) error) (ExecuteOut, error) {
	l, err := s.language(in.Language)
	if err != nil {
		return ExecuteOut{}, err
	}
	c := kernel.Cell{
		Code: in.Code, Session: op.Value(in.SessionID), Stateful: in.Stateful, Dir: op.Value(in.Cwd),
		Timeout: kernel.TimeoutOf(op.Value(in.Timeout)),
	}
	r, err := l.Run(ctx, c, emit)
	if err != nil {
		return ExecuteOut{}, err
	}
	return convert(in, r), nil
}

// convert converts a result to the common form.
func convert(in ExecuteIn, r kernel.Result) ExecuteOut {
	stdout, stderr := kernel.Streams(r.Outputs, false)
	out := ExecuteOut{
		Language: in.Language, Code: in.Code, Status: r.Status, ExitCode: &r.ExitCode,
		Stdout: &stdout, Stderr: &stderr, Outputs: make([]Output, 0, len(r.Outputs)),
	}
	for _, o := range r.Outputs {
		out.Outputs = append(out.Outputs, Output{o})
		if o.Type == kernel.Error {
			out.Traceback = &o.Traceback
		}
	}
	if r.Session != "" {
		out.SessionID = &r.Session
	}
	return out
}

// Info lists the languages.
type Info struct {
	Languages []LanguageInfo `json:"languages" doc:"The languages"`
}

// LanguageInfo describes a language.
type LanguageInfo struct {
	Language       string         `json:"language" enum:"python,javascript"`
	Description    string         `json:"description" doc:"What runs the language, or why it cannot run"`
	RuntimeVersion *string        `json:"runtime_version" doc:"Version; null if it is not installed"`
	DefaultTimeout int            `json:"default_timeout" default:"30" minimum:"1" maximum:"300" doc:"Default timeout in seconds"`
	MaxTimeout     int            `json:"max_timeout" default:"300" minimum:"1" maximum:"300" doc:"Maximum timeout in seconds"`
	Details        map[string]any `json:"details" doc:"More about the language"`
}

// Info queries the languages.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	list := []LanguageInfo{
		{Language: "python", Description: "Python in Jupyter kernels, with rich output as in a notebook"},
		{Language: "javascript", Description: "JavaScript in Node.js"},
	}
	for i := range list {
		l, err := s.language(list[i].Language)
		if err != nil {
			return Info{}, err
		}
		list[i].DefaultTimeout, list[i].MaxTimeout = int(kernel.DefaultTimeout/time.Second), maxTimeout
		version, details, err := l.About(ctx)
		if e, ok := op.AsError(err); ok {
			list[i].Description = e.Msg
			continue
		}
		if err != nil {
			return Info{}, err
		}
		list[i].RuntimeVersion, list[i].Details = &version, details
	}
	return Info{Languages: list}, nil
}
