package disk

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// Volumes keeps volumes. A volume is a folder, in a folder per owner, with its record
// beside it. Where the filesystem keeps quotas it is a subvolume with a limit.
type Volumes struct {
	store *Store
	limit int64      // of new volumes, in bytes
	dirs  []string   // the first takes new ones; an earlier hub may have used the others
	mu    sync.Mutex // held while volumes are created or deleted
}

// Names of volumes do not begin with a dot; what does is ours.
const (
	volumesName = "volumes"
	recordMark  = "."
	doomedMark  = ".doomed-"
)

// OpenVolumes finds the volumes there are and finishes the deletions that an earlier
// hub began. Limit is that of new volumes.
func (s *Store) OpenVolumes(limit int64) (*Volumes, error) {
	v := &Volumes{store: s, limit: limit, dirs: []string{s.layers.Volumes()}}
	if old := filepath.Join(s.cfg.Dir, volumesName); old != v.dirs[0] && tree.Exists(old) {
		v.dirs = append(v.dirs, old)
	}
	for _, dir := range v.dirs {
		doomed, err := filepath.Glob(filepath.Join(dir, doomedMark+"*"))
		if err != nil {
			return nil, err
		}
		for _, d := range doomed {
			if err := tree.Remove(d); err != nil {
				s.cfg.Log.Error("cannot remove a deleted volume; the next start tries again", "path", d, "error", err)
			}
		}
	}
	return v, nil
}

// ownerBytes is the length of the name of an owner's folder, before it is written as hexadecimal digits.
const ownerBytes = 8

// folderOf names the folder of an owner, whose name may hold what a file name cannot.
func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:ownerBytes])
}

// IsOwnerFolder reports whether a name can be that of the folder of an owner.
func IsOwnerFolder(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == ownerBytes
}

// find returns the folder of an owner's volume, or where a new one belongs.
func (v *Volumes) find(owner, name string) (path string, exists bool) {
	for _, dir := range v.dirs {
		if path = filepath.Join(dir, folderOf(owner), name); tree.Exists(path) {
			return path, true
		}
	}
	return filepath.Join(v.dirs[0], folderOf(owner), name), false
}

// Use returns the folder of an owner's volume and creates it if needed.
func (v *Volumes) Use(owner, name string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	path, ok := v.find(owner, name)
	if ok {
		return path, nil
	}
	_, err := v.create(owner, name)
	return path, err
}

// Excess says which of an owner's volumes is above its limit, in words; empty if none
// is, or if the filesystem enforces it.
func (v *Volumes) Excess(owner string, names []string) (string, error) {
	if ok, _ := v.store.HasQuota(); ok {
		return "", nil
	}
	for _, name := range names {
		path, ok := v.find(owner, name)
		if !ok {
			continue
		}
		info := sandbox.VolumeInfo{}
		if err := record.Load(filepath.Dir(path), recordMark+name+jsonExt, &info); err != nil || info.Limit == 0 {
			info.Limit = v.limit
		}
		used, err := MeasureFolder(path, info.Limit)
		if err != nil {
			return "", err
		}
		if used.Bytes > info.Limit || used.Files > MaxFiles(info.Limit) {
			return fmt.Sprintf("its volume %q is above its limit of %d bytes; delete files in it", name, info.Limit), nil
		}
	}
	return "", nil
}

// Create creates an empty volume.
func (v *Volumes) Create(owner, name string) (sandbox.VolumeInfo, error) {
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.find(owner, name); ok {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	}
	return v.create(owner, name)
}

// create writes the record before it creates the folder: a folder is always a volume.
func (v *Volumes) create(owner, name string) (sandbox.VolumeInfo, error) {
	info := sandbox.VolumeInfo{Name: name, Owner: owner, Limit: v.limit, Created: time.Now(), Sandboxes: []string{}}
	dir := filepath.Join(v.dirs[0], folderOf(owner))
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = record.SaveDurable(dir, recordMark+name+jsonExt, info)
	}
	if err == nil {
		err = v.makeFolder(filepath.Join(dir, name), owner)
	}
	if err != nil {
		return info, fmt.Errorf("create volume: %w", err)
	}
	return info, nil
}

// makeFolder creates the folder of a volume, as a subvolume with a limit if that is
// possible.
func (v *Volumes) makeFolder(path, owner string) error {
	ok, err := v.store.layers.MakeSubvolume(path)
	if err != nil {
		return err
	}
	if !ok {
		return v.store.MakeFolder(path, isolate.UID)
	}
	return errors.Join(v.store.layers.SetLimitOf(path, owner, v.limit), os.Chmod(path, 0o755), v.store.Chown(path, isolate.UID))
}

// List returns the volumes of an owner, or all if owner is empty, by name. Sandboxes
// are all there are.
func (v *Volumes) List(owner string, sandboxes []sandbox.Sandbox) ([]sandbox.VolumeInfo, error) {
	pattern := "*"
	if owner != "" {
		pattern = folderOf(owner)
	}
	var records []string
	for _, dir := range v.dirs {
		found, err := filepath.Glob(filepath.Join(dir, pattern, recordMark+"*"+jsonExt))
		if err != nil {
			return nil, err
		}
		records = append(records, found...)
	}
	users := volumeUsers(sandboxes)
	all := []sandbox.VolumeInfo{}
	for _, r := range records {
		info := sandbox.VolumeInfo{}
		err := record.Load(filepath.Dir(r), filepath.Base(r), &info)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		used, err := v.measure(filepath.Join(filepath.Dir(r), info.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile, or never finished
		}
		if err != nil {
			return nil, err
		}
		info.Size, info.Sandboxes = used, append([]string{}, users[named{info.Owner, info.Name}]...)
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// measure returns how much a volume takes.
func (v *Volumes) measure(path string) (int64, error) {
	if _, err := os.Lstat(path); err != nil {
		return 0, err
	}
	if used, ok := v.store.layers.UsedBy(path); ok {
		return used, nil
	}
	used, err := MeasureFolder(path, 0)
	return used.Bytes, err
}

// volumeUsers lists the sandboxes that have a volume in their spec.
func volumeUsers(sandboxes []sandbox.Sandbox) map[named][]string {
	users := map[named][]string{}
	for _, sb := range sandboxes {
		for _, v := range sb.Spec.Volumes {
			key := named{sb.Spec.Owner, v.Name}
			users[key] = append(users[key], sb.ID)
		}
	}
	return users
}

// Delete removes a volume that no sandbox has in its spec.
func (v *Volumes) Delete(owner, name string, sandboxes func() ([]sandbox.Sandbox, error)) error {
	doomed, err := v.doom(owner, name, sandboxes)
	if err != nil {
		return err
	}
	return tree.Remove(doomed)
}

// doom takes a volume out of sight. A new sandbox is listed before its volumes are
// used, so either it is seen here or it gets a new volume.
func (v *Volumes) doom(owner, name string, sandboxes func() ([]sandbox.Sandbox, error)) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	path, ok := v.find(owner, name)
	if sandbox.CheckName(name) != nil || !ok {
		return "", fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	list, err := sandboxes()
	if err != nil {
		return "", err
	}
	if ids := volumeUsers(list)[named{owner, name}]; len(ids) > 0 {
		return "", fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(ids, ", "))
	}
	var salt [8]byte
	rand.Read(salt[:])
	doomed := filepath.Join(filepath.Dir(filepath.Dir(path)), doomedMark+hex.EncodeToString(salt[:]))
	err = os.Rename(path, doomed)
	if err == nil {
		err = os.Remove(filepath.Join(filepath.Dir(path), recordMark+name+jsonExt))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return doomed, err
}
