package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// volumes is the claims of volumes and homes.
type volumes struct {
	*session
	mu sync.Mutex // held while volumes are created and deleted
}

// name is the cluster's name of a volume.
func (o *volumes) name(owner, name string) string {
	return "cove-" + o.cfg.Name + "-" + hashOwner(owner) + "-" + name
}

// newClaim is a claim of some size.
func (o *volumes) newClaim(m meta, size int64, mode string) claim {
	c := claim{object: api.NewObject("v1", "PersistentVolumeClaim", m)}
	c.Spec = claimSpec{AccessModes: []string{mode}, Resources: resources{Requests: map[string]string{"storage": number(size)}}}
	if o.cfg.StorageClass != "" {
		c.Spec.StorageClassName = &o.cfg.StorageClass
	}
	return c
}

// use creates the claims that a new sandbox needs and that do not exist. The sandbox is in the
// table by now, so nobody deletes its volumes.
func (o *volumes) use(ctx context.Context, b *box) error {
	sb := b.rec.Sandbox
	if o.cfg.Persistent {
		if err := o.createHome(ctx, b); err != nil {
			return err
		}
	}
	return o.alone(func() error {
		for _, v := range sb.Spec.Volumes {
			if _, err := o.create(ctx, sb.Spec.Owner, v.Name); err != nil && !api.IsConflict(err) {
				return err
			}
		}
		return nil
	})
}

// createHome creates the claim of the next Pod's home, made of a snapshot if there is one.
func (o *volumes) createHome(ctx context.Context, b *box) error {
	sb := b.rec.Sandbox
	size := cmp.Or(sb.Spec.Resources.Disk, o.cfg.Defaults.Disk)
	if b.src != nil && b.src.Volume != "" {
		size = max(size, b.src.Size)
	}
	home := o.newClaim(meta{Name: b.home(), Labels: o.labels(sb), Annotations: notes(sb), OwnerReferences: b.owner()}, size, "ReadWriteOnce")
	if b.src != nil && b.src.Volume != "" {
		_, name, _ := strings.Cut(b.src.Volume, "/")
		home.Spec.DataSource = &dataSource{APIGroup: volumesnapshot.Group, Kind: "VolumeSnapshot", Name: name}
	}
	if err := b.api.Create(ctx, claims, home, nil); err != nil {
		return fmt.Errorf("create PersistentVolumeClaim: %w", explain(err))
	}
	return nil
}

// remakeHome creates the home that takes the place of another, if there is to be one.
func (o *volumes) remakeHome(ctx context.Context, b *box) error {
	if !b.remade() {
		return nil
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	return o.createHome(call, b)
}

// dropHome removes a home that was to take the place of another.
func (o *volumes) dropHome(ctx context.Context, b *box) error {
	if !b.remade() {
		return nil
	}
	return o.removeClaim(ctx, b.api, b.home())
}

// forgetHome removes a home that another has taken the place of.
func (o *volumes) forgetHome(ctx context.Context, b *box, name string) {
	if err := o.removeClaim(ctx, b.api, name); err != nil {
		o.cfg.Log.Warn("cannot remove the home that a sandbox had before; the next start of the hub does", "claim", name, "error", err)
	}
}

// noteProvisioner is the annotation of a claim whose volume is being made.
const noteProvisioner = "volume.kubernetes.io/storage-provisioner"

// filling reports whether the home of the next Pod is being made of a snapshot, for which a node waits.
func (o *volumes) filling(ctx context.Context, b *box) bool {
	if b.src == nil || b.src.Volume == "" {
		return false
	}
	var home claim
	err := b.api.Get(ctx, claims, b.home(), &home)
	return err == nil && home.Status.Phase == "Pending" && home.Metadata.Annotations[noteProvisioner] != ""
}

// create creates a volume; a conflict says that it exists.
func (o *volumes) create(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	call, cancel := api.Steady(ctx)
	defer cancel()
	mode := "ReadWriteOnce"
	if o.cfg.SharedVolumes {
		mode = "ReadWriteMany"
	}
	m := meta{Name: o.name(owner, name), Labels: map[string]string{labelHub: o.cfg.Name, labelKind: kindVolume, labelOwner: hashOwner(owner)},
		Annotations: map[string]string{noteVolume: name, noteOwner: owner, noteCreated: time.Now().UTC().Format(time.RFC3339Nano)}}
	var made claim
	if err := o.of(owner).Create(call, claims, o.newClaim(m, o.cfg.VolumeSize, mode), &made); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("create volume: %w", explain(err))
	}
	return made.volume(), nil
}

// volume describes the volume of a claim.
func (c claim) volume() sandbox.VolumeInfo {
	notes := c.Metadata.Annotations
	info := sandbox.VolumeInfo{Name: notes[noteVolume], Owner: notes[noteOwner], Sandboxes: []string{},
		Limit: api.Quantity(c.Spec.Resources.Requests["storage"])}
	info.Size = api.Quantity(c.Status.Capacity["storage"])
	info.Created, _ = time.Parse(time.RFC3339Nano, notes[noteCreated])
	return info
}

// alone calls do while nobody else creates or deletes volumes.
func (o *volumes) alone(do func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return do()
}

// removeClaim deletes a claim and returns when it is gone.
func (o *volumes) removeClaim(ctx context.Context, place *client, name string) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := place.Remove(call, claims, name, -1); err != nil {
		return err
	}
	return o.awaitGone(ctx, place, name)
}

// awaitGone waits until a claim that was deleted is gone: the cluster keeps it until it has noticed that no Pod uses it any more.
// Until then, no other can have its name, and it counts for a quota.
func (o *volumes) awaitGone(ctx context.Context, place *client, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTime)
	defer cancel()
	for pause := api.MinRetry; ; pause = min(2*pause, confirmTick) {
		var found claim
		switch err := place.Get(ctx, claims, name, &found); {
		case api.IsMissing(err) || err == nil && found.Metadata.DeletionTimestamp == nil: // which is another of that name
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done(): // others may hold on to it for as long as they like
			o.cfg.Log.Warn("a PersistentVolumeClaim was deleted, but the cluster keeps it", "claim", name)
			return nil
		case <-time.After(pause):
		}
	}
}

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (info sandbox.VolumeInfo, err error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return info, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return info, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	err = p.volumes.alone(func() error {
		info, err = p.volumes.create(ctx, owner, name)
		return err
	})
	if api.IsConflict(err) {
		err = fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	}
	return info, err
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var found []claim
	for _, place := range p.places() {
		more, _, err := api.ListAll[claim](ctx, place, claims, p.selector(kindVolume))
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		found = append(found, more...)
	}
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeInfo{}
	for _, c := range found {
		if info := c.volume(); c.Metadata.DeletionTimestamp == nil && (owner == "" || owner == info.Owner) {
			info.Sandboxes = sandbox.VolumeUsers(boxes, info.Owner, info.Name)
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(strings.Compare(a.Owner, b.Owner), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	if sandbox.CheckName(name) != nil {
		return fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	if err := p.volumes.alone(func() error { return p.deleteVolume(ctx, owner, name) }); err != nil {
		return err
	}
	return p.volumes.awaitGone(ctx, p.of(owner), p.volumes.name(owner, name))
}

func (p *Provider) deleteVolume(ctx context.Context, owner, name string) error {
	var found claim
	err := p.of(owner).Get(ctx, claims, p.volumes.name(owner, name), &found)
	if api.IsMissing(err) || err == nil && (found.Metadata.Annotations[noteOwner] != owner || found.Metadata.DeletionTimestamp != nil) {
		return fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	if err != nil {
		return fmt.Errorf("find volume: %w", err)
	}
	boxes, err := p.table.List(sandbox.Filter{})
	if err != nil {
		return err
	}
	if users := sandbox.VolumeUsers(boxes, owner, name); len(users) > 0 {
		return fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(users, ", "))
	}
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := p.of(owner).Remove(call, claims, found.Metadata.Name, -1); err != nil {
		return fmt.Errorf("delete volume: %w", err)
	}
	return nil
}
