package jupyter

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
)

// inSession runs a cell in a session, which it makes if there is none.
func (s *Service) inSession(ctx context.Context, in ExecuteIn, dir string, limit time.Duration, emit func(kernel.Output) error) (outcome, error) {
	ss, made, err := s.enter(ctx, value(in.SessionID), value(in.KernelName), dir)
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
		return outcome{}, op.Errorf(op.Conflict, "session %q was busy with other cells for %s, so nothing was run; try again, or use another session", ss.id, seconds(limit))
	}
	k, err := s.kernelOf(ctx, ss)
	if err != nil {
		if made {
			s.withdraw(ss)
		}
		return outcome{}, err
	}
	if dir != "" && !made {
		if err := move(ctx, k, dir); err != nil {
			return outcome{}, err
		}
		ss.dir = dir
	}
	if lost := ss.lost; lost != "" {
		ss.lost = ""
		op.Hint(ctx, "This is a new kernel without the variables of the one before: %s", lost)
	}
	if !s.occupy(ss, true) {
		return outcome{}, s.abandoned(ss)
	}
	o, err := s.cell(ctx, k, in.Code, limit, emit)
	s.occupy(ss, false)
	o.kernel, o.session = ss.spec.Name, ss.id
	if errors.Is(err, kernel.ErrClosed) {
		err = s.abandoned(ss)
	}
	switch {
	case o.fate != "":
		op.Say(ctx, "%s: its variables are lost, and the next call starts a new one", o.fate)
	case o.status == timedOut:
		op.Say(ctx, "The cell ran longer than %s and was interrupted; the kernel and its variables are kept", seconds(limit))
	}
	if k.Err() != nil || o.reply.Exit {
		s.detach(ss, k)
		if err != nil {
			ss.lost = "it did not let itself be interrupted" // the caller who could be told is gone
		}
	}
	return o, err
}

// occupy marks that a cell runs, unless the session was deleted meanwhile.
func (s *Service) occupy(ss *session, busy bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss.busy = busy
	return !ss.removed
}

// detach lets go of a kernel that has ended or will.
func (s *Service) detach(ss *session, k *kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss.k == k && !ss.removed {
		ss.k = nil
		s.tasks.Go(func() { k.Shutdown(s.life) })
	}
}

// abandoned says why a session's kernel is gone that we ended.
func (s *Service) abandoned(ss *session) error {
	if s.stopping() {
		return errStopping()
	}
	return op.Errorf(op.Conflict, "session %q was deleted while a cell ran in it or waited to; its kernel was ended", ss.id)
}

// kernelOf is that of a session, started if need be. The caller has the turn.
func (s *Service) kernelOf(ctx context.Context, ss *session) (*kernel.Kernel, error) {
	s.mu.Lock()
	k, removed := ss.k, ss.removed
	s.mu.Unlock()
	switch {
	case removed:
		return nil, s.abandoned(ss)
	case k != nil && k.Err() == nil:
		return k, nil
	case k != nil:
		ss.lost = k.Err().Error()
		s.detach(ss, k)
	}
	k, err := s.take(ctx, ss.spec, ss.dir)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if ss.removed {
		s.mu.Unlock()
		k.Close()
		return nil, s.abandoned(ss)
	}
	defer s.mu.Unlock()
	ss.k = k
	return k, nil
}
