package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// volumes manages the volumes of the engine.
type volumes struct {
	*session
	mu sync.Mutex // held while volumes are created and deleted
}

// name returns the name of a volume on the engine.
func (o *volumes) name(owner, name string) string {
	sum := sha256.Sum256([]byte(owner))
	return "cove-" + o.instance + "-" + hex.EncodeToString(sum[:8]) + "-" + name
}

// use creates the missing volumes of a spec. The sandbox must be in the table, so that its volumes cannot be deleted.
func (o *volumes) use(ctx context.Context, spec sandbox.Spec) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range spec.Volumes {
		if _, err := o.find(ctx, spec.Owner, v.Name); errdefs.IsNotFound(err) {
			_, err = o.create(ctx, spec.Owner, v.Name)
			if err != nil {
				return err
			}
		} else if err != nil {
			return fmt.Errorf("find volume: %w", err)
		}
	}
	return nil
}

func (o *volumes) find(ctx context.Context, owner, name string) (volume.Volume, error) {
	got, err := o.engine.VolumeInspect(ctx, o.name(owner, name), client.VolumeInspectOptions{})
	return got.Volume, err
}

func (o *volumes) create(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	call, cancel := steady(ctx)
	defer cancel()
	now := time.Now().Round(0)
	labels := map[string]string{labelHub: o.instance, labelOwner: owner, labelVolume: name, labelCreated: now.Format(time.RFC3339Nano)}
	if _, err := o.engine.VolumeCreate(call, client.VolumeCreateOptions{Name: o.name(owner, name), Labels: labels}); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("create volume: %w", err)
	}
	return sandbox.VolumeInfo{Name: name, Owner: owner, Created: now, Sandboxes: []string{}}, nil
}

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	p.volumes.mu.Lock()
	defer p.volumes.mu.Unlock()
	switch _, err := p.volumes.find(ctx, owner, name); {
	case err == nil:
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	case !errdefs.IsNotFound(err):
		return sandbox.VolumeInfo{}, fmt.Errorf("find volume: %w", err)
	}
	return p.volumes.create(ctx, owner, name)
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := p.engine.VolumeList(ctx, client.VolumeListOptions{Filters: p.own()})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	sizes, err := p.volumes.sizes(ctx, len(list.Items) > 0)
	if err != nil {
		return nil, err
	}
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeInfo{}
	for _, v := range list.Items {
		info := sandbox.VolumeInfo{Name: v.Labels[labelVolume], Owner: v.Labels[labelOwner], Size: sizes[v.Name]}
		if owner != "" && owner != info.Owner {
			continue
		}
		info.Created, _ = time.Parse(time.RFC3339Nano, v.Labels[labelCreated])
		info.Sandboxes = sandbox.VolumeUsers(boxes, info.Owner, info.Name)
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// sizes measures all volumes of the engine.
func (o *volumes) sizes(ctx context.Context, wanted bool) (map[string]int64, error) {
	sizes := map[string]int64{}
	if !wanted {
		return sizes, nil
	}
	usage, err := o.engine.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("measure volumes: %w", err)
	}
	for _, v := range usage.Volumes.Items {
		if v.UsageData != nil {
			sizes[v.Name] = max(v.UsageData.Size, 0)
		}
	}
	return sizes, nil
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	missing := fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	if sandbox.CheckName(name) != nil {
		return missing
	}
	p.volumes.mu.Lock()
	defer p.volumes.mu.Unlock()
	v, err := p.volumes.find(ctx, owner, name)
	switch {
	case errdefs.IsNotFound(err), err == nil && v.Labels[labelOwner] != owner:
		return missing
	case err != nil:
		return fmt.Errorf("find volume: %w", err)
	}
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return err
	}
	if ids := sandbox.VolumeUsers(boxes, owner, name); len(ids) > 0 {
		return fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(ids, ", "))
	}
	call, cancel := steady(ctx)
	defer cancel()
	if _, err := p.engine.VolumeRemove(call, p.volumes.name(owner, name), client.VolumeRemoveOptions{}); err != nil &&
		!errdefs.IsNotFound(err) {
		return fmt.Errorf("delete volume: %w", err)
	}
	return nil
}
