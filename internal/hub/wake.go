package hub

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// wakeLimit ends a waking that leads nowhere.
	wakeLimit = 5 * time.Minute
	// wakeRest is how long a failed waking is not tried again: callers repeat
	// themselves faster than a broken program fails.
	wakeRest = 3 * time.Second

	retrySoon      = time.Second
	retryExhausted = 5 * time.Second
)

// flight is one waking, whoever waits for it.
type flight struct {
	done  chan struct{}
	err   error // from done on
	ended time.Time
}

// errWaking says that a sandbox is on its way but not there yet.
var errWaking = errors.New("the sandbox is waking up")

// enter counts a request in and returns when the sandbox is awake, or errWaking
// when that takes longer than the caller's patience. After a nil error the caller
// must leave the box.
func (h *Hub) enter(ctx context.Context, sb sandbox.Sandbox, patience time.Duration) (*box, error) {
	b := h.box(sb)
	if err := b.use(ctx); err != nil {
		return nil, err
	}
	err := h.awake(ctx, b, patience)
	if err != nil {
		b.leave()
		return nil, err
	}
	return b, nil
}

// awake returns when the sandbox runs.
func (h *Hub) awake(ctx context.Context, b *box, patience time.Duration) error {
	sb, err := h.cfg.Provider.Get(ctx, b.id)
	if err != nil || sb.State == sandbox.Running {
		return err
	}
	f := h.wake(b)
	if f == nil {
		return sandbox.ErrClosed
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.err
	case <-timer.C:
		return errWaking
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wake begins to wake a sandbox, or joins whoever does. It outlives its callers.
func (h *Hub) wake(b *box) *flight {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flight; f != nil {
		select {
		case <-f.done:
			if f.err != nil && time.Since(f.ended) < wakeRest {
				return f
			}
		default:
			return f
		}
	}
	f := &flight{done: make(chan struct{})}
	if !h.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, wakeLimit)
		defer cancel()
		f.err = h.rouse(ctx, b)
		f.ended = time.Now()
		result := "woken"
		if f.err != nil {
			result = "failed"
			h.cfg.Log.Warn("sandbox did not wake", "sandbox", b.id, "error", f.err)
		}
		h.counts.woken(1, result)
		close(f.done)
	}) {
		return nil
	}
	b.flight = f
	return f
}

// rouse leads a sandbox from any state to Running.
func (h *Hub) rouse(ctx context.Context, b *box) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		sb, err := h.cfg.Provider.Get(ctx, b.id)
		if err != nil {
			return err
		}
		switch sb.State {
		case sandbox.Running:
			h.see(sb)
			return nil
		case sandbox.Paused:
			err = h.cfg.Provider.Resume(ctx, b.id)
		case sandbox.Stopped, sandbox.Failed:
			// What is still open leads into the life before.
			b.transport.CloseIdleConnections()
			h.openEgress(b, sb)
			err = h.start(ctx, b.id, h.cfg.Provider.Start)
		case sandbox.Deleting:
			return sandbox.ErrNotFound
		case sandbox.Creating:
			err = sandbox.ErrState // its creator is at it
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

// unreachable tells a caller why it cannot get to a sandbox.
func (h *Hub) unreachable(name string, err error) error {
	if errors.Is(err, errWaking) {
		return &op.Error{Code: op.Unavailable, RetryAfter: retrySoon, Err: err,
			Msg: "sandbox \"" + name + "\" is waking up; ask again in a moment"}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &op.Error{Code: op.Unavailable, RetryAfter: retrySoon, Err: err,
			Msg: "sandbox \"" + name + "\" does not wake up; see its logs, or stop and start it"}
	}
	return h.wire(name, err)
}
