// Package tombstone remembers deleted sandboxes for a day, so that the error for a missing sandbox can
// state when and why it was deleted. It is limited in size: each owner, and all together, displace their
// own oldest entries.
package tombstone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	keep       = 24 * time.Hour
	maxOfOwner = 1000
	maxEntries = 10 * maxOfOwner
)

// Entry is a deleted sandbox.
type Entry struct {
	Owner string    `json:"owner,omitempty"`
	Name  string    `json:"name"`
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	Why   string    `json:"why"`
}

// Log lists deleted sandboxes, oldest first. The zero value is ready to use and stores nothing.
type Log struct {
	path string

	mu      sync.Mutex
	changed bool // since the last Save
	entries []Entry
}

// Open reads the entries of an earlier hub. If the file is damaged, they are lost.
func Open(path string) (*Log, error) {
	l := &Log{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil && json.Unmarshal(b, &l.entries) != nil {
		l.entries = nil
	}
	return l, err
}

// Add records a deletion.
func (l *Log) Add(sb sandbox.Sandbox, at time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = true
	own, total := 0, 0
	for _, e := range l.entries {
		total++
		if e.Owner == sb.Spec.Owner {
			own++
		}
	}
	l.entries = slices.DeleteFunc(l.entries, func(e Entry) bool {
		mine := e.Owner == sb.Spec.Owner
		if at.Sub(e.At) < keep && (!mine || own < maxOfOwner) && total < maxEntries {
			return false
		}
		total--
		if mine {
			own--
		}
		return true
	})
	l.entries = append(l.entries, Entry{sb.Spec.Owner, sb.Spec.Name, sb.ID, at.UTC(), why})
}

// Find returns the latest deletion of an owner's sandbox with a name or ID.
func (l *Log) Find(owner, name string, now time.Time) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range slices.Backward(l.entries) {
		if e.Owner == owner && (e.Name == name || e.ID == name) && now.Sub(e.At) < keep {
			return e, true
		}
	}
	return Entry{}, false
}

// List returns the entries, oldest first.
func (l *Log) List(now time.Time) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.entries), func(e Entry) bool { return now.Sub(e.At) >= keep })
}

// Save stores the entries for the next hub, if they have changed.
func (l *Log) Save() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" || !l.changed {
		return nil
	}
	err := atomicfile.Replace(l.path, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(l.entries)
	})
	if err != nil {
		return fmt.Errorf("save the list of deleted sandboxes: %w", err)
	}
	l.changed = false
	return nil
}
