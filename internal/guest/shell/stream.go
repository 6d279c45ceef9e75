package shell

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// streamPause is the minimum time between two output events.
const streamPause = 20 * time.Millisecond

// StreamEvent is the data of the events of a followed command. Each kind of event sets the
// fields that apply to it.
type StreamEvent struct {
	SessionID string  `json:"session_id,omitempty" doc:"In start, exit and timeout"`
	Command   string  `json:"command,omitempty" doc:"In start, exit and timeout"`
	Status    string  `json:"status,omitempty" doc:"In start, exit and timeout"`
	Data      string  `json:"data,omitempty" doc:"In output: the text"`
	Offset    *int64  `json:"offset,omitempty" doc:"In output: offset in characters. It decreases if the program has rewritten its last line"`
	Dropped   int64   `json:"dropped,omitempty" doc:"In output: number of unread characters that were discarded before the text"`
	Output    *string `json:"output,omitempty" doc:"In exit and timeout: the output as in the reply without stream"`
	ExitCode  *int    `json:"exit_code,omitempty" doc:"In exit"`
}

// ExecStream runs a command and sends its output as it is produced, then exit, or timeout if
// the command continues.
func (s *Service) ExecStream(ctx context.Context, in ExecIn, send func(op.Event) error) error {
	b, err := s.begin(ctx, in, 1)
	if err != nil {
		return err
	}
	f := &follower{t: b.t, c: b.c, bell: make(chan struct{}, 1)}
	defer f.detach()
	if in.AsyncMode {
		b.limits.soft = 0
	}
	if err := f.run(ctx, b.began, b.limits, send); err != nil {
		b.cancel(ctx)
		return err
	}
	return nil
}

// ViewStream sends the output of the running command of a session until its end. If none
// runs, it sends the output of the last one.
func (s *Service) ViewStream(ctx context.Context, in ViewIn, send func(op.Event) error) error {
	ss, err := s.find(in.ID)
	if err != nil {
		return err
	}
	if f := ss.newFollower(); f != nil {
		defer f.detach()
		return f.run(ctx, time.Now(), limits{soft: -1}, send)
	}
	v, err := s.View(ctx, in)
	if err != nil {
		return err
	}
	e := StreamEvent{SessionID: v.SessionID, Command: op.Value(v.Command), Status: v.Status}
	if err := send(op.Event{Name: "start", Data: e}); err != nil {
		return err
	}
	if v.Output != "" {
		if err := send(op.Event{Name: "output", Data: StreamEvent{Data: v.Output, Offset: new(int64)}}); err != nil {
			return err
		}
	}
	e.Output, e.ExitCode = &v.Output, v.ExitCode
	return send(op.Event{Name: "exit", Data: e})
}

// run sends the events of the command until it ends or times out.
func (f *follower) run(ctx context.Context, began time.Time, l limits, send func(op.Event) error) error {
	t, c := f.t, f.c
	f.listen()
	e := StreamEvent{SessionID: t.ss.ID, Command: c.text, Status: running}
	if err := send(op.Event{Name: "start", Data: e}); err != nil {
		return err
	}
	waiting, cancel := context.WithCancel(ctx)
	over := make(chan error, 1)
	status := running
	go func() {
		var err error
		status, err = t.wait(waiting, c, began, l)
		over <- err
	}()
	ended := false
	defer func() {
		cancel()
		if !ended {
			<-over
		}
	}()
	for {
		began := time.Now()
		if out := f.next(); out.Data != "" {
			if err := send(op.Event{Name: "output", Data: out}); err != nil {
				return err
			}
		}
		if ended {
			break
		}
		// Each event copies the text, so a large text is copied less often.
		pause := time.NewTimer(max(streamPause, 2*time.Since(began)))
		select {
		case <-pause.C:
			select {
			case <-f.bell:
			case err := <-over:
				if ended = true; err != nil {
					return err
				}
			}
		case err := <-over:
			if ended = true; err != nil {
				return err
			}
		}
		pause.Stop()
	}
	r := t.result(ctx, c, status)
	e.Status, e.Output, e.ExitCode = r.Status, r.Output, r.ExitCode
	name := "exit"
	if r.ExitCode == nil {
		name = "timeout"
	}
	return send(op.Event{Name: name, Data: e})
}

// follower records how much of a command's output a stream has sent.
type follower struct {
	t    *terminal
	c    *command
	bell chan struct{} // holds a token when there may be output to send

	sent int64  // characters sent so far
	line int64  // offset of the last line of them
	last string // that line
}

// newFollower returns a follower of the session's running command, or nil.
func (ss *Session) newFollower() *follower {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	c := ss.current()
	if c == nil {
		return nil
	}
	c.followers++
	return &follower{t: ss.terminal, c: c, bell: make(chan struct{}, 1)}
}

// listen subscribes the follower to new output.
func (f *follower) listen() {
	f.t.ss.mu.Lock()
	defer f.t.ss.mu.Unlock()
	f.t.display.bells[f.bell] = struct{}{}
	wake(f.bell)
}

// detach releases the output that is kept for the follower.
func (f *follower) detach() {
	f.t.ss.mu.Lock()
	defer f.t.ss.mu.Unlock()
	delete(f.t.display.bells, f.bell)
	if f.c.followers--; f.c.followers == 0 {
		f.c.kept = vt.Text{}
	}
}

// next returns the output that was not sent yet. Its Data is empty if there is none.
func (f *follower) next() StreamEvent {
	f.t.ss.mu.Lock()
	var x vt.Text
	switch {
	case f.c.hasEnded():
		x = f.c.kept
	case f.c.hasStarted():
		x = f.t.display.screen.Text()
	}
	f.t.ss.mu.Unlock()
	return f.advance(x)
}

// advance returns the part of x that was not sent. If the last sent line has changed, it is
// sent again from its start.
func (f *follower) advance(x vt.Text) StreamEvent {
	kept, base := x.Head, int64(0)
	if x.Dropped > 0 {
		kept, base = x.Tail, int64(utf8.RuneCountInString(x.Head))+x.Dropped
	}
	e := StreamEvent{}
	if f.line < base {
		e.Dropped = max(0, base-f.sent)
		f.line, f.last = base, ""
	}
	rest := skipRunes(kept, f.line-base)
	at := f.line
	if tail, ok := strings.CutPrefix(rest, f.last); ok {
		at += int64(utf8.RuneCountInString(f.last))
		e.Data = tail
	} else {
		e.Data = rest
	}
	e.Offset = &at
	if e.Data == "" {
		return e
	}
	f.sent = at + int64(utf8.RuneCountInString(e.Data))
	if nl := strings.LastIndexByte(rest, '\n'); nl >= 0 {
		f.line += int64(utf8.RuneCountInString(rest[:nl+1]))
		rest = rest[nl+1:]
	}
	f.last = strings.Clone(rest)
	return e
}

// skipRunes returns s without its first n characters.
func skipRunes(s string, n int64) string {
	for i := range s {
		if n == 0 {
			return s[i:]
		}
		n--
	}
	return ""
}
