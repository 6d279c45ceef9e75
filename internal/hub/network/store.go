package network

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// maxNetworks is the maximum number of networks of an owner.
const maxNetworks = 100

// entry is a network. Sandboxes refer to its ID, which is never reused: a network that replaces one of the same name has no
// members.
type entry struct {
	ID      string    `json:"id"`
	Owner   string    `json:"owner,omitempty"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
}

// Store stores the networks in a file.
type Store struct {
	path string // empty: in memory only

	mu  sync.Mutex
	all map[string]entry // by ID
}

// Open reads the networks of an earlier hub. The path can be empty: then nothing is stored.
func Open(path string) (*Store, error) {
	s := &Store{path: path, all: map[string]entry{}}
	if path == "" {
		return s, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var list []entry
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read the private networks: %w; restore the file from a backup, or remove it to start without networks", err)
	}
	for _, e := range list {
		s.all[e.ID] = e
	}
	return s, nil
}

// add creates a network.
func (s *Store) add(owner, name string) (entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, e := range s.all {
		switch {
		case e.Owner != owner:
		case e.Name == name:
			return entry{}, op.Errorf(op.Conflict, "network %q exists", name)
		default:
			own++
		}
	}
	if own >= maxNetworks {
		return entry{}, op.Errorf(op.Exhausted, "limit of %d networks reached; delete one with cove network rm", maxNetworks)
	}
	e := entry{ID: "net-" + strings.ToLower(rand.Text()[:16]), Owner: owner, Name: name, Created: time.Now().UTC()}
	next := maps.Clone(s.all)
	next[e.ID] = e
	return e, s.replace(next)
}

// remove deletes a network.
func (s *Store) remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.all)
	delete(next, id)
	return s.replace(next)
}

// replace stores the networks and then uses them; s.mu is held.
func (s *Store) replace(next map[string]entry) error {
	if s.path != "" {
		list := slices.SortedFunc(maps.Values(next), func(a, b entry) int { return strings.Compare(a.ID, b.ID) })
		err := atomicfile.Replace(s.path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			return json.NewEncoder(f).Encode(list)
		})
		if err != nil {
			return fmt.Errorf("save the private networks: %w", err)
		}
	}
	s.all = next
	return nil
}

// get returns a network of an owner by its ID.
func (s *Store) get(owner, id string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[id]
	return e, ok && e.Owner == owner
}

// find returns a network of an owner by its name.
func (s *Store) find(owner, name string) (entry, error) {
	for _, e := range s.list(func(o string) bool { return o == owner }) {
		if e.Name == name {
			return e, nil
		}
	}
	return entry{}, op.Errorf(op.NotFound, "no network %.60q; create it with cove network create %.60[1]s", name)
}

// list returns the networks of some owners, by name.
func (s *Store) list(of func(owner string) bool) (out []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		if of(e.Owner) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.Name+"\x00"+a.Owner, b.Name+"\x00"+b.Owner) })
	return out
}
