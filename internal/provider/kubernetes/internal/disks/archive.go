package disks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/archive"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/connect"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// archives copies whole disks to archives, through the first process of a Pod.
type archives struct {
	*archive.Store
	creator   *create.Creator
	connector *connect.Connector
}

// Cut implements copier.
func (a *archives) Cut(ctx context.Context, b *box.Box, src *catalog.Source) error {
	spec, from := b.Record.Sandbox.Spec, b.Tunnel
	switch {
	case b.Record.Sandbox.State == sandbox.Running:
	case !b.Config.Persistent:
		return fmt.Errorf("%w: the disk of a Pod that has ended cannot be read", sandbox.ErrState)
	default: // only the home remains
		mounted, end, err := a.mountHome(ctx, b)
		if err != nil {
			return err
		}
		defer end()
		from = mounted
	}
	// Twice, because a home on another volume can be as large as the rest of the disk.
	limit := 2*cmp.Or(spec.Resources.Disk, b.Config.Defaults.Disk) + 64<<20
	var err error
	src.Archive, src.Size, err = a.Upload(ctx, spec.Owner, limit, func(ctx context.Context, w io.Writer) error {
		switch err := from.Save(ctx, w); {
		case err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrExhausted):
			return err
		case errors.Is(err, tunnel.ErrRefused):
			return fmt.Errorf("%w: %w", sandbox.ErrState, err)
		default:
			return fmt.Errorf("%w: the copy of the disk was interrupted: %w", sandbox.ErrUnavailable, err)
		}
	})
	return err
}

// Await implements copier: an archive is complete as soon as it exists.
func (a *archives) Await(context.Context, *catalog.Source) error { return nil }

// Limits implements copier.
func (a *archives) Limits() string {
	return "programs of a sandbox are stopped (SIGSTOP) while its disk is copied to the snapshot store, for the duration of the upload"
}

// Fill implements copier.
func (a *archives) Fill(ctx context.Context, b *box.Box) error {
	ctx, cancel := context.WithTimeout(ctx, archive.CopyTime)
	defer cancel()
	r, err := a.Open(ctx, b.Source.Archive)
	if err != nil {
		return err
	}
	defer r.Close()
	err = b.Tunnel.Fill(ctx, r)
	if err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrUnavailable) || errors.Is(err, sandbox.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: its disk cannot be filled: %w", sandbox.ErrNotReady, err)
}

// mountHome runs a Pod that mounts the home of a stopped sandbox and runs no program, until end is called.
func (a *archives) mountHome(ctx context.Context, b *box.Box) (c *tunnel.Client, end func(), err error) {
	pod, data, err := a.creator.CopyManifest(b)
	if err != nil {
		return nil, nil, err
	}
	if err := b.Save(ctx, data); err != nil {
		return nil, nil, err
	}
	// A Pod that an interrupted copy has left would conflict.
	name := pod.Metadata.Name
	if err := a.creator.RemovePod(ctx, b.API, name, 0); err != nil {
		return nil, nil, err
	}
	end = func() {
		if err := a.creator.RemovePod(ctx, b.API, name, 0); err != nil {
			b.Config.Log.Warn("cannot remove the Pod that has copied a disk; the next start of the hub retries", "pod", name, "error", err)
		}
	}
	if err := a.creator.Create(ctx, b.API, pod); err != nil {
		return nil, nil, err
	}
	c = a.connector.Via(b, name)
	if err := a.connector.WaitPod(ctx, b, name, c); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}
