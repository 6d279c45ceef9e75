package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/socket"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
)

// launcher starts the programs of sandboxes.
type launcher struct {
	cfg      Config
	disks    *disk.Store
	groups   *cgroup.Root
	sockets  *Sockets
	programs programs
	defaults defaults
	ids      *idRanges
	device   string        // device of the disks; "" if its rate cannot be limited
	starting chan struct{} // has an element for each sandbox that is starting
}

// maxQueueTime is how long a starting sandbox blocks others.
const maxQueueTime = 250 * time.Millisecond

// queue limits concurrent starts to the number of CPUs; a hundred concurrent starts would all be as slow as the last
// one. A slow start does not block others for long.
func (l *launcher) queue(ctx context.Context) (leave func(), err error) {
	select {
	case l.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var once sync.Once
	free := func() { once.Do(func() { <-l.starting }) }
	late := time.AfterFunc(maxQueueTime, free)
	return func() { late.Stop(); free() }, nil
}

// launch starts the isolated program.
func (l *launcher) launch(ctx context.Context, b *box, spec sandbox.Spec) (*isolate.Handle, []sandbox.Stage, error) {
	limited := l.limitSpare(b, spec)
	cfg, closeFiles, err := l.isolation(b, spec)
	limitErr := <-limited
	if err != nil {
		return nil, nil, errors.Join(err, limitErr)
	}
	defer closeFiles()
	if err = limitErr; b.spare != nil && cfg.Runtime {
		err = errors.Join(err, b.spare.Close()) // a runtime requires a different init
		b.spare = nil
	} else if b.spare == nil {
		b.group, err = l.groups.Create(b.rec.Sandbox.ID, l.groupLimits(spec.Resources))
	}
	if err != nil {
		return nil, nil, err
	}
	cfg.Group = b.group
	cfg.Spare, b.spare = b.spare, nil
	cfg.Gate = func(init isolate.Record) error {
		b.rec.Init = init
		l.sockets.setInit(b.rec.Sandbox.ID, init.PID)
		return b.save()
	}
	h, stages, err := isolate.Start(ctx, cfg)
	if err != nil {
		if exit, ok := isolate.ReadExit(b.path(exitName)); ok {
			err = fmt.Errorf("%w: %s", err, exit)
		}
		return nil, nil, errors.Join(err, b.kill(ctx))
	}
	b.run, b.rec.Init = h, h.Record()
	return h, stages, nil
}

// limitSpare sets the limits of the group of a spare while its caller does something else.
func (l *launcher) limitSpare(b *box, spec sandbox.Spec) <-chan error {
	limited := make(chan error, 1)
	if b.spare == nil {
		close(limited)
		return limited
	}
	group := b.group
	go func() { limited <- group.Set(l.groupLimits(spec.Resources)) }()
	return limited
}

// waitReady waits until the server is ready. The error contains the last output of the program.
func (l *launcher) waitReady(ctx context.Context, b *box, spec sandbox.Spec) error {
	err := l.cfg.Servers.WaitReady(ctx, socket.Server{
		Dir: b.sockets, Sandbox: b.rec.Sandbox, Path: spec.Server.ReadyPath, Timeout: spec.Server.ReadyTimeout, Ended: b.run.Done(),
	})
	switch {
	case errors.Is(err, socket.ErrEnded):
		return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, b.exitReason(), b.lastOutput())
	case errors.Is(err, sandbox.ErrNotReady):
		return fmt.Errorf("%w%s", err, b.lastOutput())
	}
	return err
}

// applyLimits applies changed resources.
func (l *launcher) applyLimits(b *box, before sandbox.Resources) error {
	spec := b.rec.Sandbox.Spec
	if spec.Resources == before {
		return nil
	}
	if err := l.setDiskLimit(b); err != nil || b.run == nil {
		return err
	}
	b.demand = demand{} // Set restores the full share
	return b.group.Set(l.groupLimits(l.defaults.complete(spec, b.rec.Image).Resources))
}

// groupLimits are the limits of a sandbox's control group.
func (l *launcher) groupLimits(r sandbox.Resources) cgroup.Limits {
	g := limits(r).Group()
	g.Device, g.DiskRate = l.device, r.DiskRate
	return g
}
