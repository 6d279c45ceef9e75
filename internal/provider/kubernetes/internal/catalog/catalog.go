// Package catalog lists the snapshots of a hub with their owners, and tracks which copies of disks are in use. A
// Keeper stores the copies and notes.
//
// A snapshot is a copy and a note, which is written last: a copy without a note is removed. The name of a
// snapshot is unique for its owner.
package catalog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Source is the initial content of a disk: an archive or a volume.
type Source struct {
	Archive string `json:"archive,omitempty"` // its key
	Volume  string `json:"volume,omitempty"`  // the VolumeSnapshot, as namespace/name
	Size    int64  `json:"size,omitempty"`    // the minimum size of a volume created from it
	From    string `json:"from,omitempty"`    // the snapshot
	Named   string `json:"named,omitempty"`   // the image of the spec
	Base    string `json:"base"`              // the image
	Pin     string `json:"pin,omitempty"`     // the image with its digest
}

// Key names the copy.
func (s Source) Key() string { return cmp.Or(s.Archive, s.Volume) }

// Entry is the note of a snapshot.
type Entry struct {
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Source   Source           `json:"source"`
}

// Keeper stores copies and notes. Its errors can be shown to callers.
type Keeper interface {
	// Load returns all notes, and the keys of all copies.
	Load(ctx context.Context) (notes []Entry, copies []string, err error)
	WriteNote(ctx context.Context, e Entry) error
	RemoveNote(ctx context.Context, e Entry) error
	RemoveCopy(ctx context.Context, key string) error
}

type snapshotID struct{ owner, name string }

// Catalog is the list of snapshots. It reads the keeper once, because no other process changes what it stores.
type Catalog struct {
	keeper  Keeper
	log     *slog.Logger
	loading chan struct{} // a lock, held while loading

	mu     sync.Mutex
	loaded bool
	all    map[snapshotID]Entry
	taken  map[snapshotID]bool // names of snapshots in progress
	pins   map[string]int      // copies that are in use
}

// cleanupTimeout bounds calls that must not be interrupted.
const cleanupTimeout = time.Minute

// New returns a catalog. It loads the snapshots on first use.
func New(k Keeper, log *slog.Logger) *Catalog {
	return &Catalog{keeper: k, log: log, loading: make(chan struct{}, 1), all: map[snapshotID]Entry{},
		taken: map[snapshotID]bool{}, pins: map[string]int{}}
}

// Ready loads the snapshots on the first call, and removes copies that were interrupted.
func (c *Catalog) Ready(ctx context.Context) error {
	select {
	case c.loading <- struct{}{}:
		defer func() { <-c.loading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.loaded {
		return nil
	}
	notes, copies, err := c.keeper.Load(ctx)
	if err != nil {
		return err
	}
	for _, key := range c.fill(notes, copies) {
		if err := c.keeper.RemoveCopy(ctx, key); err != nil {
			return err
		}
	}
	c.loaded = true
	return nil
}

// fill adds the snapshots whose copies exist, and returns unused copies.
func (c *Catalog) fill(notes []Entry, copies []string) (unused []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	exists, used := map[string]bool{}, map[string]bool{}
	for _, key := range copies {
		exists[key] = true
	}
	for _, e := range notes {
		if key := e.Source.Key(); exists[key] {
			c.all[snapshotID{e.Snapshot.Owner, e.Snapshot.Name}], used[key] = e, true
		}
	}
	return slices.DeleteFunc(slices.Clone(copies), func(key string) bool { return used[key] || c.pins[key] > 0 })
}

// unpin reports whether the copy is unused and belongs to no snapshot.
func (c *Catalog) unpin(key string) (free bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pins[key]--; c.pins[key] > 0 {
		return false
	}
	delete(c.pins, key)
	for _, e := range c.all {
		if e.Source.Key() == key {
			return false
		}
	}
	return true
}

// Pin marks a copy as used, until Release.
func (c *Catalog) Pin(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins[key]++
}

// Release ends the use of a copy, and removes the copy if it is unused.
func (c *Catalog) Release(ctx context.Context, key string) {
	if !c.unpin(key) {
		return
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := c.keeper.RemoveCopy(clean, key); err != nil {
		c.log.Warn("cannot remove the copy of a disk; the next start of the hub retries", "key", key, "error", err)
	}
}

// Find finds a snapshot and pins its copy.
func (c *Catalog) Find(ctx context.Context, owner, name string) (Entry, error) {
	if err := c.Ready(ctx); err != nil {
		return Entry{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.all[snapshotID{owner, name}]
	if !ok {
		return Entry{}, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	c.pins[e.Source.Key()]++
	return e, nil
}

// Reserve reserves the name of a snapshot until done is called.
func (c *Catalog) Reserve(owner, name string) (done func(), err error) {
	id := snapshotID{owner, name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, exists := c.all[id]; exists || c.taken[id] {
		return nil, fmt.Errorf("%w: snapshot %q", sandbox.ErrConflict, id.name)
	}
	c.taken[id] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.taken, id)
	}, nil
}

// Add creates a snapshot from a copy.
func (c *Catalog) Add(ctx context.Context, e Entry) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := c.keeper.WriteNote(call, e); err != nil {
		// The note may exist despite the error.
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if failed := c.keeper.RemoveNote(again, e); failed != nil {
			c.log.Warn("cannot remove the note of a failed snapshot", "key", e.Source.Key(), "error", failed)
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[snapshotID{e.Snapshot.Owner, e.Snapshot.Name}] = e
	return nil
}

// Delete removes a snapshot. Its copy is removed when it is unused.
func (c *Catalog) Delete(ctx context.Context, owner, name string) error {
	e, err := c.Find(ctx, owner, name)
	if err != nil {
		return err
	}
	defer c.Release(ctx, e.Source.Key())
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := c.keeper.RemoveNote(call, e); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := (snapshotID{owner, name}); c.all[id].Source == e.Source {
		delete(c.all, id)
	}
	return nil
}

// List lists the snapshots of an owner, or all.
func (c *Catalog) List(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	if err := c.Ready(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []sandbox.Snapshot{}
	for id, e := range c.all {
		if owner == "" || owner == id.owner {
			out = append(out, e.Snapshot)
		}
	}
	slices.SortFunc(out, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}
