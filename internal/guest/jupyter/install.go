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

// failure returns the error of the last build.
func (i *installer) failure() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last
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
		progress := func() (string, bool, error) { return s.pythonProgress(done != nil) }
		err = s.await(ctx, installation{"Python", done, progress, s.installer.failure}, emit)
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

// pythonProgress returns the state of a build. It is over only if another program builds the environment.
func (s *Service) pythonProgress(mine bool) (step string, over bool, err error) {
	p, running := pyenv.ReadProgress(s.Venv)
	if !mine && p.Failure != "" {
		return p.Step, true, errors.New(p.Failure)
	}
	return p.Step, !mine && !running, nil
}

// installation is an installation in progress.
type installation struct {
	title string
	done  <-chan struct{} // closed at its end; nil: progress reports the end
	// progress returns the current step.
	progress func() (step string, over bool, err error)
	failure  func() error // after done
}

// await waits for the end of an installation and emits its progress.
func (s *Service) await(ctx context.Context, i installation, emit func(kernel.Output) error) error {
	ticks := time.NewTicker(progressEvery)
	defer ticks.Stop()
	var limit <-chan time.Time
	if emit == nil {
		timer := time.NewTimer(s.installer.wait)
		defer timer.Stop()
		limit = timer.C
	}
	canceled := op.Errorf(op.Canceled, "the request was canceled; the installation of %s continues", i.title)
	shown := ""
	for {
		step, over, err := i.progress()
		if step != "" && step != shown && emit != nil {
			shown = step
			if emit(kernel.Output{Type: kernel.Stream, Name: "stderr", Text: "Installing " + i.title + ": " + step + "\n"}) != nil {
				return canceled
			}
		}
		if over {
			return err
		}
		select {
		case <-ticks.C:
		case <-i.done:
			return i.failure()
		case <-limit:
			return op.Errorf(op.Unavailable, "%s is being installed (%s); try again in a few seconds", i.title, step)
		case <-ctx.Done():
			return canceled
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
