package hub

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// diskOps keep, copy and compare disks.
func (h *Hub) diskOps() []op.Op {
	const one = "/api/v1/sandbox/{name}"
	return []op.Op{
		op.New(op.Spec{Name: "snapshot_create", Route: "POST " + one + "/snapshot", Tag: "snapshot",
			Doc: "Keep the disk of a sandbox as it is at this moment, under a name. It goes on undisturbed; create and rollback take the name."}, h.Snapshot),
		op.New(op.Spec{Name: "snapshot_list", Route: "GET /api/v1/snapshot", Tag: "snapshot", ReadOnly: true,
			Columns: []string{"name", "sandbox", "size", "created", "parent"},
			Doc:     "List snapshots, oldest first."}, h.Snapshots),
		op.New(op.Spec{Name: "snapshot_delete", Route: "DELETE /api/v1/snapshot/{snapshot}", Tag: "snapshot", Verb: "snapshot rm", Destructive: true,
			Doc: "Delete a snapshot. Sandboxes that were made from it stay as they are."}, h.DeleteSnapshot),
		op.New(op.Spec{Name: "sandbox_rollback", Route: "POST " + one + "/rollback", Tag: "snapshot", Verb: "rollback", Destructive: true,
			Doc: "Put the disk of a sandbox back to a snapshot, in place. All programs in it end, and its server starts anew."}, h.Rollback),
		op.New(op.Spec{Name: "sandbox_fork", Route: "POST " + one + "/fork", Tag: "snapshot", Verb: "fork",
			Doc: "Make copies of a sandbox on the disk that it has at this moment: all or none. Programs are started afresh in them."}, h.Fork),
		op.New(op.Spec{Name: "sandbox_diff", Route: "GET " + one + "/diff", Tag: "snapshot", Verb: "diff", ReadOnly: true,
			Columns: []string{"kind", "path", "size"},
			Doc:     "List what a sandbox has changed on its disk since it started from its image, snapshot or original."}, h.Diff),
		op.New(op.Spec{Name: "sandbox_export", Route: "GET " + one + "/export", Tag: "snapshot", Verb: "export", ReadOnly: true, Produces: "application/x-tar",
			Doc: "Write the disk of a sandbox as an OCI image in a tar archive."}, h.Export),
		op.New(op.Spec{Name: "volume_create", Route: "POST /api/v1/volume", Tag: "volume",
			Doc: "Make an empty volume: a folder that outlives sandboxes, and that several can mount."}, h.CreateVolume),
		op.New(op.Spec{Name: "volume_list", Route: "GET /api/v1/volume", Tag: "volume", ReadOnly: true,
			Columns: []string{"name", "size", "created", "sandboxes"},
			Doc:     "List volumes with their sizes and the sandboxes that have them."}, h.Volumes),
		op.New(op.Spec{Name: "volume_delete", Route: "DELETE /api/v1/volume/{volume}", Tag: "volume", Verb: "volume rm", Destructive: true,
			Doc: "Delete a volume with all that is in it. No sandbox may have it any more."}, h.DeleteVolume),
	}
}

// ability finds what a provider can do beyond the rest.
func ability[T any](h *Hub, able bool, what string) (T, error) {
	t, ok := h.cfg.Provider.(T)
	if !ok || !able {
		var none T
		return none, op.Errorf(op.Invalid, "provider %s cannot %s here; GET /api/v1/hub tells what it can do", h.cfg.Provider.Abilities().Provider, what)
	}
	return t, nil
}

func (h *Hub) snapshotter() (sandbox.Snapshotter, error) {
	return ability[sandbox.Snapshotter](h, h.cfg.Provider.Abilities().Snapshot, "take snapshots")
}

func (h *Hub) volumer() (sandbox.Volumer, error) {
	return ability[sandbox.Volumer](h, h.cfg.Provider.Abilities().Volume, "keep volumes")
}

// whose is the owner whose disks a call is about; an admin may name another.
func whose(ctx context.Context, user string) (who string, all bool, err error) {
	who = owner(ctx)
	if user == "" || user == who {
		return who, false, nil
	}
	if !governs(op.CallOf(ctx)) {
		return "", false, op.Errorf(op.NotFound, "there is nothing of %.60q that you could see", user)
	}
	return user, user == "*", nil
}

// UserIn names an owner.
type UserIn struct {
	User string `query:"user" default:"" doc:"For admins: those of this tenant, * for all"`
}

// SnapshotIn is a snapshot to be.
type SnapshotIn struct {
	Name     string `path:"name" doc:"Name of the sandbox"`
	Snapshot string `json:"snapshot" arg:"true" default:"" nullable:"true" doc:"Name of the snapshot; made up when missing"`
}

// SnapshotOut is a snapshot.
type SnapshotOut struct {
	Name    string    `json:"name"`
	User    string    `json:"user,omitempty"`
	Sandbox string    `json:"sandbox" doc:"ID of the sandbox it was taken of, which may be gone"`
	Parent  string    `json:"parent,omitempty" doc:"Snapshot that that sandbox had started from"`
	Image   string    `json:"image,omitempty"`
	Size    int64     `json:"size" doc:"Bytes that the sandbox had written; what is shared is not used twice"`
	Created time.Time `json:"created"`
}

func snapshotOut(s sandbox.Snapshot) SnapshotOut {
	return SnapshotOut{s.Name, s.Owner, s.Sandbox, s.Parent, imageName(s.Image), s.Size, s.Created.UTC()}
}

// Snapshot keeps a disk.
func (h *Hub) Snapshot(ctx context.Context, in SnapshotIn) (SnapshotOut, error) {
	p, err := h.snapshotter()
	if err != nil {
		return SnapshotOut{}, err
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return SnapshotOut{}, err
	}
	name := in.Snapshot
	if name == "" {
		name = "snap-" + strings.ToLower(rand.Text()[:10])
	}
	if err := sandbox.CheckName(name); err != nil {
		return SnapshotOut{}, op.Errorf(op.Invalid, "snapshot: %w", err)
	}
	s, err := p.Snapshot(ctx, sb.ID, name)
	if err != nil {
		return SnapshotOut{}, h.diskError("snapshot", name, in.Name, err)
	}
	h.countDisk(snapshotItem(s.Owner, s.Name), s.Owner, s.Size)
	return snapshotOut(s), nil
}

// Snapshots lists them.
func (h *Hub) Snapshots(ctx context.Context, in UserIn) ([]SnapshotOut, error) {
	p, err := h.snapshotter()
	if err != nil {
		return nil, err
	}
	who, all, err := whose(ctx, in.User)
	if err != nil {
		return nil, err
	}
	ask := who
	if all {
		ask = ""
	}
	list, err := p.Snapshots(ctx, ask)
	if err != nil {
		return nil, h.wire("", err)
	}
	out := []SnapshotOut{}
	for _, s := range list {
		// An empty owner selects everybody's.
		if all || s.Owner == who {
			out = append(out, snapshotOut(s))
		}
	}
	return out, nil
}

// DeleteSnapshotIn names a snapshot.
type DeleteSnapshotIn struct {
	Snapshot string `path:"snapshot" doc:"Name of the snapshot"`
	User     string `query:"user" default:"" doc:"For admins: the tenant whose it is"`
}

// DeleteSnapshot removes one.
func (h *Hub) DeleteSnapshot(ctx context.Context, in DeleteSnapshotIn) (string, error) {
	p, err := h.snapshotter()
	if err != nil {
		return "", err
	}
	who, _, err := whose(ctx, in.User)
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = clip(in.Snapshot)
	if err := p.DeleteSnapshot(ctx, who, in.Snapshot); err != nil {
		return "", h.diskError("snapshot", in.Snapshot, "", err)
	}
	h.quota.Free(snapshotItem(who, in.Snapshot))
	return "Snapshot " + in.Snapshot + " deleted successfully", nil
}

// RollbackIn names a sandbox and a snapshot.
type RollbackIn struct {
	Name     string `path:"name" doc:"Name of the sandbox"`
	Snapshot string `json:"snapshot" doc:"Name of the snapshot"`
}

// Rollback puts a disk back.
func (h *Hub) Rollback(ctx context.Context, in RollbackIn) (Object, error) {
	p, err := h.snapshotter()
	if err != nil {
		return Object{}, err
	}
	return h.turn(ctx, in.Name, func(ctx context.Context, id string) error {
		if b := h.known(id); b != nil {
			// What is still open leads into the life before.
			defer b.transport.CloseIdleConnections()
		}
		return h.diskError("snapshot", in.Snapshot, in.Name, h.start(ctx, id, func(ctx context.Context, id string) error { return p.Rollback(ctx, id, in.Snapshot) }))
	})
}

// known is the box of a sandbox, if there is one.
func (h *Hub) known(id string) *box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[id]
}

// ForkIn asks for copies.
type ForkIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Names []string `json:"names" nullable:"true" maxItems:"100" doc:"Names of the copies; made up when missing"`
	Count int      `json:"count" default:"0" minimum:"0" maximum:"100" doc:"How many; as many as there are names when missing, otherwise 1"`
}

// Fork makes copies.
func (h *Hub) Fork(ctx context.Context, in ForkIn) ([]Object, error) {
	p, err := ability[sandbox.Forker](h, h.cfg.Provider.Abilities().Fork, "fork sandboxes")
	if err != nil {
		return nil, err
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	n := cmp.Or(in.Count, max(len(in.Names), 1))
	if len(in.Names) > n {
		return nil, op.Errorf(op.Invalid, "there are %d names for %d copies", len(in.Names), n)
	}
	specs := make([]sandbox.Spec, n)
	for i := range specs {
		s := sb.Spec.Clone()
		s.Name = ""
		if i < len(in.Names) {
			s.Name = in.Names[i]
		}
		delete(s.Annotations, noteActive)
		// Its time begins anew; what the original was given later is not its own.
		if s.Lifetime.Timeout > h.cfg.MaxTimeout {
			s.Lifetime.Timeout = h.cfg.MaxTimeout
		}
		specs[i] = s
	}
	holds, done, err := h.take(ctx, sb.Spec.Owner, specs...)
	if err != nil {
		return nil, err
	}
	defer done()
	made, err := p.Fork(ctx, sb.ID, specs)
	if err != nil {
		return nil, h.wire(in.Name, err)
	}
	if err := h.equipAll(ctx, made); err != nil {
		return nil, err
	}
	out := make([]Object, 0, n)
	for i, m := range made {
		holds[i].Commit(m.ID)
		h.see(m)
		out = append(out, h.object(ctx, m))
	}
	return out, nil
}

// equipAll equips copies: all or, if one cannot be, none stays.
func (h *Hub) equipAll(ctx context.Context, made []sandbox.Sandbox) error {
	for _, m := range made {
		if err := h.equip(ctx, m); err != nil {
			err = op.Errorf(op.Unavailable, "%w", err)
			for _, m := range made {
				err = errors.Join(err, h.cfg.Provider.Delete(context.WithoutCancel(ctx), m.ID))
			}
			return err
		}
	}
	return nil
}

// DiffIn asks for changes.
type DiffIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	Limit int    `query:"limit" default:"1000" minimum:"1" maximum:"100000" doc:"Most changes"`
}

// DiffOut is what changed.
type DiffOut struct {
	Changes   []Change `json:"changes"`
	Truncated bool     `json:"truncated" doc:"Whether there are more"`
}

// Change is one path.
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind" enum:"added,modified,deleted"`
	Dir  bool   `json:"dir"`
	Size int64  `json:"size"`
}

// Diff lists what changed.
func (h *Hub) Diff(ctx context.Context, in DiffIn) (DiffOut, error) {
	p, err := ability[sandbox.Differ](h, h.cfg.Provider.Abilities().Diff, "compare disks")
	if err != nil {
		return DiffOut{}, err
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return DiffOut{}, err
	}
	d, err := p.Diff(ctx, sb.ID, in.Limit)
	if err != nil {
		return DiffOut{}, h.wire(in.Name, err)
	}
	out := DiffOut{Changes: []Change{}, Truncated: d.Truncated}
	for _, c := range d.Changes {
		out.Changes = append(out.Changes, Change{c.Path, string(c.Kind), c.Dir, c.Size})
	}
	return out, nil
}

// Export writes a disk as an image.
func (h *Hub) Export(ctx context.Context, in NameIn) (*op.Blob, error) {
	p, err := ability[sandbox.Exporter](h, h.cfg.Provider.Abilities().Export, "export sandboxes")
	if err != nil {
		return nil, err
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	if !h.background(func(life context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		w.CloseWithError(p.Export(ctx, sb.ID, w))
	}) {
		return nil, h.wire(in.Name, sandbox.ErrClosed)
	}
	// The first bytes tell whether it works, while an error can still be answered.
	first := make([]byte, 512)
	n, err := io.ReadAtLeast(r, first, 1)
	if err != nil {
		r.Close()
		return nil, h.wire(in.Name, err)
	}
	return &op.Blob{Type: "application/x-tar", Name: sb.Spec.Name + ".tar", Size: -1, Body: &pushed{first[:n], r}}, nil
}

// pushed is a reader whose first bytes were read already.
type pushed struct {
	first []byte
	*io.PipeReader
}

func (p *pushed) Read(b []byte) (int, error) {
	if len(p.first) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.PipeReader.Read(b)
}

// CreateVolumeIn is a volume to be.
type CreateVolumeIn struct {
	Name string `json:"name" arg:"true" doc:"Lower-case letters, digits and -, at most 50"`
}

// VolumeOut is a volume.
type VolumeOut struct {
	Name      string    `json:"name"`
	User      string    `json:"user,omitempty"`
	Size      int64     `json:"size" doc:"Bytes on disk"`
	Created   time.Time `json:"created"`
	Sandboxes []string  `json:"sandboxes" doc:"IDs of those that have it"`
}

func volumeOut(v sandbox.VolumeInfo) VolumeOut {
	return VolumeOut{v.Name, v.Owner, v.Size, v.Created.UTC(), slices.Clone(v.Sandboxes)}
}

// CreateVolume makes one.
func (h *Hub) CreateVolume(ctx context.Context, in CreateVolumeIn) (VolumeOut, error) {
	p, err := h.volumer()
	if err != nil {
		return VolumeOut{}, err
	}
	op.CallOf(ctx).TargetName = clip(in.Name)
	if err := sandbox.CheckName(in.Name); err != nil {
		return VolumeOut{}, op.Errorf(op.Invalid, "volume: %w", err)
	}
	v, err := p.CreateVolume(ctx, owner(ctx), in.Name)
	if err != nil {
		return VolumeOut{}, h.diskError("volume", in.Name, "", err)
	}
	return volumeOut(v), nil
}

// Volumes lists them.
func (h *Hub) Volumes(ctx context.Context, in UserIn) ([]VolumeOut, error) {
	p, err := h.volumer()
	if err != nil {
		return nil, err
	}
	who, all, err := whose(ctx, in.User)
	if err != nil {
		return nil, err
	}
	ask := who
	if all {
		ask = ""
	}
	list, err := p.Volumes(ctx, ask)
	if err != nil {
		return nil, h.wire("", err)
	}
	out := []VolumeOut{}
	for _, v := range list {
		if all || v.Owner == who {
			h.countDisk(volumeItem(v.Owner, v.Name), v.Owner, v.Size)
			out = append(out, volumeOut(v))
		}
	}
	return out, nil
}

// DeleteVolumeIn names a volume.
type DeleteVolumeIn struct {
	Volume string `path:"volume" doc:"Name of the volume"`
	User   string `query:"user" default:"" doc:"For admins: the tenant whose it is"`
}

// DeleteVolume removes one.
func (h *Hub) DeleteVolume(ctx context.Context, in DeleteVolumeIn) (string, error) {
	p, err := h.volumer()
	if err != nil {
		return "", err
	}
	who, _, err := whose(ctx, in.User)
	if err != nil {
		return "", err
	}
	op.CallOf(ctx).TargetName = clip(in.Volume)
	if err := p.DeleteVolume(ctx, who, in.Volume); err != nil {
		return "", h.diskError("volume", in.Volume, "", err)
	}
	h.quota.Free(volumeItem(who, in.Volume))
	return "Volume " + in.Volume + " deleted successfully", nil
}

// diskError is wire for what is done with a snapshot or volume of that name.
func (h *Hub) diskError(what, name, box string, err error) error {
	switch {
	case errors.Is(err, sandbox.ErrConflict):
		return op.Errorf(op.Conflict, "there is a %s %q already; choose another name or delete that one", what, clip(name))
	case errors.Is(err, sandbox.ErrNoSnapshot), errors.Is(err, sandbox.ErrNoVolume), box == "" && errors.Is(err, sandbox.ErrNotFound):
		return op.Errorf(op.NotFound, "there is no %s %q; list them with GET /api/v1/%s", what, clip(name), what)
	}
	return h.wire(box, err)
}

// Snapshots and volumes are counted beside sandboxes; a sandbox's ID has no /.
func snapshotItem(owner, name string) string { return "snapshot/" + owner + "/" + name }
func volumeItem(owner, name string) string   { return "volume/" + owner + "/" + name }

// countDisk counts what a snapshot or volume takes. It is there already, so it is
// counted beyond the limit too; new sandboxes find no room then.
func (h *Hub) countDisk(item, owner string, size int64) {
	if err := h.quota.Adopt(owner, item, quota.Amount{Disk: max(size, 0)}); err != nil {
		h.cfg.Log.Warn("cannot count a disk", "item", item, "error", err)
	}
}
