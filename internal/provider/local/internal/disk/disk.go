package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
)

// Disk describes a disk in records.
type Disk struct {
	// Layers are sorted oldest first. The last layer of a sandbox is writable; the others are read-only and may be shared.
	// A layer has one folder per tree (root, usr, …) and layer.WorkName.
	Layers []string `json:"layers"`
	// Base is the name of the base below the layers; empty with an image.
	Base string `json:"base,omitempty"`
	// Ref is the reference of the image, which may be missing in the spec.
	Ref   string `json:"ref,omitempty"`
	Image *Image `json:"image,omitempty"`
	// From is the snapshot from which the disk was created.
	From string `json:"from,omitempty"`
}

// Image is an unpacked image.
type Image struct {
	// Layers are folders, topmost first, with the owners of the image.
	Layers []string `json:"layers"`
	// Command, Env and Workdir are defaults of specs.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

// top returns the writable layer.
func (d Disk) top() string { return d.Layers[len(d.Layers)-1] }

// trees lists the overlays of a disk: their mount points, and their folders in a layer.
func (s *Store) trees(d Disk) (targets, names []string) {
	targets, names = []string{"/"}, []string{"root"}
	if d.Image == nil {
		for _, t := range s.root.Trees {
			targets, names = append(targets, t), append(names, filepath.Base(t))
		}
	}
	return targets, names
}

// Grow adds an empty layer on top of a disk, with a host name. The layer is held for the caller, like the layers below.
func (s *Store) Grow(d Disk, hostname string) (Disk, error) {
	if d.Image == nil && d.Base == "" {
		d.Base = filepath.Base(s.root.Base)
	}
	name := layer.NewName()
	s.layers.Hold(name)
	if err := s.makeLayer(d, name, hostname); err != nil {
		return Disk{}, errors.Join(err, s.layers.Drop(name))
	}
	d.Layers = append(slices.Clip(d.Layers), name)
	return d, nil
}

func (s *Store) makeLayer(d Disk, name, hostname string) error {
	if err := s.layers.Create(name); err != nil {
		return fmt.Errorf("create layer: %w", err)
	}
	top := s.layers.Path(name)
	work := filepath.Join(top, layer.WorkName)
	if err := errors.Join(setOwner(top, 0o755, s.owner(), 0), s.MakeFolder(work, 0)); err != nil {
		return err
	}
	_, names := s.trees(d)
	for _, n := range names {
		if err := errors.Join(s.MakeFolder(filepath.Join(top, n), 0), s.MakeFolder(filepath.Join(work, n), 0)); err != nil {
			return err
		}
	}
	files := isolate.HostFiles(hostname)
	if d.Image != nil {
		files["resolv.conf"] = isolate.ResolverFile // the base of other disks has it
	}
	if err := s.writeEtc(files, filepath.Join(top, "root", "etc")); err != nil {
		return err
	}
	if d.Image == nil || len(d.Layers) > 0 {
		return nil
	}
	if err := s.addUser(d.Image, filepath.Join(top, "root")); err != nil {
		return fmt.Errorf("add the user: %w", err)
	}
	return nil
}

// writeEtc creates files in a new layer's /etc.
func (s *Store) writeEtc(files map[string]string, etc string) error {
	if err := s.MakeFolder(etc, 0); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(etc, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), setOwner(path, 0o644, s.owner(), 0)); err != nil {
			return fmt.Errorf("create sandbox folder: %w", err)
		}
	}
	return nil
}

// Overlays returns the overlay of each tree: the layers, newest on top, over the tree of the host or the image.
func (s *Store) Overlays(d Disk) (root []isolate.Overlay) {
	top, mapped := s.layers.Path(d.top()), s.mapping.State
	targets, names := s.trees(d)
	for i, target := range targets {
		if i > 0 && !tree.Exists(filepath.Join(top, names[i])) {
			continue // the host has added the tree after the layer was created
		}
		o := isolate.Overlay{Target: target, Upper: isolate.Dir{Path: top, Mapped: mapped}, Data: names[i],
			Work: filepath.Join(layer.WorkName, names[i])}
		for _, l := range slices.Backward(d.Layers[:len(d.Layers)-1]) {
			// The host may have added the tree after the layer was created.
			if path := s.layers.Path(l, names[i]); tree.Exists(path) {
				o.Lower = append(o.Lower, isolate.Dir{Path: path, Mapped: mapped})
			}
		}
		switch {
		case d.Image != nil:
			for _, l := range d.Image.Layers {
				o.Lower = append(o.Lower, isolate.Dir{Path: l, Mapped: mapped})
			}
		case target == "/":
			o.Lower = append(o.Lower, isolate.Dir{Path: s.basePath(d), Mapped: mapped})
		default:
			// Files that the base adds to the host's tree, or hides.
			if own := filepath.Join(s.basePath(d), target); hasEntries(own) {
				o.Lower = append(o.Lower, isolate.Dir{Path: own, Mapped: mapped})
			}
			o.Lower = append(o.Lower, isolate.Dir{Path: target, Mapped: s.mapping.Host, OfHost: !hostroot.HoldsPackages(target)})
		}
		root = append(root, o)
	}
	return root
}

// hasEntries reports whether a folder exists and is not empty.
func hasEntries(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) > 0
}

func (s *Store) basePath(d Disk) string { return filepath.Join(s.cfg.Dir, baseName, d.Base) }

// Hold holds the layers of a disk. Call Drop as often.
func (s *Store) Hold(d Disk) { s.layers.Hold(d.Layers...) }

// Drop releases the layers of a disk, and removes layers that are not held.
func (s *Store) Drop(d Disk) error {
	if d.Image != nil {
		s.Images().Sweep()
	}
	return s.layers.Drop(d.Layers...)
}

// Release is Drop for callers whose result does not depend on it. It logs errors; the next hub retries.
func (s *Store) Release(d Disk) {
	if err := s.Drop(d); err != nil {
		s.cfg.Log.Error("cannot remove a layer", "error", err)
	}
}

// Lost reports whether layers of a disk are missing. After a power failure, a record can exist without its disk.
func (s *Store) Lost(d Disk) bool {
	return slices.ContainsFunc(d.Layers, func(l string) bool { return !tree.Exists(s.layers.Path(l)) })
}

// maxLayers bounds the layers of a disk: more are slow, and their mounts must fit into one message to init.
func (s *Store) maxLayers(d Disk) int {
	_, names := s.trees(d)
	return min(64, 200/len(names))
}

// CheckCopy returns ErrExhausted if a disk cannot be copied.
func (s *Store) CheckCopy(d Disk) error {
	if len(d.Layers) >= s.maxLayers(d) {
		return fmt.Errorf("%w: the disk has the maximum of %d layers; export it and create a sandbox from that image",
			sandbox.ErrExhausted, len(d.Layers))
	}
	return s.CheckSpace()
}

// Copy returns a read-only copy of a disk, held for the caller even if the copy fails.
func (s *Store) Copy(ctx context.Context, d Disk) (Disk, error) {
	from := d.top()
	d.Layers = slices.Clone(d.Layers)
	d.Layers[len(d.Layers)-1] = layer.NewName()
	s.Hold(d)
	return d, s.layers.Copy(ctx, from, d.top())
}

// bytesPerFile derives the maximum number of files from a limit in bytes. It prevents a sandbox from using all inodes
// with empty files.
const bytesPerFile = 4 << 10

// SetLimit sets the size limit of a disk in bytes, if the filesystem has quotas; see HasQuota.
func (s *Store) SetLimit(d Disk, owner string, limit int64) error {
	return s.layers.SetLimit(d.top(), owner, limit)
}

// HasQuota reports whether the filesystem enforces limits, and if not, why.
func (s *Store) HasQuota() (bool, error) { return s.layers.HasQuota() }

// Measure returns the size of the data that a sandbox has written to its disk, from the filesystem if it has quotas. It
// stops at limit; 0 is no limit.
func (s *Store) Measure(d Disk, limit int64) (tree.Size, error) {
	if bytes, ok := s.layers.Used(d.top()); ok {
		return tree.Size{Bytes: bytes}, nil
	}
	return MeasureFolder(s.layers.Path(d.top()), limit)
}

// MeasureFolder is Measure for any folder.
func MeasureFolder(path string, limit int64) (tree.Size, error) {
	return tree.Measure(path, limit, limit/bytesPerFile)
}

// Excess describes which limit a size exceeds; empty if none.
func Excess(size tree.Size, limit int64) string {
	switch {
	case size.Bytes > limit:
		return fmt.Sprintf("its disk holds %d bytes, more than its limit of %d; delete files or raise the limit", size.Bytes, limit)
	case size.Files > MaxFiles(limit):
		return fmt.Sprintf("its disk holds %d files, more than its limit of %d; delete files or raise the disk limit",
			size.Files, MaxFiles(limit))
	case size.TooDeep:
		return fmt.Sprintf("its folders are nested deeper than %d levels; delete them", tree.MaxDepth)
	}
	return ""
}

// MaxFiles returns the maximum number of files on a disk with a limit in bytes.
func MaxFiles(limit int64) int64 { return limit / bytesPerFile }

// maxDiff bounds a Diff.
const maxDiff = 100_000

// Diff lists the changes of a sandbox on its disk, except those below the paths in hidden.
func (s *Store) Diff(ctx context.Context, d Disk, hidden []string, limit int) (sandbox.Diff, error) {
	skip := map[string]bool{"/etc/hostname": true, "/etc/hosts": true, "/dev": true, "/proc": true, "/sys": true,
		"/etc/resolv.conf": true, "/run": true, isolate.ServerState: true, isolate.ServerLogs: true}
	targets, _ := s.trees(d)
	// Mount points of other overlays are no changes.
	for _, path := range slices.Concat(s.cfg.Hidden, hidden, targets[1:]) {
		skip[path] = true
	}
	var overlays []tree.Overlay
	for _, o := range s.Overlays(d) {
		to := tree.Overlay{Target: o.Target, Upper: filepath.Join(o.Upper.Path, o.Data)}
		for _, l := range o.Lower {
			to.Lower = append(to.Lower, l.Path)
		}
		overlays = append(overlays, to)
	}
	return tree.Diff(ctx, overlays, skip, min(max(limit, 0), maxDiff))
}
