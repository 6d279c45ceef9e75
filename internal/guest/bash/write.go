package bash

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// writeTime is how long a write may wait for a command that does not read.
const writeTime = 10 * time.Second

// input is the write end of a command's standard input.
type input struct {
	f      *os.File
	turn   chan struct{} // holds a token while someone writes
	closed bool          // by a writer; whoever has the turn may look
}

// WriteIn is text for a command.
type WriteIn struct {
	SessionID string  `json:"session_id" doc:"Session of the command"`
	CommandID *string `json:"command_id" doc:"Command to write to; the one started last among those that run when missing"`
	Input     string  `json:"input" doc:"Text for its standard input, passed on as it is; may be empty with eof"`
	EOF       bool    `json:"eof" default:"false" doc:"Close its standard input afterwards"`
}

// WriteResult tells what was written.
type WriteResult struct {
	SessionID string `json:"session_id"`
	CommandID string `json:"command_id"`
	Written   int    `json:"written" doc:"Bytes that were passed on"`
	Closed    bool   `json:"closed" doc:"Whether its standard input is closed now"`
}

// Write passes text to a running command.
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
		return out, op.Errorf(op.Conflict, "command %s is just being started; try again", c.id)
	case status != running:
		return out, op.Errorf(op.Conflict, "command %s has ended (%s); nothing can be written to it", c.id, status)
	case pipe == nil:
		return out, op.Errorf(op.Conflict, "command %s was started with an empty input, since its caller waits for its end and gave no session_id; run it with a session_id, async_mode or timeout", c.id)
	}
	out.Written, err = pipe.write(ctx, in.Input, in.EOF)
	out.Closed = in.EOF && err == nil
	return out, explain(ctx, err, out, len(in.Input))
}

// write passes text on, one caller after the other, and closes the input if asked.
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
	if text != "" { // an empty write says nothing, not even that the other end is closed
		n, err = in.f.WriteString(text)
	}
	if eof && err == nil {
		in.closed = true
		err = in.f.Close()
	}
	return n, err
}

// explain says why a write failed and what became of it.
func explain(ctx context.Context, err error, out WriteResult, n int) error {
	var e *op.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		e = &op.Error{Code: op.Canceled, Msg: "nobody waits for the write any more"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		e = &op.Error{Code: op.Conflict, Msg: "the command does not read its input", Hint: "Write the rest when it reads again"}
	case errors.Is(err, syscall.EPIPE):
		e = &op.Error{Code: op.Conflict, Msg: "the command has closed its input or has ended"}
	case errors.Is(err, os.ErrClosed):
		e = &op.Error{Code: op.Conflict, Msg: "the input of the command was closed before, or it has ended"}
	default:
		return err
	}
	failed := op.Errorf(e.Code, "%s; %d of %d bytes were written", e.Msg, out.Written, n)
	e.Msg, e.Data, e.Err = failed.Error(), out, err
	return e
}

// target finds the command to write to or to signal: the named one, or the one
// started last among those that run.
func (s *Service) target(session string, id *string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.session(session)
	if err != nil {
		return nil, err
	}
	if value(id) != "" {
		return ss.command(*id)
	}
	if c := ss.current(); c != nil {
		return c, nil
	}
	return nil, op.Errorf(op.Conflict, "no command runs in session %q; start one with bash_exec, in async_mode or with a timeout", session)
}
