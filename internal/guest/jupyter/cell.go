package jupyter

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
)

// runInSession runs a cell in a session, which it creates if it does not exist.
func (s *Service) runInSession(ctx context.Context, in ExecuteIn, dir string, limit time.Duration,
	emit func(kernel.Output) error) (outcome, error) {
	ss, made, err := s.enter(ctx, op.Value(in.SessionID), op.Value(in.KernelName), dir)
	if err != nil {
		return outcome{}, err
	}
	defer s.leave(ss)
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case ss.turn <- struct{}{}:
		defer func() { <-ss.turn }()
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Conflict,
			"session %q was busy with other cells for %s; try again, or use another session", ss.ID, kernel.FormatDuration(limit))
	}
	k, err := s.ensureKernel(ctx, ss)
	if err != nil {
		if made {
			s.remove(ss)
		}
		return outcome{}, err
	}
	if dir != "" && !made {
		if err := changeDir(ctx, k, dir); err != nil {
			return outcome{}, err
		}
		ss.dir = dir
	}
	if lost := ss.lost; lost != "" {
		ss.lost = ""
		op.Hint(ctx, "This is a new kernel without the variables of the previous one: %s", lost)
	}
	if !s.setBusy(ss, true) {
		return outcome{}, s.abandonedError(ss)
	}
	o, err := s.runCell(ctx, k, in.Code, limit, emit)
	s.setBusy(ss, false)
	o.kernel, o.session = ss.spec.Name, ss.ID
	if errors.Is(err, kernel.ErrClosed) {
		err = s.abandonedError(ss)
	}
	switch {
	case o.ended != "":
		op.Say(ctx, "%s. Its variables are lost, and the next call starts a new one", o.ended)
	case o.status == kernel.TimedOut:
		op.Say(ctx, "The cell ran longer than %s and was interrupted; the kernel and its variables are kept", kernel.FormatDuration(limit))
	}
	if k.Err() != nil || o.reply.Exit {
		s.dropKernel(ss, k)
		if err != nil {
			ss.lost = "it ignored the interrupt" // reported to the next caller
		}
	}
	return o, err
}

// setBusy records whether a cell runs, and reports whether the session still exists.
func (s *Service) setBusy(ss *Session, busy bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.busy = busy
	return !ss.Removed()
}

// dropKernel detaches a kernel that has exited or is about to.
func (s *Service) dropKernel(ss *Session, k *kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss.k == k && !ss.Removed() {
		ss.k = nil
		s.tasks.Go(func() { _ = k.Shutdown(s.life) })
	}
}

// abandonedError says why the service ended a session's kernel.
func (s *Service) abandonedError(ss *Session) error {
	if s.stopping() {
		return session.ErrStopping()
	}
	return op.Errorf(op.Conflict, "session %q was deleted while a cell ran in it or waited for its turn", ss.ID)
}

// ensureKernel returns the kernel of a session and starts it if necessary. The caller
// has the turn.
func (s *Service) ensureKernel(ctx context.Context, ss *Session) (*kernel.Kernel, error) {
	s.mu.Lock()
	k, removed := ss.k, ss.Removed()
	s.mu.Unlock()
	switch {
	case removed:
		return nil, s.abandonedError(ss)
	case k != nil && k.Err() == nil:
		return k, nil
	case k != nil:
		ss.lost = k.Err().Error()
		s.dropKernel(ss, k)
	}
	k, err := s.takeKernel(ctx, ss.spec, ss.dir)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if ss.Removed() {
		s.mu.Unlock()
		k.Close()
		return nil, s.abandonedError(ss)
	}
	defer s.mu.Unlock()
	ss.k = k
	return k, nil
}
