package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// wakeLimit is the timeout of an attempt to wake a sandbox.
	wakeLimit = 5 * time.Minute
	// wakeBackoff is the pause after a failed attempt: callers retry faster than a broken program
	// fails.
	wakeBackoff = 3 * time.Second
)

// waking is one attempt to wake a sandbox, for which any number of callers wait.
type waking struct {
	done  chan struct{}
	err   error // valid after done is closed
	ended time.Time
}

// ErrWaking means that a sandbox is not awake yet.
var ErrWaking = errors.New("the sandbox is waking up")

// Enter counts an in-flight request and returns when the sandbox is awake, or ErrWaking after the
// caller's patience. The caller must call Leave.
func (f *Fleet) Enter(ctx context.Context, sb sandbox.Sandbox, patience time.Duration) (*Box, error) {
	b := f.box(sb)
	if err := b.use(ctx); err != nil {
		return nil, err
	}
	if err := f.waitAwake(ctx, b, patience); err != nil {
		b.Leave()
		return nil, err
	}
	return b, nil
}

// Visit is Enter for callers with read-only access and for automatic requests of pages: it does not wake a sandbox or keep it awake.
func (f *Fleet) Visit(_ context.Context, sb sandbox.Sandbox) (*Box, error) {
	if sb.State != sandbox.Running {
		return nil, op.Errorf(op.Conflict,
			"sandbox %q is %s; read-only access and requests with wake=false do not wake it; start it, or ask its owner", sb.Spec.Name, sb.State)
	}
	return f.box(sb), nil
}

// waitAwake returns when the sandbox runs.
func (f *Fleet) waitAwake(ctx context.Context, b *Box, patience time.Duration) error {
	sb, err := f.Provider.Get(ctx, b.id)
	if err != nil || sb.State == sandbox.Running {
		return err
	}
	w := f.startWake(b)
	if w == nil {
		return sandbox.ErrClosed
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.done:
		return w.err
	case <-timer.C:
		return ErrWaking
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startWake starts to wake a sandbox, or joins the current attempt. The attempt outlives its callers.
func (f *Fleet) startWake(b *Box) *waking {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.waking; w != nil {
		select {
		case <-w.done:
			if w.err != nil && time.Since(w.ended) < wakeBackoff {
				return w
			}
		default:
			return w
		}
	}
	w := &waking{done: make(chan struct{})}
	if !f.Tasks.Go(func(life context.Context) {
		defer close(w.done)
		ctx, cancel := context.WithTimeout(life, wakeLimit)
		defer cancel()
		err := f.wake(ctx, b)
		result := "woken"
		if err != nil {
			result = "failed"
			f.Log.Warn("cannot wake sandbox", "sandbox", b.id, "error", err)
			if life.Err() != nil {
				err = fmt.Errorf("%w: %w", sandbox.ErrClosed, err)
			}
		}
		w.err, w.ended = err, time.Now()
		f.counts.woken(1, result)
	}) {
		return nil
	}
	b.waking = w
	return w
}

// wake brings a sandbox from any state to Running.
func (f *Fleet) wake(ctx context.Context, b *Box) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		sb, err := f.Provider.Get(ctx, b.id)
		if err != nil {
			return err
		}
		switch sb.State {
		case sandbox.Running:
			f.Observe(sb)
			return nil
		case sandbox.Paused:
			err = f.Provider.Resume(ctx, b.id)
		case sandbox.Stopped, sandbox.Failed:
			f.openEgress(b, sb)
			err = f.Start(ctx, b.id, f.Provider.Start)
		case sandbox.Deleting:
			return sandbox.ErrNotFound
		case sandbox.Creating:
			err = sandbox.ErrState // its creator is working on it
		}
		switch {
		case err == nil:
			continue
		case !errors.Is(err, sandbox.ErrState):
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// Start starts a sandbox and sends it its secrets. If that fails, it stops the sandbox again, because
// its server would wait forever.
func (f *Fleet) Start(ctx context.Context, id string, start func(ctx context.Context, id string) error) error {
	if b := f.known(id); b != nil {
		// Connections from before the start are dead, before and after it.
		b.transport.CloseIdleConnections()
		defer b.transport.CloseIdleConnections()
	}
	before, err := f.Provider.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := start(ctx, id); err != nil {
		return err
	}
	sb, err := f.Provider.Get(ctx, id)
	if err != nil || before.State == sandbox.Running && before.Changed.Equal(sb.Changed) {
		return err
	}
	if err := f.Secrets.Provision(ctx, sb); err != nil {
		return errors.Join(err, f.Provider.Stop(context.WithoutCancel(ctx), id))
	}
	return nil
}

// Unreachable turns an error of Enter or Visit into one for the caller.
func Unreachable(name string, err error) error {
	var message string
	switch {
	case errors.Is(err, ErrWaking):
		message = "sandbox %q is waking up; retry in a moment"
	case errors.Is(err, context.DeadlineExceeded):
		message = "sandbox %q does not wake up; read its logs, or stop and start it"
	default:
		return fault.FromProvider(name, err)
	}
	return &op.Error{Code: op.Unavailable, RetryAfter: fault.RetrySoon, Err: err, Msg: fmt.Sprintf(message, name)}
}
