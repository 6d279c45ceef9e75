package activity

import (
	"os"
	"path/filepath"
)

// Count reports the size of the records of each owner in bytes, and each change of it. count must not
// call the store.
func (s *Store) Count(count func(owner string, size int64)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count = count
	s.prune()
	owners := map[string]bool{}
	for _, h := range s.index {
		owners[h.User] = true
	}
	for owner := range owners {
		s.report(owner)
	}
}

// report reports the size of the records of an owner. The lock is held.
func (s *Store) report(owner string) {
	if s.count == nil {
		return
	}
	var sum int64
	for id, h := range s.index {
		if h.User == owner {
			sum += s.sizes[id]
		}
	}
	s.count(owner, sum)
}

// forget removes the metadata of a deleted record. The lock is held.
func (s *Store) forget(h Head) {
	delete(s.index, h.ID)
	delete(s.sizes, h.ID)
	s.report(h.User)
}

// measure returns the size of the files of a record.
func (s *Store) measure(id string) (sum int64) {
	if info, err := os.Stat(s.path(id)); err == nil {
		sum = info.Size()
	}
	pictures, _ := os.ReadDir(s.picturesDir(id)) // most have none
	for _, f := range pictures {
		if info, err := os.Stat(filepath.Join(s.picturesDir(id), f.Name())); err == nil {
			sum += info.Size()
		}
	}
	return sum
}
