package jupyter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/pyenv"
)

const (
	// installWait limits how long a call without a stream waits for the Python environment. Many
	// clients end a request after 30 seconds.
	installWait = 25 * time.Second
	// installTime limits a build of the environment.
	installTime = 20 * time.Minute
	// installRetry is how long a failed build is reported before the next call tries again.
	installRetry = time.Minute
	// progressEvery is the interval between two reads of the progress.
	progressEvery = 200 * time.Millisecond
)

// installer builds a Python environment with a kernel, on first use and in the background. Calls
// wait for it.
type installer struct {
	dir   string
	start func() error  // starts a build
	mine  func() bool   // whether this program can build it
	wait  time.Duration // limit of the wait of a call without a stream

	mu     sync.Mutex
	failed time.Time // end of the last build, which failed
	last   error
	done   chan struct{} // closed at the end of the current build; nil: none runs
}

// newInstaller returns the installer of a service.
func (s *Service) newInstaller() *installer {
	i := &installer{dir: s.Venv, wait: installWait, mine: func() bool { return pyenv.IsWritable(s.Venv) }}
	i.start = func() error {
		python, ok := s.Runner.Look(s.Python, "python3", "python")
		if !ok {
			return errors.New("no Python is installed; apt-get install python3 python3-venv")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sessions.Closed() {
			return session.ErrStopping()
		}
		s.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(s.life, installTime)
			defer cancel()
			i.finish(pyenv.Build(ctx, pyenv.Config{Runner: s.Runner, Python: python, Dir: s.Venv, Packages: []byte(s.Packages), Log: s.Log}))
		})
		return nil
	}
	return i
}

// begin starts a build, unless one runs or another program owns the environment. The returned channel
// is closed at the end of the build; nil means that another program builds it.
func (i *installer) begin() (<-chan struct{}, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.done != nil:
		return i.done, nil
	case i.dir == "" || pyenv.IsComplete(i.dir):
		return nil, kernel.ErrNoPython
	case !i.mine():
		p, ok := pyenv.ReadProgress(i.dir)
		switch {
		case !ok:
			return nil, kernel.ErrNoPython
		case p.Failure != "":
			return nil, errors.New(p.Failure)
		}
		return nil, nil
	case i.last != nil && time.Since(i.failed) < installRetry:
		return nil, i.last
	}
	if err := i.start(); err != nil {
		return nil, err
	}
	i.done = make(chan struct{})
	return i.done, nil
}

func (i *installer) isRunning() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.done != nil
}

func (i *installer) finish(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last, i.failed = err, time.Now()
	close(i.done)
	i.done = nil
}

// ensurePython builds an environment with a Python kernel if the machine has none. If emit is not nil, it emits the
// progress and waits for the end; otherwise it waits a limited time, and the error has the progress.
func (s *Service) ensurePython(ctx context.Context, name string, emit func(kernel.Output) error) error {
	if !isPython(name) {
		return nil
	}
	for _, age := range []time.Duration{anyAge, time.Second} { // it may have been installed after the search
		if s.installer.isRunning() { // a search is slow then
			break
		}
		if _, err := s.specs.get(ctx, age); !errors.Is(err, kernel.ErrNoPython) {
			return nil // kernelSpec reports other errors
		}
	}
	done, err := s.installer.begin()
	if err == nil {
		err = s.awaitPython(ctx, done, emit)
	}
	if err != nil {
		if _, ok := op.AsError(err); ok {
			return err
		}
		return op.Errorf(op.Unavailable, "no Python kernel: %w; a hub provides one to its sandboxes with cove hub --venv auto", err)
	}
	_, _ = s.specs.get(ctx, 0) // kernelSpec reports the error
	return nil
}

// awaitPython waits for the end of a build and emits its progress.
func (s *Service) awaitPython(ctx context.Context, done <-chan struct{}, emit func(kernel.Output) error) error {
	ticks := time.NewTicker(progressEvery)
	defer ticks.Stop()
	var over <-chan time.Time
	if emit == nil {
		limit := time.NewTimer(s.installer.wait)
		defer limit.Stop()
		over = limit.C
	}
	shown := ""
	for {
		p, running := pyenv.ReadProgress(s.Venv)
		if running && p.Step != shown && emit != nil {
			shown = p.Step
			if err := emit(kernel.Output{Type: kernel.Stream, Name: "stderr", Text: "Installing Python: " + p.Step + "\n"}); err != nil {
				return op.Errorf(op.Canceled, "the request was canceled; the installation of Python continues")
			}
		}
		select {
		case <-ticks.C:
			if done == nil && p.Failure != "" {
				return errors.New(p.Failure)
			}
			if done == nil && !running {
				return nil
			}
		case <-done:
			s.installer.mu.Lock()
			defer s.installer.mu.Unlock()
			return s.installer.last
		case <-over:
			return op.Errorf(op.Unavailable, "Python is being installed (%s); try again in a few seconds", p.Step)
		case <-ctx.Done():
			return op.Errorf(op.Canceled, "the request was canceled; the installation of Python continues")
		}
	}
}

// describeMissing says why there is no Python kernel, or how far its installation is.
func (s *Service) describeMissing(err error) string {
	switch p, ok := pyenv.ReadProgress(s.Venv); {
	case ok && p.Failure != "":
		return p.Failure
	case ok:
		return "Python is being installed: " + p.Step
	}
	return err.Error()
}
