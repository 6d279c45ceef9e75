package bash

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// writeTime is how long a write may wait for a command that does not read.
const writeTime = 10 * time.Second

// input is the write end of a command's standard input.
type input struct {
	f      *os.File
	turn   chan struct{} // holds a token while a caller writes
	closed bool          // by a writer; guarded by turn
}

// WriteIn is text for the standard input of a command.
type WriteIn struct {
	SessionID string  `json:"session_id" doc:"Session of the command"`
	CommandID *string `json:"command_id" doc:"Command to write to. Default: the running command that was started last"`
	Input     string  `json:"input" doc:"Text for its standard input, sent unchanged; may be empty with eof"`
	EOF       bool    `json:"eof" default:"false" doc:"Close its standard input afterwards"`
}

// WriteResult reports what was written.
type WriteResult struct {
	SessionID string `json:"session_id"`
	CommandID string `json:"command_id"`
	Written   int    `json:"written" doc:"Number of bytes written"`
	Closed    bool   `json:"closed" doc:"Whether its standard input is now closed"`
}

// Write writes to the standard input of a running command.
func (s *Service) Write(ctx context.Context, in WriteIn) (WriteResult, error) {
	c, err := s.target(in.SessionID, in.CommandID)
	if err != nil {
		return WriteResult{}, err
	}
	out := WriteResult{SessionID: in.SessionID, CommandID: c.id}
	c.mu.Lock()
	pipe, status := c.in, c.status
	c.mu.Unlock()
	switch {
	case status == pending:
		return out, op.Errorf(op.Conflict, "command %s is still starting; try again", c.id)
	case status != running:
		return out, op.Errorf(op.Conflict, "command %s has exited (%s) and accepts no more input", c.id, status)
	case pipe == nil:
		return out, op.Errorf(op.Conflict,
			"command %s has an empty standard input, because it was started without session_id, async_mode or "+
				"timeout; start it with one of them", c.id)
	}
	out.Written, err = pipe.write(ctx, in.Input, in.EOF)
	out.Closed = in.EOF && err == nil
	return out, writeError(ctx, err, out, len(in.Input))
}

// write writes text, one caller at a time, and closes the input if eof is set.
func (in *input) write(ctx context.Context, text string, eof bool) (n int, err error) {
	select {
	case in.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-in.turn }()
	if in.closed || in.f.SetWriteDeadline(time.Now().Add(writeTime)) != nil {
		return 0, os.ErrClosed
	}
	stop := context.AfterFunc(ctx, func() { _ = in.f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	if text != "" { // an empty write would not report a closed reader
		n, err = in.f.WriteString(text)
	}
	if eof && err == nil {
		in.closed = true
		err = in.f.Close()
	}
	return n, err
}

// writeError describes why a write failed and how much was written.
func writeError(ctx context.Context, err error, out WriteResult, n int) error {
	var e *op.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		e = &op.Error{Code: op.Canceled, Msg: "write to the command: canceled"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		e = &op.Error{Code: op.Conflict, Msg: "the command does not read its input", Hint: "Write the rest when it reads again"}
	case errors.Is(err, syscall.EPIPE):
		e = &op.Error{Code: op.Conflict, Msg: "the command has closed its input or exited"}
	case errors.Is(err, os.ErrClosed):
		e = &op.Error{Code: op.Conflict, Msg: "the input of the command is already closed, or it has exited"}
	default:
		return err
	}
	failed := op.Errorf(e.Code, "%s; wrote %d of %d bytes", e.Msg, out.Written, n)
	e.Msg, e.Data, e.Err = failed.Error(), out, err
	return e
}

// target returns the command to write to or to signal: the one with the ID, or the
// running command that was started last.
func (s *Service) target(session string, id *string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.session(session)
	if err != nil {
		return nil, err
	}
	if op.Value(id) != "" {
		return ss.command(*id)
	}
	if c := ss.current(); c != nil {
		return c, nil
	}
	return nil, op.Errorf(op.Conflict, "no command is running in session %q; start one with bash_exec and async_mode or timeout", session)
}
