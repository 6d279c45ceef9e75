package layer

import "errors"

// A layer is kept while a disk uses it: the disk of a sandbox, of a snapshot, or one that a call is creating. The counts
// are not stored; they follow from the records. If a hub dies, the next one removes unused layers.

// Hold holds layers. Call Drop as often.
func (s *Store) Hold(layers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range layers {
		s.refs[l]++
	}
}

// Drop releases layers, and removes those that are not held.
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

// RemoveUnheld removes all layers that are not held. It continues after errors.
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
