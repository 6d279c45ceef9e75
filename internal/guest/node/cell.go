package node

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// runInSession runs code in a session, which it creates if it does not exist.
func (s *Service) runInSession(ctx context.Context, in ExecuteIn, dir string, files map[string]string,
	limit time.Duration, emit func(output) error) (outcome, error) {
	s.mu.Lock()
	ss, made, err := s.open(op.Value(in.SessionID), op.Value(in.Version), maxIdle)
	if err != nil {
		s.mu.Unlock()
		return outcome{}, err
	}
	ss.Enter()
	s.mu.Unlock()
	defer s.leave(ss)

	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case ss.turn <- struct{}{}:
		defer func() { <-ss.turn }()
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Conflict,
			"session %q was busy with other code for %s; try again, or use another session", ss.ID, kernel.FormatDuration(limit))
	}
	s.mu.Lock()
	ss.move(dir)
	at := ss.dir
	s.mu.Unlock()
	r := &recorder{emit: emit}
	s.reapProcess(ctx, ss, r)
	var p *process
	if err = writeFiles(at, files); err == nil {
		p, err = s.ensureProcess(ctx, ss)
	}
	if err != nil {
		if made {
			s.remove(ss)
		}
		return outcome{}, err
	}
	return s.runCell(ctx, ss, p, in, limit, r)
}

// ensureProcess returns the process of a session and starts it if necessary. The caller
// has the turn.
func (s *Service) ensureProcess(ctx context.Context, ss *Session) (*process, error) {
	s.mu.Lock()
	p, dir := ss.p, ss.dir
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := s.startProcess(ctx, ss.wanted, start{dir: dir})
	if err != nil {
		return nil, err
	}
	version, err := p.waitReady(ctx)
	if err != nil {
		p.kill()
		return nil, err
	}
	s.mu.Lock()
	if ss.Removed() {
		s.mu.Unlock()
		p.kill()
		return nil, s.abandonedError(ss)
	}
	defer s.mu.Unlock()
	ss.p, ss.version, ss.moved, ss.count = p, version, false, 0
	return p, nil
}

// reapProcess detaches a process that exited between two calls, and records its last
// output.
func (s *Service) reapProcess(ctx context.Context, ss *Session, r *recorder) {
	s.mu.Lock()
	p := ss.p
	exited := p != nil && p.hasExited()
	if exited && !ss.Removed() {
		ss.p, ss.lost = nil, describeExit(p.Exit())
	}
	lost := ss.lost
	ss.lost = ""
	s.mu.Unlock()
	if exited {
		p.kill()
		r.record(p.nextTranscript().finish())
	}
	if lost != "" {
		op.Hint(ctx, "This is a new process without the variables of the previous one: %s", lost)
	}
}

// abandonedError says why the service ended a session's process.
func (s *Service) abandonedError(ss *Session) error {
	if s.stopping() {
		return session.ErrStopping()
	}
	return op.Errorf(op.Conflict, "session %q was deleted while code ran in it or waited for its turn", ss.ID)
}

// runCell runs code in a session's process. The caller has the turn.
func (s *Service) runCell(ctx context.Context, ss *Session, p *process, in ExecuteIn, limit time.Duration, r *recorder) (outcome, error) {
	s.mu.Lock()
	ss.count++
	m := message{ID: ss.count, Code: &in.Code, Stdin: in.Stdin}
	if ss.moved {
		m.Cwd, ss.moved = ss.dir, false
	}
	s.mu.Unlock()
	r.record(p.transcript().take()) // output since the previous cell
	before := len(r.all)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, kernel.ErrTimeout)
	defer cancel()
	w := watch{p: p, id: m.ID, r: r, grace: s.grace}
	p.send(m)
	e, end := w.wait(ctx)
	if end == unresponsive {
		p.kill()
	}
	r.record(p.nextTranscript().finish())
	o := outcome{status: kernel.OK, session: ss.ID, count: m.ID}
	err := s.resolveOutcome(ctx, ss, e, end, &o, r, limit)
	for _, out := range r.all[before:] {
		if out.Type == kernel.Error && o.status == kernel.OK {
			o.status, o.exit = kernel.Failed, max(o.exit, 1)
		}
	}
	o.outputs = fold(r.all)
	return o, err
}

// resolveOutcome determines how a cell ended.
func (s *Service) resolveOutcome(ctx context.Context, ss *Session, e cellEnd, end waitEnd, o *outcome, r *recorder,
	limit time.Duration) error {
	s.mu.Lock()
	if end == ended && e.Cwd != "" && !ss.moved {
		ss.dir = e.Cwd
	}
	p, removed := ss.p, ss.Removed()
	if end != ended && !removed {
		ss.p = nil
	}
	s.mu.Unlock()
	timeout := errors.Is(context.Cause(ctx), kernel.ErrTimeout)
	switch {
	case end != ended && (removed || s.stopping()):
		return s.abandonedError(ss)
	case end == died:
		p.kill()
		s.reportExit(ctx, p, o, r)
		return nil
	case !timeout && (end == unresponsive || e.Status == interrupted || e.Status == waiting):
		if end == unresponsive {
			ss.lost = "it ignored the interrupt" // reported to the next caller
		}
		return op.Errorf(op.Canceled, "the request was canceled, so the code was interrupted")
	case end == unresponsive:
		o.status, o.exit = kernel.TimedOut, kernel.TimeoutCode
		op.Say(ctx, "The code ran longer than %s and ignored the interrupt, so the session's process was killed. "+
			"Its variables are lost, and the next call starts a new one", kernel.FormatDuration(limit))
	case e.Status == interrupted:
		o.status, o.exit = kernel.TimedOut, kernel.TimeoutCode
		op.Say(ctx, "The code ran longer than %s and was interrupted; the session and its variables are kept", kernel.FormatDuration(limit))
	case e.Status == waiting:
		o.status, o.exit = kernel.TimedOut, kernel.TimeoutCode
		op.Say(ctx, "The code was still waiting after %s. The session and its variables are kept, and pending "+
			"operations of the code continue in the background", kernel.FormatDuration(limit))
	case e.Status == kernel.Failed:
		o.status, o.exit = kernel.Failed, 1
	}
	return nil
}

// reportExit reports that the process of the session has exited.
func (s *Service) reportExit(ctx context.Context, p *process, o *outcome, r *recorder) {
	exit := p.Exit()
	o.exit = exit.Code
	if exit.Code != 0 {
		o.status = kernel.Failed
	}
	if exit.Signal != 0 {
		r.record([]output{failure("ProcessDied", describeExit(exit))})
	}
	op.Say(ctx, "The session's process has ended: %s. Its variables are lost, and the next call starts a new one", describeExit(exit))
}

// Statuses of a cell that timed out: it was stopped, or it only waits and continues in the
// background.
const (
	interrupted = "interrupted"
	waiting     = "waiting"
)

// waitEnd says why the wait for a cell ended.
type waitEnd int

const (
	ended waitEnd = iota
	died
	unresponsive
)

// watch is the wait for the end of a cell.
type watch struct {
	p     *process
	id    int
	r     *recorder
	grace time.Duration
}

// wait returns when the cell has ended. When ctx ends or an output cannot be delivered, it
// interrupts the cell in three steps. First it queries the worker, which replies if the code
// only waits; then it terminates the code; then it interrupts the programs that the code
// waits for. It repeats the steps, because one may come too early. The grace period starts
// after the termination, which may be late on a busy machine.
func (w watch) wait(ctx context.Context) (cellEnd, waitEnd) {
	out := w.p.transcript()
	done := ctx.Done()
	var terminated <-chan struct{}
	var next, over <-chan time.Time
	begin := func() {
		select {
		case <-w.p.terminated: // for a previous cell
		default:
		}
		done, terminated = nil, w.p.terminated
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
		case <-w.p.finished:
			return cellEnd{}, died
		case <-done:
			begin()
		case <-terminated:
			terminated, over = nil, time.After(w.grace)
		case <-next:
			next = time.After(w.interrupt(step))
			step++
		case <-over:
			return cellEnd{}, unresponsive
		}
	}
}

// patience is how many grace periods to wait for the termination of the code.
const patience = 4

// interrupt takes one of the steps and returns how long to wait for its effect.
func (w watch) interrupt(step int) time.Duration {
	switch step % 3 {
	case 0:
		w.p.send(message{Interrupt: w.id})
		return 100 * time.Millisecond
	case 1:
		w.p.terminate()
		return 200 * time.Millisecond
	}
	w.p.interrupt()
	return 200 * time.Millisecond
}
