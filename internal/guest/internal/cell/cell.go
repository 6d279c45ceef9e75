// Package cell is what the services that run code have in common: what they are asked
// to run, what became of it, and how replies show its outputs.
//
// It runs nothing and speaks no protocol.
package cell

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// Cell is code to run, in terms that any language understands.
type Cell struct {
	Code     string
	Kernel   string // of Jupyter, such as ir; empty: that of Python
	Session  string // empty: none, unless Stateful
	Stateful bool
	Dir      string // empty: the default one
	Timeout  time.Duration
}

// Result is what became of a Cell.
type Result struct {
	Status   string // OK, Failed or TimedOut
	Session  string // empty: none
	ExitCode int
	Outputs  []kernel.Output
}

// What the status of a cell can be.
const (
	OK       = "ok"
	Failed   = "error"
	TimedOut = "timeout"
)

// TimeoutCode is the exit code after a timeout, as the program timeout has it.
const TimeoutCode = 124

// DefaultTimeout is for requests that name none.
const DefaultTimeout = 30 * time.Second

// ErrTimeout is why code is interrupted whose time is up.
var ErrTimeout = errors.New("the code timed out")

// Timeout is the time limit of a request in seconds.
func Timeout(seconds int) time.Duration {
	if seconds <= 0 {
		return DefaultTimeout
	}
	return time.Duration(seconds) * time.Second
}

// Seconds writes a duration for people.
func Seconds(d time.Duration) string {
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprintf("%g seconds", d.Seconds())
}

// Streams returns all that was written to stdout and to stderr. With errors, stderr has
// their stack traces too, as where a script ends with one.
func Streams(outputs []kernel.Output, errors bool) (stdout, stderr string) {
	var out, errs strings.Builder
	for _, o := range outputs {
		switch {
		case o.Type == kernel.Stream && o.Name == "stderr":
			errs.WriteString(o.Text)
		case o.Type == kernel.Stream:
			out.WriteString(o.Text)
		case o.Type == kernel.Error && errors:
			errs.WriteString(strings.Join(o.Traceback, "\n") + "\n")
		}
	}
	return out.String(), errs.String()
}

// StreamFields are the fields of an output that is text, in a reply.
type StreamFields struct {
	Type string  `json:"output_type" doc:"Kind of output: stream, execute_result, display_data or error"`
	Name *string `json:"name" doc:"Of a stream: stdout or stderr"`
	Text *string `json:"text" doc:"Of a stream: the text"`
}

// DataFields are those of a value.
type DataFields struct {
	Data     *map[string]any `json:"data" doc:"Of a result or display: its representations by media type; images are base64"`
	Metadata *map[string]any `json:"metadata" doc:"Of a result or display: its metadata by media type"`
}

// ErrorFields are those of an error.
type ErrorFields struct {
	EName     *string   `json:"ename" doc:"Of an error: its type"`
	EValue    *string   `json:"evalue" doc:"Of an error: its message"`
	Traceback *[]string `json:"traceback" doc:"Of an error: its stack trace, without colors"`
}

// Fields returns what a reply shows of an output. Fields that its type does not have
// are null.
func Fields(o kernel.Output) (s StreamFields, d DataFields, e ErrorFields) {
	s.Type = o.Type
	switch o.Type {
	case kernel.Stream:
		s.Name, s.Text = &o.Name, &o.Text
	case kernel.Error:
		e.EName, e.EValue, e.Traceback = &o.EName, &o.EValue, &o.Traceback
	case kernel.ClearOutput:
	default:
		d.Data, d.Metadata = &o.Data, &o.Metadata
	}
	return s, d, e
}

// Readiness is what a service knows of the runtime that it starts on demand.
type Readiness struct {
	Used  bool   // a call has needed it
	Fault string // why the last start failed; empty: it did not
}

// State names the readiness: idle before the first call, failed if the last start
// failed, otherwise ready.
func (r Readiness) State() (state, why string) {
	switch {
	case r.Fault != "":
		return "failed", r.Fault
	case !r.Used:
		return "idle", "starts with the first call"
	}
	return "ready", ""
}
