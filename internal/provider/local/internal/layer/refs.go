package layer

import "errors"

// A layer is kept while a disk is built on it: that of a sandbox, of a snapshot, or
// one that a call is about to create. The counts are never written down; they
// follow from the records. So a hub that dies at any moment leaves, at worst, layers
// that nothing is built on, and the next one removes them.

// Hold keeps layers until each was dropped as often as it was held.
func (s *Store) Hold(layers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range layers {
		s.refs[l]++
	}
}

// Drop releases layers and removes those that nobody holds any more.
func (s *Store) Drop(layers ...string) error {
	var unused []string
	s.mu.Lock()
	for _, l := range layers {
		if s.refs[l]--; s.refs[l] <= 0 {
			delete(s.refs, l)
			unused = append(unused, l)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, l := range unused {
		errs = append(errs, s.remove(l))
	}
	return errors.Join(errs...)
}

// RemoveUnheld removes all layers that nobody holds, as far as that is possible.
func (s *Store) RemoveUnheld() error {
	names, err := s.names()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, l := range names {
		if s.refs[l] == 0 {
			errs = append(errs, s.remove(l))
		}
	}
	return errors.Join(errs...)
}
