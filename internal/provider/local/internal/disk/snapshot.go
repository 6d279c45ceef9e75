package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Snapshots stores disks with names. Each has a record in the folder of its owner.
type Snapshots struct {
	store *Store
	dir   string

	mu   sync.Mutex
	list map[named]*snapshot // nil: in progress
}

// snapshot is the record of a snapshot.
type snapshot struct {
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Disk
}

type named struct{ owner, name string }

const (
	snapshotsName = "snapshots"
	jsonExt       = ".json"
)

// OpenSnapshots reads all records and holds their disks. If some cannot be read, it returns ErrUnreadable together with
// the others.
func (s *Store) OpenSnapshots() (*Snapshots, error) {
	n := &Snapshots{store: s, dir: filepath.Join(s.cfg.Dir, snapshotsName), list: map[named]*snapshot{}}
	files, err := filepath.Glob(filepath.Join(n.dir, "*", "*"+jsonExt))
	if err != nil {
		return nil, err
	}
	var bad error
	for _, f := range files {
		rec := &snapshot{}
		err := record.Load(filepath.Dir(f), filepath.Base(f), rec)
		key := named{rec.Snapshot.Owner, rec.Snapshot.Name}
		if err == nil && (key.name != strings.TrimSuffix(filepath.Base(f), jsonExt) || len(rec.Layers) == 0) {
			err = errors.New("the record does not match its file name")
		}
		if err != nil {
			bad = errors.Join(bad, fmt.Errorf("%w: %s: %w", ErrUnreadable, f, err))
			continue
		}
		n.list[key] = rec
		s.Hold(rec.Disk)
	}
	return n, bad
}

// ErrUnreadable reports that a record exists but cannot be read.
var ErrUnreadable = errors.New("record cannot be read")

func (n *Snapshots) ownerDir(owner string) string { return filepath.Join(n.dir, folderOf(owner)) }

// Reserve reserves the name of a snapshot. Call Keep or Cancel afterwards.
func (n *Snapshots) Reserve(owner, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := named{owner, name}
	if _, taken := n.list[key]; taken {
		return fmt.Errorf("%w: snapshot %q; delete it first or use another name", sandbox.ErrConflict, name)
	}
	n.list[key] = nil
	return nil
}

// Cancel frees a reserved name.
func (n *Snapshots) Cancel(owner, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.list, named{owner, name})
}

// Keep stores a disk under a reserved name. Unless it fails, it takes over the caller's hold on the disk.
func (n *Snapshots) Keep(info sandbox.Snapshot, d Disk) (sandbox.Snapshot, error) {
	d.From = "" // it is stored as the parent of the snapshot
	info.Image = d.Ref
	dir := n.ownerDir(info.Owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return info, err
	}
	rec := &snapshot{info, d}
	if err := record.SaveDurable(dir, info.Name+jsonExt, rec); err != nil {
		return info, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list[named{info.Owner, info.Name}] = rec
	return info, nil
}

// Get returns the disk of a snapshot, held for the caller.
func (n *Snapshots) Get(owner, name string) (Disk, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rec := n.list[named{owner, name}]
	if rec == nil {
		return Disk{}, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	n.store.Hold(rec.Disk)
	d := rec.Disk
	d.From = name
	return d, nil
}

// List returns the snapshots of an owner, or all if owner is empty, oldest first.
func (n *Snapshots) List(owner string) []sandbox.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := []sandbox.Snapshot{}
	for key, rec := range n.list {
		if rec != nil && (owner == "" || owner == key.owner) {
			all = append(all, rec.Snapshot)
		}
	}
	slices.SortFunc(all, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Delete removes a snapshot.
func (n *Snapshots) Delete(owner, name string) error {
	rec, err := n.forget(owner, name)
	if err != nil {
		return err
	}
	return errors.Join(record.SyncDir(n.ownerDir(owner)), n.store.Drop(rec.Disk))
}

// forget removes the record. If the hub dies afterwards, the next one removes the disk.
func (n *Snapshots) forget(owner, name string) (*snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := named{owner, name}
	rec := n.list[key]
	if rec == nil {
		return nil, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	if err := os.Remove(filepath.Join(n.ownerDir(owner), name+jsonExt)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	delete(n.list, key)
	return rec, nil
}

// Disks returns the disks of the snapshots whose owner matches; nil: all.
func (n *Snapshots) Disks(match func(owner string) bool) (all []Disk) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, rec := range n.list {
		if rec != nil && (match == nil || match(key.owner)) {
			all = append(all, rec.Disk)
		}
	}
	return all
}
