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
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	keep       = 24 * time.Hour
	maxOfOwner = 1000
	maxEntries = 10 * maxOfOwner
	maxPast    = 20  // events of an entry
	maxMessage = 300 // bytes of an event, which a program in the sandbox can influence
	maxTold    = 100 // entries of an owner with events
)

// Entry is a deleted sandbox.
type Entry struct {
	Owner string    `json:"owner,omitempty"`
	Name  string    `json:"name"`
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	Why   string    `json:"why"`
	// Past is what happened before, newest first. Only the latest entries of an owner have it.
	Past []history.Moment `json:"past,omitempty"`
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
func (l *Log) Add(sb sandbox.Sandbox, at time.Time, why string, past []history.Moment) {
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
	told := 1
	for i, e := range slices.Backward(l.entries) {
		if e.Owner == sb.Spec.Owner && e.Past != nil {
			if told++; told > maxTold {
				l.entries[i].Past = nil
			}
		}
	}
	l.entries = append(l.entries, Entry{sb.Spec.Owner, sb.Spec.Name, sb.ID, at.UTC(), why, clip(past)})
}

// clip limits the size of a list of events. Problems explain an end, so they replace others.
func clip(past []history.Moment) []history.Moment {
	var out []history.Moment
	left := maxPast
	for _, m := range past {
		if m.Bad && left > 0 {
			left--
		}
	}
	for _, m := range past {
		if !m.Bad {
			left--
		}
		if len(out) == maxPast || !m.Bad && left < 0 {
			continue
		}
		if len(m.Message) > maxMessage {
			m.Message = strings.ToValidUTF8(m.Message[:maxMessage], "") + "…"
		}
		out = append(out, m)
	}
	return out
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
