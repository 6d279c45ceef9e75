package bash

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// eventSize is the maximum number of bytes in one event.
const eventSize = 256 << 10

// ExecEvent is the data of the events of a streamed command. Each kind of event sets the
// fields that apply to it.
type ExecEvent struct {
	SessionID    string `json:"session_id,omitempty" doc:"In start and exit"`
	CommandID    string `json:"command_id,omitempty" doc:"In start and exit"`
	Data         string `json:"data,omitempty" doc:"In stdout and stderr: the text"`
	Dropped      int64  `json:"dropped,omitempty" doc:"In stdout and stderr: number of unread bytes that were discarded before the text"`
	Status       string `json:"status,omitempty" doc:"In start, exit and timeout"`
	ExitCode     *int   `json:"exit_code,omitempty" doc:"In exit"`
	Offset       *int64 `json:"offset,omitempty" doc:"Offset at which bash_output continues to read stdout"`
	StderrOffset *int64 `json:"stderr_offset,omitempty" doc:"Offset at which bash_output continues to read stderr"`
}

// ExecStream runs a command and sends its output as events. A slow or disconnected reader
// does not delay the command.
func (s *Service) ExecStream(ctx context.Context, in ExecIn, send func(op.Event) error) error {
	c, err := s.launch(in, true)
	if err != nil {
		return err
	}
	defer s.release(c)
	s.watch(c)
	var soft <-chan time.Time
	if in.Timeout != nil {
		timer := time.NewTimer(seconds(*in.Timeout))
		defer timer.Stop()
		soft = timer.C
	}
	if err := send(op.Event{Name: "start", Data: ExecEvent{SessionID: c.session.ID, CommandID: c.id, Status: running}}); err != nil {
		return err
	}
	var offset, stderrOffset int64
	for {
		news := c.bell.listen()
		out := c.output(offset, stderrOffset, eventSize)
		if err := out.send(offset, stderrOffset, send); err != nil {
			return err
		}
		offset, stderrOffset = out.Offset, out.StderrOffset
		last := ExecEvent{SessionID: c.session.ID, CommandID: c.id, Status: out.Command.Status,
			ExitCode: out.Command.ExitCode, Offset: &out.Offset, StderrOffset: &out.StderrOffset}
		switch {
		case out.Command.ExitCode != nil && (!out.More || c.hasSent(offset, stderrOffset)):
			return send(op.Event{Name: "exit", Data: last})
		case out.More:
			continue
		}
		select {
		case <-news:
		case <-c.ended:
		case <-soft:
			return send(op.Event{Name: "timeout", Data: last})
		case <-s.quit:
			return send(op.Event{Name: "timeout", Data: last})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends the output that follows the offsets.
func (out *OutputResult) send(offset, stderrOffset int64, send func(op.Event) error) error {
	if out.Offset > offset {
		if err := send(op.Event{Name: "stdout", Data: ExecEvent{Data: out.Stdout, Dropped: out.Dropped, Offset: &out.Offset}}); err != nil {
			return err
		}
	}
	if out.StderrOffset > stderrOffset {
		return send(op.Event{Name: "stderr", Data: ExecEvent{Data: out.Stderr, Dropped: out.StderrDropped, StderrOffset: &out.StderrOffset}})
	}
	return nil
}

// hasSent reports whether the output up to the command's end was sent. Its background
// processes may write more.
func (c *command) hasSent(offset, stderrOffset int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return offset >= c.ends[0] && stderrOffset >= c.ends[1]
}
