// Package disk owns the operations on disks of sandboxes: snapshots, volumes, and images that tenants
// import.
//
// It keeps no state: the provider stores the disks. It never shows a disk of another owner.
package disk

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Fleet finds and starts sandboxes.
type Fleet interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
	Start(ctx context.Context, id string, start func(context.Context, string) error) error
}

// Sandboxes changes the state of sandboxes.
type Sandboxes interface {
	Change(ctx context.Context, name string, do func(ctx context.Context, id string) error) (lifecycle.Object, error)
}

// Quota counts disks against the limits of their owners.
type Quota interface {
	CountDisk(d usage.Disk, size int64)
	FreeDisk(d usage.Disk)
	OpenRoom(ctx context.Context, owner string) *usage.Room
	CountImages(ctx context.Context, owner string, room *usage.Room) error
}

// Config of a Service.
type Config struct {
	Provider  sandbox.Provider
	Fleet     Fleet
	Sandboxes Sandboxes
	Quota     Quota
	Tasks     *task.Group
	Scratch   string // folder for uploaded archives; empty: the system's temporary folder
	Log       *slog.Logger
}

// Service implements the operations on disks.
type Service struct {
	Config
	snapshots kind[sandbox.Snapshotter, sandbox.Snapshot]
	volumes   kind[sandbox.Volumer, sandbox.VolumeInfo]
	exports   exports
	removed   removed
	busy      atomic.Bool // disks are being counted
}

// New returns the service.
func New(cfg Config) *Service {
	s := &Service{Config: cfg}
	s.snapshots = kind[sandbox.Snapshotter, sandbox.Snapshot]{
		service: s, noun: "snapshot", does: "take snapshots", able: func(a sandbox.Abilities) bool { return a.Snapshot },
		list: sandbox.Snapshotter.Snapshots, delete: sandbox.Snapshotter.DeleteSnapshot,
		describe: func(x sandbox.Snapshot) (owner, name string, size int64) { return x.Owner, x.Name, x.Size },
		hidden:   func(x sandbox.Snapshot) bool { return x.Layer },
	}
	s.volumes = kind[sandbox.Volumer, sandbox.VolumeInfo]{
		service: s, noun: "volume", does: "keep volumes", able: func(a sandbox.Abilities) bool { return a.Volume },
		list: sandbox.Volumer.Volumes, delete: sandbox.Volumer.DeleteVolume,
		describe: func(x sandbox.VolumeInfo) (owner, name string, size int64) { return x.Owner, x.Name, x.Size },
	}
	return s
}

const one = "/api/v1/sandbox/{name}"

// Count measures all disks in the background, because large volumes take long. Sizes change all the
// time, so they are measured only periodically.
func (s *Service) Count() {
	if !s.busy.CompareAndSwap(false, true) {
		return
	}
	if !s.Tasks.Go(func(ctx context.Context) {
		defer s.busy.Store(false)
		s.snapshots.count(ctx)
		s.volumes.count(ctx)
	}) {
		s.busy.Store(false)
	}
}

// removed lists the disks that are deleted during a count, so that the count does not include them.
type removed struct {
	mu     sync.Mutex
	counts int
	disks  map[usage.Disk]bool
}

// begin starts a count; keep calls count unless the disk is deleted meanwhile.
func (r *removed) begin() (keep func(d usage.Disk, count func()), end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts++
	keep = func(d usage.Disk, count func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.disks[d] {
			count()
		}
	}
	return keep, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.counts--; r.counts == 0 {
			r.disks = nil
		}
	}
}

// free releases the quota of a deleted disk.
func (r *removed) free(d usage.Disk, free func(usage.Disk)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts > 0 {
		if r.disks == nil {
			r.disks = map[usage.Disk]bool{}
		}
		r.disks[d] = true
	}
	free(d)
}

// kind is the common implementation for snapshots and volumes: P is the provider's ability, D a disk.
type kind[P, D any] struct {
	service  *Service
	noun     string
	does     string
	able     func(sandbox.Abilities) bool
	list     func(p P, ctx context.Context, owner string) ([]D, error)
	delete   func(p P, ctx context.Context, owner, name string) error
	describe func(D) (owner, name string, size int64)
	hidden   func(D) bool // layers of templates, which count but are not shown; nil: none
}

// provider returns the ability, if the provider supports it here.
func (k kind[P, D]) provider() (P, error) { return ability[P](k.service.Provider, k.able, k.does) }

func ability[P any](p sandbox.Provider, able func(sandbox.Abilities) bool, does string) (P, error) {
	has, ok := p.(P)
	if abilities := p.Abilities(); !ok || !able(abilities) {
		var none P
		return none, fault.CannotDo(abilities.Provider, does)
	}
	return has, nil
}

// add counts a disk that was created.
func (k kind[P, D]) add(d D) {
	disk, size := k.disk(d)
	k.service.Quota.CountDisk(disk, size)
}

func (k kind[P, D]) disk(d D) (usage.Disk, int64) {
	owner, name, size := k.describe(d)
	return usage.Disk{Kind: k.noun, Owner: owner, Name: name}, size
}

// listed lists the disks of an owner, or of all owners if owner is empty, and counts them.
func (k kind[P, D]) listed(ctx context.Context, p P, owner string) ([]D, error) {
	keep, end := k.service.removed.begin()
	defer end()
	list, err := k.list(p, ctx, owner)
	for _, d := range list {
		disk, size := k.disk(d)
		keep(disk, func() { k.service.Quota.CountDisk(disk, size) })
	}
	return list, err
}

// count counts the disks of all owners.
func (k kind[P, D]) count(ctx context.Context) {
	p, err := k.provider()
	if err != nil {
		return
	}
	if _, err := k.listed(ctx, p, ""); err != nil && ctx.Err() == nil {
		k.service.Log.Warn("cannot count disks", "kind", k.noun, "error", err)
	}
}

// selected returns the disks that a request selects.
func (k kind[P, D]) selected(ctx context.Context, user string) ([]D, error) {
	p, err := k.provider()
	if err != nil {
		return nil, err
	}
	who, err := caller.Select(ctx, user)
	if err != nil {
		return nil, err
	}
	list, err := k.listed(ctx, p, who.Filter())
	if err != nil {
		return nil, fault.FromProvider("", err)
	}
	return slices.DeleteFunc(list, func(d D) bool {
		owner, _, _ := k.describe(d)
		return !who.Has(owner) || k.hidden != nil && k.hidden(d)
	}), nil
}

// remove deletes a disk.
func (k kind[P, D]) remove(ctx context.Context, user, name string) error {
	p, err := k.provider()
	if err != nil {
		return err
	}
	who, err := caller.Select(ctx, user)
	if err != nil {
		return err
	}
	op.CallOf(ctx).TargetName = fault.Clip(name)
	if k.hidden != nil {
		list, err := k.list(p, ctx, who.Owner)
		if err != nil {
			return fault.FromProvider("", err)
		}
		isHidden := func(d D) bool {
			owner, own, _ := k.describe(d)
			return owner == who.Owner && own == name && k.hidden(d)
		}
		if slices.ContainsFunc(list, isHidden) {
			return opError(k.noun, name, "", sandbox.ErrNoSnapshot)
		}
	}
	if err := k.delete(p, ctx, who.Owner, name); err != nil {
		return opError(k.noun, name, "", err)
	}
	k.service.removed.free(usage.Disk{Kind: k.noun, Owner: who.Owner, Name: name}, k.service.Quota.FreeDisk)
	return nil
}

// opError turns an error about the named snapshot, volume or image into one for the caller. sandbox
// is the sandbox of the call; empty: none.
func opError(noun, name, sandboxName string, err error) error {
	switch {
	case errors.Is(err, sandbox.ErrConflict):
		return op.Errorf(op.Conflict, "%s %q already exists; choose another name or delete it first", noun, fault.Clip(name))
	case errors.Is(err, sandbox.ErrNoSnapshot), errors.Is(err, sandbox.ErrNoVolume), sandboxName == "" && errors.Is(err, sandbox.ErrNotFound):
		return op.Errorf(op.NotFound, "no %s %q; list them with GET /api/v1/%s", noun, fault.Clip(name), noun)
	}
	return fault.FromProvider(sandboxName, err)
}

// DiffIn selects changes.
type DiffIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	Limit int    `query:"limit" default:"1000" minimum:"1" maximum:"100000" doc:"Maximum number of changes"`
}

// DiffOut is a list of changes.
type DiffOut struct {
	Changes   []Change `json:"changes"`
	Truncated bool     `json:"truncated" doc:"Whether there are more changes"`
}

// Change is a changed path.
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind" enum:"added,modified,deleted"`
	Dir  bool   `json:"dir"`
	Size int64  `json:"size"`
}

// Diff lists the changes of a disk.
func (s *Service) Diff(ctx context.Context, in DiffIn) (DiffOut, error) {
	p, err := ability[sandbox.Differ](s.Provider, func(a sandbox.Abilities) bool { return a.Diff }, "compare disks")
	if err != nil {
		return DiffOut{}, err
	}
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return DiffOut{}, err
	}
	d, err := p.Diff(ctx, sb.ID, in.Limit)
	if err != nil {
		return DiffOut{}, fault.FromProvider(in.Name, err)
	}
	out := DiffOut{Changes: []Change{}, Truncated: d.Truncated}
	for _, c := range d.Changes {
		out.Changes = append(out.Changes, Change{c.Path, string(c.Kind), c.Dir, c.Size})
	}
	return out, nil
}
