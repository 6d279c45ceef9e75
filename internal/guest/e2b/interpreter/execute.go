package interpreter

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

const (
	// keepAlive is the interval of keepalive lines during a silent execution.
	keepAlive = 5 * time.Second
	// maxDuration limits an execution. Clients have their own timeouts.
	maxDuration = 24 * time.Hour
)

// setup makes Python display values in the formats that clients expect.
//
//go:embed setup.py
var setup string

type executeIn struct {
	Code     string            `json:"code"`
	Context  *string           `json:"context_id"`
	Language *string           `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

func (s *Service) execute(w http.ResponseWriter, r *http.Request) {
	var in executeIn
	if !readInto(w, r, &in) {
		return
	}
	var p *place
	switch id, language := op.Value(in.Context), op.Value(in.Language); {
	case id != "" && language != "":
		http.Error(w, "Only one of context_id or language can be provided", http.StatusBadRequest)
		return
	case id != "":
		if p = s.find(id); p == nil {
			http.Error(w, "Context "+id+" not found", http.StatusNotFound)
			return
		}
	default:
		name, ok := normalize(w, language)
		if !ok {
			return
		}
		p = s.findStandard(name)
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-r.Context().Done():
		return
	}
	out := newLines(w)
	defer out.close()
	p.count++
	out.send(map[string]any{"type": "number_of_executions", "execution_count": p.count})
	if err := s.run(r.Context(), p, in, out); err != nil {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		name, text := "ExecutionError", err.Error()
		out.send(map[string]any{"type": "error", "name": name, "value": text, "traceback": text})
	}
	out.send(map[string]any{"type": "end_of_execution"})
}

// run runs code in a context. The caller has the turn.
func (s *Service) run(ctx context.Context, p *place, in executeIn, out *lines) error {
	code := in.Code
	if p.Language == "typescript" {
		var err error
		installing := func() {
			out.output(kernel.Output{Type: kernel.Stream, Name: "stderr", Text: "Installing TypeScript\n"})
		}
		if code, err = s.StripTypes(ctx, code, installing); err != nil {
			return err
		}
	}
	language := s.language(p.Language)
	silent := func(code string) error {
		_, err := language.Run(ctx, s.cell(p, code), func(o kernel.Output) error {
			if o.Type == kernel.Stream { // the progress of an installation
				out.output(o)
			}
			return ctx.Err()
		})
		p.begun = p.begun || err == nil
		return err
	}
	if first := s.firstCode(p.Language); first != "" && !p.begun {
		if err := silent(first); err != nil {
			return err
		}
	}
	before, after := variables(p.Language, in.Env)
	if before != "" {
		if err := silent(before); err != nil {
			return err
		}
		defer func() {
			// Unset the variables even if the client has disconnected.
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepAlive)
			defer cancel()
			_, _ = language.Run(end, s.cell(p, after), nil)
		}()
	}
	if p.Language == "bash" {
		if !p.begun {
			code = "export HOME=" + quote(s.Home()) + "\n" + code
		}
		code = keepState(s.sessionOf(p), in.Env) + code
	}
	result, err := language.Run(ctx, s.cell(p, code), func(o kernel.Output) error {
		out.output(o)
		return ctx.Err()
	})
	p.begun = true
	if err == nil && result.Status == kernel.Failed && !out.failed() {
		err = errors.New("the code ended with an error")
		if p.Language == "bash" {
			err = nil // an exit code is not an error of the interpreter
		}
	}
	return err
}

// firstCode returns code that prepares a new session of a language: its home and, in Python, the formats of values.
func (s *Service) firstCode(language string) string {
	home := encode(s.Home())
	switch language {
	case "python":
		return setup + "__import__('os').environ['HOME'] = " + home
	case "javascript", "typescript":
		return "void (process.env.HOME = " + home + ")"
	case "r":
		return "Sys.setenv(HOME = " + home + ")"
	case "java":
		return `System.getProperties().put("HOME", ` + home + `);`
	}
	return ""
}

func (s *Service) cell(p *place, code string) kernel.Cell {
	c := kernel.Cell{Code: code, Kernel: kernels[p.Language], Session: s.sessionOf(p), Stateful: true, Timeout: maxDuration}
	if !p.begun {
		c.Dir = p.Cwd
	}
	return c
}

// keepState returns shell code that restores the variables, functions and working directory of the context, sets the variables
// of this execution, and saves the state without these when the shell exits.
func keepState(session string, env map[string]string) string {
	var set, restore strings.Builder
	for name, value := range env {
		if name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" {
			fmt.Fprintf(&set, "__cove_old_%s=$(declare -p %s 2> /dev/null); export %s=%s\n", name, name, name, quote(value))
			fmt.Fprintf(&restore, "unset %s; eval \"$__cove_old_%s\"; unset __cove_old_%s\n", name, name, name)
		}
	}
	return `__cove_state="${TMPDIR:-/tmp}/.` + session + `"
[ -r "$__cove_state" ] && . "$__cove_state" 2> /dev/null
__cove_save() {
` + restore.String() + `umask 077
{ declare -p | grep -v "^declare -[a-zA-Z]*r"; declare -f; printf "cd %q\n" "$PWD"; } > "$__cove_state"
}
trap '__cove_save 2> /dev/null' EXIT
` + set.String()
}

// quote returns a word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// lines sends JSON objects, one per line, and keepalive lines in between.
type lines struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	rc    *http.ResponseController
	err   error
	fault bool // an error was sent
	timer *time.Timer
	ended bool
}

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Accel-Buffering", "no")
	l := &lines{w: w, rc: http.NewResponseController(w)}
	l.timer = time.AfterFunc(keepAlive, func() { l.send(map[string]any{"type": "keepalive"}) })
	return l
}

func (l *lines) send(v map[string]any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(`{"type":"error","name":"EncodingError","value":"an output cannot be encoded","traceback":""}`)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.err != nil {
		return
	}
	l.fault = l.fault || v["type"] == "error"
	if _, l.err = l.w.Write(append(b, '\n')); l.err == nil {
		l.err = l.rc.Flush()
	}
	l.timer.Reset(keepAlive)
}

func (l *lines) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault
}

// close stops sending. The reply is not used afterwards.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.timer.Stop()
}

// formats are the names of media types in a result.
var formats = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
	"text/latex": "latex", "application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// output sends an output of the code.
func (l *lines) output(o kernel.Output) {
	switch o.Type {
	case kernel.Stream:
		if o.Text != "" {
			l.send(map[string]any{"type": o.Name, "text": o.Text, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)})
		}
	case kernel.Error:
		l.send(map[string]any{"type": "error", "name": o.EName, "value": o.EValue, "traceback": strings.Join(o.Traceback, "\n")})
	case kernel.ExecuteResult, kernel.DisplayData:
		l.send(resultOf(o))
	}
}

func resultOf(o kernel.Output) map[string]any {
	r := map[string]any{"type": "result", "is_main_result": o.Type == kernel.ExecuteResult}
	extra := map[string]any{}
	for media, value := range o.Data {
		if name, ok := formats[media]; ok {
			r[name] = value
		} else {
			extra[media] = value
		}
	}
	if text, ok := r["text"].(string); ok {
		r["text"] = unquote(text)
	}
	if len(extra) > 0 {
		r["extra"] = maps.Clone(extra)
	}
	return r
}

// unquote removes one pair of outer quotes.
func unquote(s string) string {
	if n := len(s); n >= 2 && s[0] == s[n-1] && (s[0] == '\'' || s[0] == '"') {
		return s[1 : n-1]
	}
	return s
}
