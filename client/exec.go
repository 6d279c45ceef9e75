package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"
)

// ExecOptions are options of a command.
type ExecOptions struct {
	Dir     string
	Env     map[string]string
	Session string        // session whose directory the command uses and changes; empty: a new one
	Timeout time.Duration // time limit of the command; 0: none

	// Stdin is the command's input, as text; nil: none. A Read that blocks is
	// abandoned when the command has ended.
	Stdin          io.Reader
	Stdout, Stderr io.Writer // nil: discarded
}

// ExecResult is how a command ended.
type ExecResult struct {
	ExitCode  int
	Status    string // completed, timed_out, killed
	SessionID string
	CommandID string
	// Dropped is the number of bytes of output that were lost because they arrived too fast.
	Dropped int64
}

// execEvent is an event of a command.
type execEvent struct {
	SessionID    string `json:"session_id"`
	CommandID    string `json:"command_id"`
	Data         string `json:"data"`
	Dropped      int64  `json:"dropped"`
	Status       string `json:"status"`
	ExitCode     *int   `json:"exit_code"`
	Offset       *int64 `json:"offset"`
	StderrOffset *int64 `json:"stderr_offset"`
	Message      string `json:"message"`
}

// run is a running command.
type run struct {
	g              *Guest
	stdout, stderr io.Writer
	result         ExecResult
	offset, errOff int64
	ended          bool
	silent         time.Time // start of the current period without a response of the sandbox
}

// Exec runs a command line in bash and streams its output. It returns when the command
// has ended; an exit code other than 0 is not an error. If ctx ends first, the command
// is killed.
func (g *Guest) Exec(ctx context.Context, command string, o ExecOptions) (ExecResult, error) {
	r := &run{g: g, stdout: orDiscard(o.Stdout), stderr: orDiscard(o.Stderr), result: ExecResult{ExitCode: -1}}
	in := map[string]any{"command": command}
	if o.Dir != "" {
		in["exec_dir"] = o.Dir
	}
	if len(o.Env) > 0 {
		in["env"] = o.Env
	}
	if o.Session != "" {
		in["session_id"] = o.Session
	}
	if o.Timeout > 0 {
		in["hard_timeout"] = o.Timeout.Seconds()
	}
	body, err := json.Marshal(in)
	if err != nil {
		return r.result, err
	}
	res, err := g.send(ctx, http.MethodPost, "/v1/bash/exec?stream=true", body,
		http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}})
	if err != nil {
		return r.result, err
	}
	defer res.Body.Close()
	under, abort := context.WithCancelCause(ctx)
	defer context.AfterFunc(under, func() { res.Body.Close() })()
	fed := make(chan struct{})
	err = r.follow(res, func() {
		go func() {
			defer close(fed)
			if err := r.feed(under, o.Stdin); err != nil {
				abort(err)
			}
		}()
	})
	// The stream broke, but the command still runs: poll for the rest.
	for !r.ended && err != nil && r.result.CommandID != "" && under.Err() == nil && !final(err) {
		err = r.poll(under)
	}
	if cause := context.Cause(under); cause != nil && !r.ended {
		err = cause
	}
	abort(nil)
	if r.result.CommandID != "" && o.Stdin == nil {
		<-fed
	}
	if !r.ended {
		r.kill(ctx)
	}
	return r.result, err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// finalError is a failure after which the client does not poll.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

func final(err error) bool {
	_, ok := errors.AsType[*finalError](err)
	return ok
}

// follow reads the events of the command and calls begun when the command has started.
func (r *run) follow(res *http.Response, begun func()) error {
	if media := res.Header.Get("Content-Type"); len(media) < 17 || media[:17] != "text/event-stream" {
		if err := decode(res, nil); err != nil {
			return err
		}
		return errors.New("the server does not stream commands; it is not Cove's own")
	}
	for raw, err := range events(res.Body) {
		if err != nil {
			return err
		}
		var e execEvent
		if err := json.Unmarshal([]byte(raw.data), &e); err != nil {
			return err
		}
		switch raw.name {
		case "start":
			r.result.SessionID, r.result.CommandID = e.SessionID, e.CommandID
			begun()
		case "stdout", "stderr":
			if err := r.pass(raw.name, e); err != nil {
				return err
			}
		case "exit":
			r.end(e.Status, e.ExitCode)
			return nil
		case "timeout":
			return errMore
		case "error":
			return &finalError{&Error{Status: http.StatusOK, Message: e.Message}}
		}
	}
	return io.ErrUnexpectedEOF
}

// write writes a chunk of output.
func (r *run) pass(name string, e execEvent) error {
	w := r.stdout
	if name == "stderr" {
		w = r.stderr
	}
	r.result.Dropped += e.Dropped
	if e.Offset != nil {
		r.offset = *e.Offset
	}
	if e.StderrOffset != nil {
		r.errOff = *e.StderrOffset
	}
	if _, err := io.WriteString(w, e.Data); err != nil {
		return &finalError{err}
	}
	return nil
}

func (r *run) end(status string, code *int) {
	r.result.Status = status
	if code != nil {
		r.result.ExitCode, r.ended = *code, true
	}
}

// poll reads the output from the position at which the stream broke.
func (r *run) poll(ctx context.Context) error {
	var out struct {
		Stdout        string `json:"stdout"`
		Stderr        string `json:"stderr"`
		Offset        int64  `json:"offset"`
		StderrOffset  int64  `json:"stderr_offset"`
		Dropped       int64  `json:"dropped"`
		StderrDropped int64  `json:"stderr_dropped"`
		More          bool   `json:"more"`
		Command       struct {
			Status   string `json:"status"`
			ExitCode *int   `json:"exit_code"`
		} `json:"command"`
	}
	err := r.g.call(ctx, http.MethodPost, "/v1/bash/output", map[string]any{
		"session_id": r.result.SessionID, "command_id": r.result.CommandID, "offset": r.offset, "stderr_offset": r.errOff, "wait": true,
	}, &out)
	if err != nil {
		return r.lost(ctx, err)
	}
	r.silent = time.Time{}
	for _, p := range []struct {
		name string
		e    execEvent
	}{{"stdout", execEvent{Data: out.Stdout, Dropped: out.Dropped, Offset: &out.Offset}},
		{"stderr", execEvent{Data: out.Stderr, Dropped: out.StderrDropped, StderrOffset: &out.StderrOffset}}} {
		if err := r.pass(p.name, p.e); err != nil {
			return err
		}
	}
	if out.Command.ExitCode != nil && !out.More {
		r.end(out.Command.Status, out.Command.ExitCode)
		return nil
	}
	return errMore
}

// lost decides whether to retry after a failure.
func (r *run) lost(ctx context.Context, err error) error {
	if r.silent.IsZero() {
		r.silent = time.Now()
	}
	e, ok := errors.AsType[*Error](err)
	if ok && e.Status < 500 || time.Since(r.silent) > wakeLimit {
		// The command is unknown, or the hub is unreachable.
		return &finalError{fmt.Errorf("the command was lost: %w", err)}
	}
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond):
	}
	return err
}

// errMore means that the command still runs.
var errMore = errors.New("the command still runs")

// feed forwards the input and closes it at its end. Only a failure to read the input is an error: a
// command need not consume all of it.
func (r *run) feed(ctx context.Context, in io.Reader) error {
	if in != nil {
		refused := false
		err := text(in, func(s string) error {
			err := r.write(ctx, s, false)
			refused = err != nil
			return err
		})
		if err != nil {
			if refused {
				return nil
			}
			return fmt.Errorf("read standard input: %w", err)
		}
	}
	_ = r.write(ctx, "", true)
	return nil
}

func (r *run) write(ctx context.Context, s string, end bool) error {
	return r.g.call(ctx, http.MethodPost, "/v1/bash/write", map[string]any{"session_id": r.result.SessionID,
		"command_id": r.result.CommandID, "input": s, "eof": end}, nil)
}

// text reads complete characters and forwards them. It fails for invalid text instead of sending
// modified data.
func text(in io.Reader, pass func(string) error) error {
	buf := make([]byte, 0, 32<<10)
	for {
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		whole := len(buf)
		if err == nil {
			whole = wholeRunes(buf)
		}
		if whole > 0 {
			if !utf8.Valid(buf[:whole]) {
				return errors.New("the input is not text; upload it as a file instead")
			}
			if err := pass(string(buf[:whole])); err != nil {
				return err
			}
			buf = append(buf[:0], buf[whole:]...)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// wholeRunes returns the length of b without an incomplete character at its end.
func wholeRunes(b []byte) int {
	for i := 1; i <= min(utf8.UTFMax, len(b)); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// killPatience is the time limit for killing an abandoned command.
const killPatience = 5 * time.Second

// kill kills an abandoned command.
func (r *run) kill(ctx context.Context) {
	if r.result.CommandID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
	defer cancel()
	_ = r.g.call(ctx, http.MethodPost, "/v1/bash/kill", map[string]any{"session_id": r.result.SessionID,
		"command_id": r.result.CommandID, "signal": "SIGKILL"}, nil)
}
