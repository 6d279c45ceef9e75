package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// freeze suspends all processes of a running sandbox: with its control group, or otherwise with signals
// from its init. After an error they run.
func (b *box) freeze(ctx context.Context) error {
	err := b.group.Freeze(ctx)
	if !withoutGroup(err) {
		return err
	}
	err = socket.Freeze(ctx, b.sockets, true)
	if errors.Is(err, control.ErrNotFrozen) {
		return fmt.Errorf("%w: %w", sandbox.ErrState, err)
	}
	if err != nil { // it may be frozen
		err = errors.Join(err, socket.Freeze(context.WithoutCancel(ctx), b.sockets, false))
	}
	return err
}

// withoutGroup reports whether an error means that the sandbox has no control group that can be frozen here:
// a hub before this one may have had none.
func withoutGroup(err error) bool {
	return errors.Is(err, cgroup.ErrNoFreezer) || errors.Is(err, fs.ErrNotExist)
}

// thaw ends freeze.
func (b *box) thaw(ctx context.Context) error {
	err := b.group.Thaw(ctx)
	if withoutGroup(err) {
		return socket.Freeze(ctx, b.sockets, false)
	}
	return err
}

// adoptFrozen finds out whether a sandbox that an earlier hub left is frozen. If that hub was killed
// while it paused or copied the sandbox, it is thawed.
func (b *box) adoptFrozen(ctx context.Context, canFreeze bool) (frozen bool, err error) {
	paused := b.rec.Sandbox.State == sandbox.Paused
	if !canFreeze { // init knows; both calls are no-ops if nothing changes
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		defer cancel()
		err := socket.Freeze(ctx, b.sockets, paused)
		if !paused && errors.Is(err, control.ErrNotFrozen) {
			err = nil // the init of an older hub, which never freezes
		}
		return paused, err
	}
	frozen, _ = b.group.Frozen()
	if frozen && !paused {
		return false, b.group.Thaw(ctx)
	}
	return frozen, nil
}
