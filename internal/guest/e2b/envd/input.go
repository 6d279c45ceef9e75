package envd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
)

// none is an empty message.
type none struct{}

// stdin is the input of a process. Only one writer writes at a time.
type stdin struct {
	mu sync.Mutex
	f  *os.File
}

func (i *stdin) close() { _ = i.f.Close() } // it may already be closed

// input is data for a process. One field is set.
type input struct {
	Stdin []byte `json:"stdin"`
	Pty   []byte `json:"pty"`
}

// write writes to a process. The context limits the wait for a process that does not read.
func (p *process) write(ctx context.Context, in input) error {
	var f *os.File
	var lock *sync.Mutex
	b := in.Stdin
	switch {
	case in.Pty != nil && p.tty == nil:
		return connect.Errorf(connect.FailedPrecondition, "the process has no terminal; send stdin")
	case in.Pty != nil:
		b, f = in.Pty, p.tty.Master()
	case p.tty != nil:
		return connect.Errorf(connect.FailedPrecondition, "the process has a terminal; send pty")
	case p.stdin == nil:
		return connect.Errorf(connect.FailedPrecondition, "the process has no stdin; start it with stdin")
	default:
		f, lock = p.stdin.f, &p.stdin.mu
	}
	if lock != nil {
		lock.Lock()
		defer lock.Unlock()
	}
	deadline := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer func() {
		if !deadline() {
			_ = f.SetWriteDeadline(time.Time{})
		}
	}()
	_, err := f.Write(b)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE):
		return connect.Errorf(connect.Internal, "write to stdin: it is closed")
	}
	return connect.Errorf(connect.Internal, "write to the process: %v", err)
}

// sendInputIn is input for a process.
type sendInputIn struct {
	Process selector `json:"process"`
	Input   input    `json:"input"`
}

func (s *Service) sendInput(ctx context.Context, _ connect.Caller, in sendInputIn) (none, error) {
	p, err := s.procs.running(in.Process)
	if err != nil {
		return none{}, err
	}
	return none{}, p.write(ctx, in.Input)
}

// streamIn is a message of a stream of input. One field is set.
type streamIn struct {
	Start *struct {
		Process selector `json:"process"`
	} `json:"start"`
	Data *struct {
		Input input `json:"input"`
	} `json:"data"`
	KeepAlive *struct{} `json:"keepalive"`
}

func (s *Service) streamInput(ctx context.Context, _ connect.Caller, next func() (streamIn, error)) (none, error) {
	var p *process
	for {
		in, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return none{}, nil
		case err != nil:
			return none{}, err
		case in.Start != nil:
			if p, err = s.procs.running(in.Start.Process); err != nil {
				return none{}, err
			}
		case in.Data != nil && p == nil:
			return none{}, connect.Errorf(connect.InvalidArgument, "the first message must contain the process")
		case in.Data != nil:
			if err := p.write(ctx, in.Data.Input); err != nil {
				return none{}, err
			}
		}
	}
}

func (s *Service) closeStdin(_ context.Context, _ connect.Caller, in attachIn) (none, error) {
	p, err := s.procs.running(in.Process)
	switch {
	case err != nil:
		return none{}, err
	case p.stdin == nil:
		return none{}, connect.Errorf(connect.FailedPrecondition, "the process has no stdin to close")
	}
	p.stdin.close()
	return none{}, nil
}

// updateIn is the input of update.
type updateIn struct {
	Process selector  `json:"process"`
	Pty     *terminal `json:"pty"`
}

func (s *Service) update(_ context.Context, _ connect.Caller, in updateIn) (none, error) {
	p, err := s.procs.running(in.Process)
	if err != nil || in.Pty == nil {
		return none{}, err
	}
	if p.tty == nil {
		return none{}, connect.Errorf(connect.FailedPrecondition, "the process has no terminal")
	}
	if err := p.tty.Resize(in.Pty.Size.Cols, in.Pty.Size.Rows); err != nil {
		return none{}, connect.Errorf(connect.InvalidArgument, "%v", err)
	}
	return none{}, nil
}

// signalName is a signal, by name or number.
type signalName syscall.Signal

// UnmarshalJSON decodes both forms.
func (n *signalName) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) == nil {
		switch name {
		case "SIGNAL_SIGKILL":
			*n = signalName(syscall.SIGKILL)
		case "SIGNAL_SIGTERM":
			*n = signalName(syscall.SIGTERM)
		}
		return nil
	}
	return json.Unmarshal(b, (*int)(n))
}

// signalIn is a signal for a process.
type signalIn struct {
	Process selector   `json:"process"`
	Signal  signalName `json:"signal"`
}

func (s *Service) sendSignal(_ context.Context, _ connect.Caller, in signalIn) (none, error) {
	p, err := s.procs.running(in.Process)
	if err != nil {
		return none{}, err
	}
	switch sig := syscall.Signal(in.Signal); sig {
	case syscall.SIGKILL:
		p.p.Kill()
	case syscall.SIGTERM:
		if err := p.p.Signal(sig); err != nil {
			return none{}, connect.Errorf(connect.NotFound, "%v", err)
		}
	default:
		return none{}, connect.Errorf(connect.InvalidArgument, "invalid signal; use SIGNAL_SIGKILL or SIGNAL_SIGTERM")
	}
	return none{}, nil
}
