package bash

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// OutputIn says what to read.
type OutputIn struct {
	SessionID    string  `json:"session_id" doc:"Session of the command"`
	CommandID    *string `json:"command_id" doc:"Command to read from; the session's latest when missing"`
	Offset       int64   `json:"offset" default:"0" doc:"Byte of stdout to read from: 0, or the offset of the reply before"`
	StderrOffset int64   `json:"stderr_offset" default:"0" doc:"Byte of stderr to read from: 0, or the stderr_offset of the reply before"`
	Wait         bool    `json:"wait" default:"false" doc:"Answer only when there is something new or the command has ended"`
	WaitTimeout  float64 `json:"wait_timeout" default:"30" doc:"Most seconds to wait"`
	Limit        *int    `json:"limit" minimum:"16" doc:"Most bytes of each stream in this answer; the rest follows from the new offsets on"`
}

// OutputResult is what was read.
type OutputResult struct {
	SessionID     string       `json:"session_id" doc:"Session of the command"`
	Stdout        string       `json:"stdout" default:"" doc:"Text of stdout from offset on; bytes that are not UTF-8 are replaced"`
	Stderr        string       `json:"stderr" default:"" doc:"Text of stderr from stderr_offset on"`
	Offset        int64        `json:"offset" default:"0" doc:"Where the next call goes on reading stdout"`
	StderrOffset  int64        `json:"stderr_offset" default:"0" doc:"Where the next call goes on reading stderr"`
	Command       *CommandInfo `json:"command" doc:"The command; null when the session has none"`
	Dropped       int64        `json:"dropped" doc:"Bytes of stdout from the asked offset on that are no longer kept"`
	StderrDropped int64        `json:"stderr_dropped" doc:"Bytes of stderr from the asked offset on that are no longer kept"`
	More          bool         `json:"more" doc:"Whether more output is kept behind the new offsets"`
}

// Output reads what a command wrote.
func (s *Service) Output(ctx context.Context, in OutputIn) (OutputResult, error) {
	if in.Offset < 0 || in.StderrOffset < 0 {
		return OutputResult{}, op.Errorf(op.Invalid, "offset and stderr_offset count bytes from 0 on; they cannot be negative")
	}
	c, err := s.hold(in.SessionID, in.CommandID)
	if err != nil {
		return OutputResult{}, err
	}
	if c == nil {
		op.Hint(ctx, "Session %s remembers no command; bash_exec runs one", in.SessionID)
		return OutputResult{SessionID: in.SessionID}, nil
	}
	defer s.release(c)
	if err := c.reaches(in.Offset, in.StderrOffset); err != nil {
		return OutputResult{}, err
	}
	limit := maxReply
	if in.Limit != nil {
		limit = min(*in.Limit, maxReply)
	}
	var timeout <-chan time.Time
	if in.Wait {
		timer := time.NewTimer(seconds(in.WaitTimeout))
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		news := c.bell.listen()
		out := c.output(in.Offset, in.StderrOffset, limit)
		idle := out.Offset == in.Offset && out.StderrOffset == in.StderrOffset
		if !in.Wait || !idle || out.Command.ExitCode != nil {
			out.tell(ctx)
			return out, nil
		}
		select {
		case <-news:
		case <-c.ended:
		case <-s.quit:
			in.Wait = false
		case <-timeout:
			in.Wait = false
		case <-ctx.Done():
			return OutputResult{}, op.Errorf(op.Canceled, "nobody waits for output any more")
		}
	}
}

// hold finds a command to read from, the latest when none is named. It is nil
// when the session has none.
func (s *Service) hold(session string, id *string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.session(session)
	if err != nil {
		return nil, err
	}
	c := ss.last()
	if value(id) != "" {
		if c, err = ss.command(*id); err != nil {
			return nil, err
		}
	}
	if c != nil {
		c.holders++
	}
	return c, nil
}

// reaches refuses offsets that nobody was given.
func (c *command) reaches(offset, stderrOffset int64) error {
	for _, stream := range []struct {
		name, field string
		from        int64
		sp          *spool
	}{{"stdout", "offset", offset, c.out}, {"stderr", "stderr_offset", stderrOffset, c.err}} {
		if _, total := stream.sp.extent(); stream.from > total {
			return op.Errorf(op.Invalid, "%s %d is behind the end: command %s has written %d bytes to %s. Every command counts from 0; use the offsets of its last reply",
				stream.field, stream.from, c.id, total, stream.name)
		}
	}
	return nil
}

func (c *command) output(offset, stderrOffset int64, limit int) OutputResult {
	i := c.info() // before the output is read: all of it is there once it has ended
	final := i.ExitCode != nil
	out := OutputResult{SessionID: c.session.id, Command: &i}
	out.Stdout, out.Offset, out.Dropped = c.out.read(offset, limit, final)
	out.Stderr, out.StderrOffset, out.StderrDropped = c.err.read(stderrOffset, limit, final)
	out.More = c.out.more(out.Offset, final) || c.err.more(out.StderrOffset, final)
	return out
}

// tell says what a client that knows only the contract's fields would not notice.
func (out *OutputResult) tell(ctx context.Context) {
	switch {
	case out.Dropped+out.StderrDropped > 0:
		op.Hint(ctx, "%d bytes of stdout and %d of stderr at the asked offsets are no longer kept, since the command wrote more than is kept of it", out.Dropped, out.StderrDropped)
	case out.More:
		op.Hint(ctx, "There is more: read on with offset %d and stderr_offset %d", out.Offset, out.StderrOffset)
	}
}
