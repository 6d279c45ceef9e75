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

// Volumes stores volumes. A volume is a folder in the folder of its owner, next to its record. If the filesystem has
// quotas, it is a subvolume with a limit.
type Volumes struct {
	store *Store
	limit int64      // of new volumes, in bytes
	dirs  []string   // the first is for new volumes; an earlier hub may have used the others
	mu    sync.Mutex // held while volumes are created or deleted
}

// Prefixes of internal names. Names of volumes do not begin with a dot.
const (
	volumesName = "volumes"
	recordMark  = "."
	deletedMark = ".doomed-" // of deleted volumes
)

// OpenVolumes opens existing volumes and completes interrupted deletions. Limit is the limit of new volumes.
func (s *Store) OpenVolumes(limit int64) (*Volumes, error) {
	v := &Volumes{store: s, limit: limit, dirs: []string{s.layers.Volumes()}}
	if old := filepath.Join(s.cfg.Dir, volumesName); old != v.dirs[0] && tree.Exists(old) {
		v.dirs = append(v.dirs, old)
	}
	for _, dir := range v.dirs {
		deleted, err := filepath.Glob(filepath.Join(dir, deletedMark+"*"))
		if err != nil {
			return nil, err
		}
		for _, d := range deleted {
			if err := tree.Remove(d); err != nil {
				s.cfg.Log.Error("cannot remove a deleted volume; the next start retries", "path", d, "error", err)
			}
		}
	}
	return v, nil
}

// ownerBytes is the length of the hash that names the folder of an owner.
const ownerBytes = 8

// folderOf returns the name of the folder of an owner. It is a hash, because the name of an owner may be no valid file
// name.
func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:ownerBytes])
}

// IsOwnerFolder reports whether a name is a valid folder of an owner.
func IsOwnerFolder(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == ownerBytes
}

// find returns the folder of a volume, or the folder to create for a new one.
func (v *Volumes) find(owner, name string) (path string, exists bool) {
	for _, dir := range v.dirs {
		if path = filepath.Join(dir, folderOf(owner), name); tree.Exists(path) {
			return path, true
		}
	}
	return filepath.Join(v.dirs[0], folderOf(owner), name), false
}

// Use returns the folder of a volume. It creates a missing volume.
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

// Excess describes which volume exceeds its limit; empty if none, or if the filesystem enforces limits.
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
			return fmt.Sprintf("its volume %q exceeds its limit of %d bytes; delete files in it", name, info.Limit), nil
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

// makeFolder creates the folder of a volume, as a subvolume with a limit if possible.
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

// List returns the volumes of an owner, or all if owner is empty, sorted by name. Sandboxes are all sandboxes.
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
			continue // deleted or unfinished
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

// measure returns the size of a volume.
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

// volumeUsers lists the sandboxes that use each volume.
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

// Delete removes a volume that no sandbox uses.
func (v *Volumes) Delete(owner, name string, sandboxes func() ([]sandbox.Sandbox, error)) error {
	deleted, err := v.hide(owner, name, sandboxes)
	if err != nil {
		return err
	}
	return tree.Remove(deleted)
}

// hide renames a volume before its removal. A new sandbox is listed before it uses its volumes, so either it is seen
// here or it gets a new volume.
func (v *Volumes) hide(owner, name string, sandboxes func() ([]sandbox.Sandbox, error)) (string, error) {
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
	deleted := filepath.Join(filepath.Dir(filepath.Dir(path)), deletedMark+hex.EncodeToString(salt[:]))
	err = os.Rename(path, deleted)
	if err == nil {
		err = os.Remove(filepath.Join(filepath.Dir(path), recordMark+name+jsonExt))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return deleted, err
}
