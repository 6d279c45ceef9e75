package kernel

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Cell is code to run in any language.
type Cell struct {
	Code     string
	Kernel   string // name of a Jupyter kernel, such as ir; empty: Python
	Session  string // empty: none, unless Stateful
	Stateful bool
	Dir      string // empty: the default directory
	Timeout  time.Duration
}

// Result is the result of a Cell.
type Result struct {
	Status   string // OK, Failed or TimedOut
	Session  string // empty: none
	ExitCode int
	Outputs  []Output
}

// Values of Result.Status.
const (
	OK       = "ok"
	Failed   = "error"
	TimedOut = "timeout"
)

// TimeoutCode is the exit code after a timeout, as in the program timeout.
const TimeoutCode = 124

// DefaultTimeout is the timeout of requests without one.
const DefaultTimeout = 30 * time.Second

// ErrTimeout is the cancel cause of code that has timed out.
var ErrTimeout = errors.New("the code timed out")

// TimeoutOf converts the timeout of a request from seconds.
func TimeoutOf(seconds int) time.Duration {
	if seconds <= 0 {
		return DefaultTimeout
	}
	return time.Duration(seconds) * time.Second
}

// FormatDuration formats a duration for messages, in seconds.
func FormatDuration(d time.Duration) string {
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprintf("%g seconds", d.Seconds())
}

// Streams returns the text written to stdout and to stderr. If errors is set, stderr
// includes the stack traces of errors, as for a script that fails.
func Streams(outputs []Output, errors bool) (stdout, stderr string) {
	var out, errs strings.Builder
	for _, o := range outputs {
		switch {
		case o.Type == Stream && o.Name == "stderr":
			errs.WriteString(o.Text)
		case o.Type == Stream:
			out.WriteString(o.Text)
		case o.Type == Error && errors:
			errs.WriteString(strings.Join(o.Traceback, "\n") + "\n")
		}
	}
	return out.String(), errs.String()
}

// StreamFields are the reply fields of a stream output.
type StreamFields struct {
	Type string  `json:"output_type" doc:"Kind of output: stream, execute_result, display_data or error"`
	Name *string `json:"name" doc:"Of a stream: stdout or stderr"`
	Text *string `json:"text" doc:"Of a stream: the text"`
}

// DataFields are the reply fields of a value.
type DataFields struct {
	Data     *map[string]any `json:"data" doc:"Of a result or display: its representations by media type; images are base64"`
	Metadata *map[string]any `json:"metadata" doc:"Of a result or display: its metadata by media type"`
}

// ErrorFields are the reply fields of an error.
type ErrorFields struct {
	EName     *string   `json:"ename" doc:"Of an error: its type"`
	EValue    *string   `json:"evalue" doc:"Of an error: its message"`
	Traceback *[]string `json:"traceback" doc:"Of an error: its stack trace, without colors"`
}

// OutputFields returns the reply fields of an output. Fields that do not apply to its
// type are nil.
func OutputFields(o Output) (s StreamFields, d DataFields, e ErrorFields) {
	s.Type = o.Type
	switch o.Type {
	case Stream:
		s.Name, s.Text = &o.Name, &o.Text
	case Error:
		e.EName, e.EValue, e.Traceback = &o.EName, &o.EValue, &o.Traceback
	case ClearOutput:
	default:
		d.Data, d.Metadata = &o.Data, &o.Metadata
	}
	return s, d, e
}

// Readiness is the state of a runtime that starts on demand.
type Readiness struct {
	Used  bool   // a call has used it
	Fault string // why the last start failed; empty: it succeeded
}

// State returns idle before the first call, failed if the last start failed, otherwise
// ready.
func (r Readiness) State() (state, why string) {
	switch {
	case r.Fault != "":
		return "failed", r.Fault
	case !r.Used:
		return "idle", "starts with the first call"
	}
	return "ready", ""
}
