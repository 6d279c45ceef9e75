package activity

import (
	"os"
	"path/filepath"
)

// Count reports what the records of each owner take, in bytes, now and whenever that changes.
// count must not call the store.
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

// report reports what the records of an owner take. The lock is held.
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

// forget drops what is known of a deleted record. The lock is held.
func (s *Store) forget(h Head) {
	delete(s.index, h.ID)
	delete(s.sizes, h.ID)
	s.report(h.User)
}

// measure returns what the files of a record take.
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
