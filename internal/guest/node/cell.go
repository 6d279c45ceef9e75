package node

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
)

// inSession runs code in a session, which it makes if there is none.
func (s *Service) inSession(ctx context.Context, in ExecuteIn, dir string, files map[string]string, limit time.Duration, emit func(output) error) (outcome, error) {
	s.mu.Lock()
	ss, made, err := s.open(value(in.SessionID), value(in.Version), longest)
	if err != nil {
		s.mu.Unlock()
		return outcome{}, err
	}
	s.enter(ss)
	s.mu.Unlock()
	defer s.leave(ss)

	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case ss.turn <- struct{}{}:
		defer func() { <-ss.turn }()
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Conflict, "session %q was busy with other code for %s, so nothing was run; try again, or use another session", ss.id, seconds(limit))
	}
	s.mu.Lock()
	ss.move(dir)
	at := ss.dir
	s.mu.Unlock()
	r := &recorder{emit: emit}
	s.bury(ctx, ss, r)
	var p *process
	if err = lay(at, files); err == nil {
		p, err = s.process(ctx, ss)
	}
	if err != nil {
		if made {
			s.withdraw(ss)
		}
		return outcome{}, err
	}
	return s.cell(ctx, ss, p, in, limit, r)
}

// process is that of a session, started if need be. The caller has the turn.
func (s *Service) process(ctx context.Context, ss *session) (*process, error) {
	s.mu.Lock()
	p, dir := ss.p, ss.dir
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := s.begin(ctx, ss.wanted, start{dir: dir})
	if err != nil {
		return nil, err
	}
	version, err := p.ready(ctx)
	if err != nil {
		p.kill()
		return nil, err
	}
	s.mu.Lock()
	if ss.removed {
		s.mu.Unlock()
		p.kill()
		return nil, s.abandoned(ss)
	}
	defer s.mu.Unlock()
	ss.p, ss.version, ss.moved, ss.count = p, version, false, 0
	return p, nil
}

// bury takes leave of a process that ended between two calls, and shows what it
// said last.
func (s *Service) bury(ctx context.Context, ss *session, r *recorder) {
	s.mu.Lock()
	p := ss.p
	gone := p != nil && p.over()
	if gone && !ss.removed {
		ss.p, ss.lost = nil, death(p.Exit())
	}
	lost := ss.lost
	ss.lost = ""
	s.mu.Unlock()
	if gone {
		p.kill()
		r.record(p.turnOver().finish())
	}
	if lost != "" {
		op.Hint(ctx, "This is a new process without the variables of the one before: %s", lost)
	}
}

// abandoned says why a session's process is gone that we ended.
func (s *Service) abandoned(ss *session) error {
	if s.stopping() {
		return errStopping()
	}
	return op.Errorf(op.Conflict, "session %q was deleted while code ran in it or waited to; its process was ended", ss.id)
}

// cell runs code in a session's process. The caller has the turn.
func (s *Service) cell(ctx context.Context, ss *session, p *process, in ExecuteIn, limit time.Duration, r *recorder) (outcome, error) {
	s.mu.Lock()
	ss.count++
	m := message{ID: ss.count, Code: &in.Code, Stdin: in.Stdin}
	if ss.moved {
		m.Cwd, ss.moved = ss.dir, false
	}
	s.mu.Unlock()
	r.record(p.transcript().take()) // what came since the last cell is not of this one
	before := len(r.all)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	w := watch{p: p, id: m.ID, r: r, grace: s.grace}
	p.tell(m)
	e, how := w.until(ctx)
	if how == unresponsive {
		p.kill()
	}
	r.record(p.turnOver().finish())
	o := outcome{status: okay, session: ss.id, count: m.ID}
	err := s.settle(ctx, ss, e, how, &o, r, limit)
	for _, out := range r.all[before:] {
		if out.Type == kernel.Error && o.status == okay {
			o.status, o.exit = failed, max(o.exit, 1)
		}
	}
	o.outputs = fold(r.all)
	return o, err
}

// settle says how a cell ended.
func (s *Service) settle(ctx context.Context, ss *session, e ending, how how, o *outcome, r *recorder, limit time.Duration) error {
	s.mu.Lock()
	if how == ended && e.Cwd != "" && !ss.moved {
		ss.dir = e.Cwd
	}
	p, removed := ss.p, ss.removed
	if how != ended && !removed {
		ss.p = nil
	}
	s.mu.Unlock()
	timeout := errors.Is(context.Cause(ctx), errTimeout)
	switch {
	case how != ended && (removed || s.stopping()):
		return s.abandoned(ss)
	case how == died:
		p.kill()
		s.tellDeath(ctx, p, o, r)
		return nil
	case !timeout && (how == unresponsive || e.Status == interrupted || e.Status == waiting):
		if how == unresponsive {
			ss.lost = "it did not let itself be interrupted" // the caller who could be told is gone
		}
		return op.Errorf(op.Canceled, "nobody waits for the code any more, so it was interrupted")
	case how == unresponsive:
		o.status, o.exit = timedOut, timeoutCode
		op.Say(ctx, "The code ran longer than %s and did not let itself be interrupted, so the session's process was ended: its variables are lost, and the next call starts a new one", seconds(limit))
	case e.Status == interrupted:
		o.status, o.exit = timedOut, timeoutCode
		op.Say(ctx, "The code ran longer than %s and was interrupted; the session and its variables are kept", seconds(limit))
	case e.Status == waiting:
		o.status, o.exit = timedOut, timeoutCode
		op.Say(ctx, "The code was still waiting for something after %s, so it is waited for no longer; the session and its variables are kept, and what it has started goes on in the background", seconds(limit))
	case e.Status == failed:
		o.status, o.exit = failed, 1
	}
	return nil
}

// tellDeath reports that the code ended its process, or something else did.
func (s *Service) tellDeath(ctx context.Context, p *process, o *outcome, r *recorder) {
	exit := p.Exit()
	o.exit = exit.Code
	if exit.Code != 0 {
		o.status = failed
	}
	if exit.Signal != 0 {
		r.record([]output{failure("ProcessDied", death(exit))})
	}
	op.Say(ctx, "The session's process is gone: %s. Its variables are lost, and the next call starts a new one", death(exit))
}

// How a cell ends whose time is up: it was stopped where it was, or it was waiting
// for something, and goes on once that happens.
const (
	interrupted = "interrupted"
	waiting     = "waiting"
)

// how says what ended the wait for a cell.
type how int

const (
	ended how = iota
	died
	unresponsive
)

// watch waits for the end of a cell.
type watch struct {
	p     *process
	id    int
	r     *recorder
	grace time.Duration
}

// until returns when the cell has ended. When ctx ends or nobody takes its outputs,
// it is interrupted: first its worker is asked, which answers if the code only waits
// for something; then the code is stopped where it is; then the programs it waits for
// are interrupted. The steps are repeated, for one may come when it has no effect.
// The grace begins when the code has been struck: on a busy machine that takes a while.
func (w watch) until(ctx context.Context) (ending, how) {
	out := w.p.transcript()
	done := ctx.Done()
	var struck <-chan struct{}
	var next, over <-chan time.Time
	begin := func() {
		select {
		case <-w.p.struck: // by the interrupt of a cell before
		default:
		}
		done, struck = nil, w.p.struck
		next, over = time.After(0), time.After(patience*w.grace)
	}
	for step := 0; ; {
		select {
		case <-out.ready:
			if w.r.record(out.take()); w.r.err != nil && done != nil {
				begin()
			}
		case e := <-w.p.ended:
			if e.ID == w.id {
				return e, ended
			}
		case <-w.p.gone:
			return ending{}, died
		case <-done:
			begin()
		case <-struck:
			struck, over = nil, time.After(w.grace)
		case <-next:
			next = time.After(w.interrupt(step))
			step++
		case <-over:
			return ending{}, unresponsive
		}
	}
}

// patience is how many times the grace we wait for the code to be struck.
const patience = 4

// interrupt takes one of the steps and says how long to wait for its effect.
func (w watch) interrupt(step int) time.Duration {
	switch step % 3 {
	case 0:
		w.p.tell(message{Interrupt: w.id})
		return 100 * time.Millisecond
	case 1:
		w.p.terminate()
		return 200 * time.Millisecond
	}
	w.p.interrupt()
	return 200 * time.Millisecond
}
