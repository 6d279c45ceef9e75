package bash

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// OutputIn selects the output to read.
type OutputIn struct {
	SessionID    string  `json:"session_id" doc:"Session of the command"`
	CommandID    *string `json:"command_id" doc:"Command to read from. Default: the last one of the session"`
	Offset       int64   `json:"offset" default:"0" doc:"Byte offset in stdout: 0, or the offset of the previous reply"`
	StderrOffset int64   `json:"stderr_offset" default:"0" doc:"Byte offset in stderr: 0, or the stderr_offset of the previous reply"`
	Wait         bool    `json:"wait" default:"false" doc:"Wait until there is new output or the command exits"`
	WaitTimeout  float64 `json:"wait_timeout" default:"30" doc:"Maximum number of seconds to wait"`
	Limit        *int    `json:"limit" minimum:"16" doc:"Maximum bytes of each stream in the reply; the next call returns the rest"`
}

// OutputResult is the output that was read.
type OutputResult struct {
	SessionID     string       `json:"session_id" doc:"Session of the command"`
	Stdout        string       `json:"stdout" default:"" doc:"Standard output from offset; invalid UTF-8 is replaced"`
	Stderr        string       `json:"stderr" default:"" doc:"Standard error from stderr_offset; invalid UTF-8 is replaced"`
	Offset        int64        `json:"offset" default:"0" doc:"Offset for the next call"`
	StderrOffset  int64        `json:"stderr_offset" default:"0" doc:"stderr_offset for the next call"`
	Command       *CommandInfo `json:"command" doc:"The command; null if the session has none"`
	Dropped       int64        `json:"dropped" doc:"Number of bytes of stdout after the requested offset that are no longer kept"`
	StderrDropped int64        `json:"stderr_dropped" doc:"Number of bytes of stderr after the requested offset that are no longer kept"`
	More          bool         `json:"more" doc:"Whether more output is available at the returned offsets"`
}

// Output reads the output of a command.
func (s *Service) Output(ctx context.Context, in OutputIn) (OutputResult, error) {
	if in.Offset < 0 || in.StderrOffset < 0 {
		return OutputResult{}, op.Errorf(op.Invalid, "offset and stderr_offset must not be negative")
	}
	c, err := s.hold(in.SessionID, in.CommandID)
	if err != nil {
		return OutputResult{}, err
	}
	if c == nil {
		op.Hint(ctx, "Session %s has no commands; run one with bash_exec", in.SessionID)
		return OutputResult{SessionID: in.SessionID}, nil
	}
	defer s.release(c)
	if err := c.checkOffsets(in.Offset, in.StderrOffset); err != nil {
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
			out.addHint(ctx)
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
			return OutputResult{}, op.Errorf(op.Canceled, "wait for output: canceled")
		}
	}
}

// hold returns the command to read from, by default the latest, and keeps its output until
// release. It returns nil if the session has no command.
func (s *Service) hold(session string, id *string) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss, err := s.session(session)
	if err != nil {
		return nil, err
	}
	c := ss.last()
	if op.Value(id) != "" {
		if c, err = ss.command(*id); err != nil {
			return nil, err
		}
	}
	if c != nil {
		c.holders++
	}
	return c, nil
}

// checkOffsets rejects offsets beyond the end of the output.
func (c *command) checkOffsets(offset, stderrOffset int64) error {
	for _, stream := range []struct {
		name, field string
		from        int64
		sp          *spool
	}{{"stdout", "offset", offset, c.out}, {"stderr", "stderr_offset", stderrOffset, c.err}} {
		if _, total := stream.sp.extent(); stream.from > total {
			return op.Errorf(op.Invalid, "%s %d is past the end of %s (%d bytes) of command %s; each command "+
				"starts at 0, so use the offsets of its last reply",
				stream.field, stream.from, stream.name, total, c.id)
		}
	}
	return nil
}

func (c *command) output(offset, stderrOffset int64, limit int) OutputResult {
	i := c.info() // before reading: if the command has ended, its output is complete
	final := i.ExitCode != nil
	out := OutputResult{SessionID: c.session.ID, Command: &i}
	out.Stdout, out.Offset, out.Dropped = c.out.read(offset, limit, final)
	out.Stderr, out.StderrOffset, out.StderrDropped = c.err.read(stderrOffset, limit, final)
	out.More = c.out.more(out.Offset, final) || c.err.more(out.StderrOffset, final)
	return out
}

// addHint describes missing and further output for clients that ignore those fields.
func (out *OutputResult) addHint(ctx context.Context) {
	switch {
	case out.Dropped+out.StderrDropped > 0:
		op.Hint(ctx, "%d bytes of stdout and %d bytes of stderr at the requested offsets are no longer kept; the "+
			"command wrote more than the limit", out.Dropped, out.StderrDropped)
	case out.More:
		op.Hint(ctx, "There is more output: continue with offset %d and stderr_offset %d", out.Offset, out.StderrOffset)
	}
}
