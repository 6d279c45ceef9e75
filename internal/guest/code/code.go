// Package code is one door to the languages that code can be run in. It owns no
// process: it routes a call to the language's service and gives all of them one form
// of reply.
package code

import (
	"context"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
)

// Cell is code to run. It has no name of its own, so that a service can take it
// without knowing this package.
type Cell = struct {
	Code     string
	Session  string // empty: none, unless Stateful
	Stateful bool
	Dir      string // empty: the usual one
	Timeout  time.Duration
}

// Result is what became of a Cell.
type Result = struct {
	Status   string // ok, error, timeout
	Session  string // empty: none
	ExitCode int
	Outputs  []kernel.Output
}

// Language runs code of one language.
type Language interface {
	// Run runs a cell and hands its outputs to emit, which may be nil, as they come.
	// The value of the last expression is among them. The result has all of them, as
	// they stand at the end.
	Run(ctx context.Context, c Cell, emit func(kernel.Output) error) (Result, error)
	// About tells the language's version and whatever else is of interest.
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

const (
	defaultTimeout = 30
	maxTimeout     = 300
)

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	execute := op.New(op.Spec{Name: "code_execute", Route: "POST /v1/code/execute", Tag: "code", SDK: "code.execute_code",
		Doc: "Run Python or JavaScript. With session_id or stateful, variables are kept between calls. The value of the last expression is among the outputs. " +
			"With stream=true the outputs come as events while they are made: output, then result."}, s.Execute)
	return []op.Op{
		op.WithStream[ExecuteIn, ExecuteEvent](execute, s.ExecuteStream),
		op.New(op.Spec{Name: "code_info", Route: "GET /v1/code/info", Tag: "code", SDK: "code.get_info", ReadOnly: true,
			Doc: "Tell which languages code can be run in."}, s.Info),
	}
}

// Close has nothing to end: processes belong to the languages.
func (s *Service) Close() error { return nil }

// language is the service that runs one.
func (s *Service) language(name string) (Language, error) {
	l := map[string]Language{"python": s.Python, "javascript": s.Node}[name]
	if l == nil {
		return nil, op.Errorf(op.Invalid, "there is no language %q; use python or javascript", name)
	}
	return l, nil
}

// ExecuteIn is code to run.
type ExecuteIn struct {
	Language  string  `json:"language" enum:"python,javascript" doc:"Language of the code"`
	Code      string  `json:"code" doc:"What to run"`
	Timeout   *int    `json:"timeout" minimum:"1" maximum:"300" doc:"Seconds after which the code is interrupted; 30 when missing"`
	Cwd       *string `json:"cwd" doc:"Working directory, which a session keeps; the workspace when missing"`
	Stateful  bool    `json:"stateful" default:"false" doc:"Keep variables: run in a session, a new one unless session_id names one"`
	SessionID *string `json:"session_id" doc:"Session of this language to run in; made if there is none of this name"`
}

// ExecuteOut is what became of the code.
type ExecuteOut struct {
	Language  string    `json:"language" enum:"python,javascript" doc:"Language of the code"`
	Status    string    `json:"status" enum:"ok,error,timeout" doc:"How it ended"`
	Outputs   []Output  `json:"outputs" doc:"What it printed, the value of its last expression, displays and errors, in order"`
	Code      string    `json:"code" doc:"What was run"`
	Stdout    *string   `json:"stdout" doc:"All it wrote to stdout"`
	Stderr    *string   `json:"stderr" doc:"All it wrote to stderr"`
	ExitCode  *int      `json:"exit_code" doc:"0 if it ran well, 1 after an error, 124 after a timeout; the code of a process that ended by itself"`
	Traceback *[]string `json:"traceback" doc:"Of the last error"`
	SessionID *string   `json:"session_id" doc:"Session it ran in"`
}

// Output is one output, in the form of a notebook's.
type Output struct{ kernel.Output }

// SchemaOp describes an output.
func (Output) SchemaOp() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "object", AdditionalProperties: &jsonschema.Schema{}, Required: []string{"output_type"},
		Description: "An output as notebooks keep it: stream (name, text), execute_result and display_data (data by media type, metadata), error (ename, evalue, traceback)",
		Properties:  map[string]*jsonschema.Schema{"output_type": {Type: "string"}},
	}
}

// ExecuteEvent is what the events of streamed code hold.
type ExecuteEvent struct {
	Output Output      `json:"output,omitzero" doc:"In output: the next one. Beside the kinds of a notebook there are clear_output and update_display_data, which change outputs sent before, and dropped, in place of some that were left out"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result: the reply as it is without stream, all outputs included"`
}

// Execute runs code.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	return s.run(ctx, in, nil)
}

// ExecuteStream runs code and sends its outputs as they come.
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
	c := Cell{Code: in.Code, Stateful: in.Stateful, Timeout: defaultTimeout * time.Second}
	if in.Timeout != nil {
		c.Timeout = time.Duration(*in.Timeout) * time.Second
	}
	if in.SessionID != nil {
		c.Session = *in.SessionID
	}
	if in.Cwd != nil {
		c.Dir = *in.Cwd
	}
	r, err := l.Run(ctx, c, emit)
	if err != nil {
		return ExecuteOut{}, err
	}
	return unite(in, r), nil
}

// unite puts a result into the common form.
func unite(in ExecuteIn, r Result) ExecuteOut {
	out := ExecuteOut{Language: in.Language, Code: in.Code, Status: r.Status, ExitCode: &r.ExitCode}
	var stdout, stderr strings.Builder
	out.Outputs = make([]Output, 0, len(r.Outputs))
	for _, o := range r.Outputs {
		out.Outputs = append(out.Outputs, Output{o})
		switch {
		case o.Type == kernel.Stream && o.Name == "stderr":
			stderr.WriteString(o.Text)
		case o.Type == kernel.Stream:
			stdout.WriteString(o.Text)
		case o.Type == kernel.Error:
			out.Traceback = &o.Traceback
		}
	}
	out.Stdout, out.Stderr = new(stdout.String()), new(stderr.String())
	if r.Session != "" {
		out.SessionID = &r.Session
	}
	return out
}

// None is an input without fields.
type None struct{}

// Info lists the languages.
type Info struct {
	Languages []LanguageInfo `json:"languages" doc:"The languages"`
}

// LanguageInfo tells about a language.
type LanguageInfo struct {
	Language       string         `json:"language" enum:"python,javascript"`
	Description    string         `json:"description" doc:"What runs it, or why nothing does"`
	RuntimeVersion *string        `json:"runtime_version" doc:"Its version; null if it is not installed"`
	DefaultTimeout int            `json:"default_timeout" default:"30" minimum:"1" maximum:"300" doc:"Seconds that code may run unless it says otherwise"`
	MaxTimeout     int            `json:"max_timeout" default:"300" minimum:"1" maximum:"300" doc:"Seconds that code may run at most"`
	Details        map[string]any `json:"details" doc:"Whatever else is of interest"`
}

// Info asks the languages.
func (s *Service) Info(ctx context.Context, _ None) (Info, error) {
	list := []LanguageInfo{
		{Language: "python", Description: "Python in Jupyter kernels, with rich output as in a notebook"},
		{Language: "javascript", Description: "JavaScript in Node.js"},
	}
	for i := range list {
		l, err := s.language(list[i].Language)
		if err != nil {
			return Info{}, err
		}
		list[i].DefaultTimeout, list[i].MaxTimeout = defaultTimeout, maxTimeout
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
