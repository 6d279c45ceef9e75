package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/archive"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// copyPlan is the plan of a Pod that runs nothing, beside that of the sandbox in its Secret.
const copyPlan = "copy.json"

// archives copies whole disks into archives, by way of the first process of a Pod.
type archives struct {
	*archive.Store
	runner *runner
}

// cut implements copier.
func (a *archives) cut(ctx context.Context, b *box, src *catalog.Source) error {
	spec, from, cfg := b.rec.Sandbox.Spec, b.tunnel, a.runner.cfg
	switch {
	case b.rec.Sandbox.State == sandbox.Running:
	case !cfg.Persistent:
		return fmt.Errorf("%w: the disk of a Pod that has ended cannot be read", sandbox.ErrState)
	default: // the home is all that is left of the disk
		held, end, err := a.runner.hold(ctx, b)
		if err != nil {
			return err
		}
		defer end()
		from = held
	}
	// Twice, since a home that is kept apart has as much room as the rest.
	limit := 2*cmp.Or(spec.Resources.Disk, cfg.Defaults.Disk) + 64<<20
	var err error
	src.Archive, src.Size, err = a.Upload(ctx, spec.Owner, limit, func(ctx context.Context, w io.Writer) error {
		switch err := from.Save(ctx, w); {
		case err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrExhausted):
			return err
		case errors.Is(err, tunnel.ErrRefused):
			return fmt.Errorf("%w: %w", sandbox.ErrState, err)
		default:
			return fmt.Errorf("%w: the copy of the disk was cut short: %w", sandbox.ErrUnavailable, err)
		}
	})
	return err
}

// await implements copier: an archive is complete as soon as it is there.
func (a *archives) await(context.Context, *catalog.Source) error { return nil }

// limits implements copier.
func (a *archives) limits() string {
	return "programs of a sandbox are stopped (SIGSTOP) while its disk is copied to the snapshot store, which takes as long as the upload"
}

// fill implements copier.
func (a *archives) fill(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(ctx, archive.CopyTime)
	defer cancel()
	r, err := a.Open(ctx, b.src.Archive)
	if err != nil {
		return err
	}
	defer r.Close()
	err = b.tunnel.Fill(ctx, r)
	if err == nil || ctx.Err() != nil || errors.Is(err, sandbox.ErrUnavailable) || errors.Is(err, sandbox.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: its disk cannot be filled: %w", sandbox.ErrNotReady, err)
}

// hold runs a Pod that has the home of a sandbox, and does nothing with it, until end.
func (r *runner) hold(ctx context.Context, b *box) (c *tunnel.Client, end func(), err error) {
	plan := r.plan(b.rec.Sandbox.Spec)
	plan.Hold, plan.Command, plan.Env = true, nil, nil
	data, err := json.Marshal(plan)
	if err != nil {
		return nil, nil, err
	}
	if err := r.save(ctx, b, map[string][]byte{copyPlan: data}); err != nil {
		return nil, nil, err
	}
	holder := r.makePod(b)
	name := b.rec.Sandbox.ID + "-copy"
	holder.Metadata.Name, holder.Spec.Containers[0].Image, holder.Spec.Containers[0].ReadinessProbe = name, r.cfg.Programs, nil
	keep := func(name string) bool { return !strings.HasPrefix(name, "volume-") }
	holder.Spec.Volumes = slices.DeleteFunc(holder.Spec.Volumes, func(v volumeSpec) bool { return !keep(v.Name) })
	main := &holder.Spec.Containers[0]
	main.VolumeMounts = slices.DeleteFunc(main.VolumeMounts, func(m mountSpec) bool { return !keep(m.Name) })
	for _, v := range holder.Spec.Volumes {
		if v.Secret != nil {
			v.Secret.Items[slices.IndexFunc(v.Secret.Items, func(k keyPath) bool { return k.Key == containerinit.PlanName })].Key = copyPlan
		}
	}
	// One that an earlier copy has left would be in the way.
	if err := r.endPod(ctx, b.api, name, 0); err != nil {
		return nil, nil, err
	}
	end = func() {
		if err := r.endPod(ctx, b.api, name, 0); err != nil {
			r.cfg.Log.Warn("cannot remove the Pod that has copied a disk; the next start of the hub does", "pod", name, "error", err)
		}
	}
	if err := r.createPod(ctx, b.api, holder); err != nil {
		return nil, nil, err
	}
	c = b.tunnel.Via(func(ctx context.Context) (net.Conn, error) { return r.dial(ctx, b.api, name) })
	if err := r.waitPod(ctx, b, name, c); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}
